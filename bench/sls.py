"""Aliyun's own client against a server of ours, in a process each: logs a second, and whose time that is."""

from __future__ import annotations

import http.client
import re
from contextlib import closing
from pathlib import Path

from bench.table import Line
from shoal.testing.aliyun import NoClient, client_python, start_program
from shoal.testing.serving import ServerProcess

AT_ONCE = (200, 2_000)


def lines(folder: Path, logs: int) -> list[Line]:
    """Putting and pulling; the rest of the time is the client's own."""
    try:
        python = client_python()
    except NoClient as error:
        return [Line("SLS put and pull through Aliyun's client", str(error))]
    return [line for at_once in AT_ONCE for line in _lines(python, folder, logs, at_once)]


def _lines(python: Path, folder: Path, logs: int, at_once: int) -> list[Line]:
    with ServerProcess(f"sqlite:///{folder}/sls-{at_once}.db") as server:
        program = start_program(
            python, Path(__file__).with_name("sls_program.py"), server.url, str(logs), str(at_once)
        )
        written, _ = program.communicate(timeout=600)
        if program.returncode:
            raise RuntimeError(written)
        ours = [_spent_s(server.port, call) for call in ("sls.put", "sls.read_shard")]
    found = []
    for what, took_s, ours_s in zip(("put", "pull"), map(float, written.split()), ours, strict=True):
        rate = f"{logs / took_s:,.0f} logs/s"
        share = f"{ours_s / took_s:.0%} of the time in our server"
        found.append(Line(f"SLS {what} through Aliyun's client, {at_once} logs at once", rate, share))
    return found


def _spent_s(port: int, call: str) -> float:
    """How long a server has worked on a call, by its own account."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    (found,) = re.findall(rf'shoal_server_request_seconds_sum\{{call="{call}"\}} (\S+)', text)
    return float(found)
