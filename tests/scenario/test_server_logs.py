"""The server's log, and who reads it."""

import http.client
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path

import pytest

from shoal.server.logs import WAITING_MAX, PatientHandler
from shoal.testing.machine import free_port
from shoal.testing.reading import until

PIPE_LINES = 1_000
"""More than the system keeps of them for a pipe that nobody reads."""
END_S = 30.0


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(port: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """One whose log goes to a pipe that nobody reads."""
    options = ["--store", f"sqlite:///{tmp_path}/shoal.db", "--listen", f"127.0.0.1:{port}"]
    command = [sys.executable, "-c", "from shoal.cli import main; main()", "serve", *options]
    with subprocess.Popen([*command, "--log-level", "debug"], stderr=subprocess.PIPE, text=True) as server:
        try:
            until(lambda: is_ready(port))
            yield server
        finally:
            server.kill()


def is_ready(port: int) -> bool:
    try:
        return asked(port, 1) == [HTTPStatus.OK]
    except OSError:
        return False


def asked(port: int, times: int) -> list[int]:
    """What as many requests were answered with, over one connection."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        statuses = []
        for _ in range(times):
            connection.request("GET", "/readyz")
            with connection.getresponse() as answer:
                answer.read()
                statuses.append(answer.status)
        return statuses


def test_a_log_that_nobody_reads_stops_neither_the_server_nor_its_end(
    server: subprocess.Popen[str], port: int
) -> None:
    many = WAITING_MAX + PIPE_LINES
    assert asked(port, many) == [HTTPStatus.OK] * many
    server.send_signal(signal.SIGTERM)
    assert server.wait(END_S) == 0


def test_lines_that_were_left_out_are_counted_where_they_are_missing(
    server: subprocess.Popen[str], port: int
) -> None:
    many = WAITING_MAX + PIPE_LINES
    asked(port, many)
    assert server.stderr is not None
    lines = [server.stderr.readline() for _ in range(WAITING_MAX)]
    asked(port, 1)
    server.send_signal(signal.SIGTERM)
    lines += server.stderr.readlines()
    assert server.wait(END_S) == 0
    assert lines[-1] == "stopped\n"
    told = [json.loads(line) for line in lines if line.startswith("{")]
    gaps = [line["text"] for line in told if "left out" in line["text"]]
    assert len(gaps) == 1
    left_out = int(gaps[0].split()[0])
    requests = [line for line in told if line.get("path") == "/readyz"]
    assert left_out > 0
    assert len(requests) + left_out >= many + 1
    assert told.index(next(line for line in told if "left out" in line["text"])) == len(told) - 2


def test_a_server_without_standard_error_serves(port: int, tmp_path: Path) -> None:
    serve = f"serve --store sqlite:///{tmp_path}/shoal.db --listen 127.0.0.1:{port} --log-level debug"
    command = f"exec {sys.executable} -c 'from shoal.cli import main; main()' {serve} 2>&-"
    with subprocess.Popen(["sh", "-c", command]) as server:
        try:
            until(lambda: is_ready(port))
            server.send_signal(signal.SIGTERM)
            assert server.wait(END_S) == 0
        finally:
            server.kill()


def test_a_line_that_cannot_be_told_does_not_stop_whoever_logs_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        handler = PatientHandler(file.fileno())
        for text, given in (("%d", ("x",)), ("all is well", ())):
            handler.handle(logging.LogRecord("a.log", logging.INFO, "", 0, text, given, None))
        handler.close()
    first, second = (json.loads(line) for line in (tmp_path / "log").read_text().splitlines())
    assert (first["level"], first["log"]) == ("error", "a.log")
    assert second["text"] == "all is well"
