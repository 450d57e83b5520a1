"""Every call of LogHub, made by Aliyun's own client, unmodified."""

import http.client
import re
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from shoal.remote.signing import Credentials
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.server.sls.records import SCHEMA
from shoal.server.sls.routes import CALLS
from shoal.testing.aliyun import Program
from shoal.testing.serving import served
from shoal.testing.users import ALL, allowed, guarded
from tests.sls.running import Start

REFUSED = {"sls.delete_shard", "sls.search"}
"""What there is not, and is said in words."""


def test_every_call_of_the_real_client_is_answered_as_it_expects_by_any_of_two_servers(
    store_url: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as opened:
        urls = [opened.enter_context(served(store_url)) for _ in range(2)]
        monkeypatch.setenv("SHOAL_URLS", ",".join(urls))
        _run(start("calls_program.py", urls[0], "all"))
        answered = {line for url in urls for line in _answered(url)}
    done = {call for call, status in answered if status == "200"}
    assert done == {f"sls.{name}" for name in CALLS.values()} - REFUSED
    assert {call for call, status in answered if status == "400"} >= REFUSED
    assert not [line for line in answered if line[1] >= "500"]


def _answered(url: str) -> list[tuple[str, str]]:
    """Calls of this dialect that a server has answered, each with its status."""
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return re.findall(r'shoal_server_requests_total\{call="(sls[^"]*)",status="(\d+)"', text)


def test_signatures_of_the_real_client_are_checked_in_both_versions(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}") as door:
        door.key_of("ann", ALL, key=Credentials(key="id", secret="secret"))
        _run(start("calls_program.py", door.url, "signed"))


def test_who_may_only_read_puts_nothing_with_the_real_client(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}") as door, door.hub_of("admin", ALL) as admin:
        admin.create_stream("proj/store", shards=1, schema=SCHEMA)
        admin.append("proj/store", 0, [{"time": 1, "contents": [("n", b"a")]}])
        policy = allowed(("log:GetCursorOrData", "acs:log:*:*:project/proj/logstore/store"))
        door.key_of("reader", policy, key=Credentials(key="id", secret="secret"))
        _run(start("calls_program.py", door.url, "reading_alone"))
        assert admin.stats("proj/store").appended == 1
        assert admin.list_groups("proj/store") == []


def _run(program: Program) -> None:
    written, _ = program.communicate(timeout=60)
    assert program.returncode == 0, written
