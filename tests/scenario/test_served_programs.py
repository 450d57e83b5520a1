"""Programs and servers: `shoal work` and `shoal tail` through one that is killed and comes back, and who is
judged dead by it."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import shoal
from shoal.testing.members import eventually, holds
from shoal.testing.serving import ServerProcess
from tests.scenario.programs import Start, finish

pytestmark = pytest.mark.alone

WORD_COUNT = f"{Path(__file__).parents[2] / 'examples' / 'word_count' / 'word_count.py'}:WordCount"


@pytest.fixture
def server(sqlite_url: str) -> Iterator[ServerProcess]:
    with ServerProcess(sqlite_url) as server:
        yield server


@pytest.fixture
def hub(server: ServerProcess) -> Iterator[shoal.Hub]:
    with shoal.connect(server.url) as hub:
        yield hub


def send(hub: shoal.Hub, numbers: range) -> None:
    with hub.producer("lines") as producer:
        for number in numbers:
            producer.send(f"word line-{number % 10}", key=f"{number}")


def test_work_counts_everything_once_while_its_server_is_killed_and_comes_back(
    server: ServerProcess, hub: shoal.Hub, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "words.db"
    monkeypatch.setenv("SHOAL_HUB", server.url)
    monkeypatch.setenv("WORD_COUNTS", str(counts))
    hub.create_stream("lines", shards=4)
    send(hub, range(1000))
    program = start(
        "work",
        WORD_COUNT,
        "-s",
        "lines",
        "-g",
        "words",
        "-n",
        "2",
        "--name",
        "w",
        "--timeout",
        "3s",
        "--json",
    )

    def counted() -> dict[str, int]:
        with closing(sqlite3.connect(counts, timeout=20)) as file:
            if not file.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone():
                return {}
            return dict(file.execute("SELECT word, count FROM words"))

    eventually(lambda: counted().get("word", 0) >= 200, "it works", 60)
    server.end(kill=True)
    server.start()
    send(hub, range(1000, 2000))
    eventually(lambda: counted().get("word") == 2000, "it goes on", 60)
    program.send_signal(signal.SIGTERM)
    code, out, _ = finish(program)
    assert code == 0, out
    assert counted() == {"word": 2000} | {f"line-{n}": 200 for n in range(10)}
    info = hub.describe_group("lines", "words")
    assert (info.state, info.members, info.lag) == ("empty", (), 0)


def test_tail_follows_through_a_long_outage_and_a_split(
    server: ServerProcess, hub: shoal.Hub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HUB", server.url)
    hub.create_stream("lines", shards=1)
    program = start("tail", "lines", "--follow", "--json")
    assert program.stdout is not None
    assert program.stderr is not None
    hub.append("lines", 0, [b"0"])
    assert json.loads(program.stdout.readline())["value"] == "0"
    server.end()
    assert b"looking again" in program.stderr.readline()
    server.start()
    assert b"there again" in program.stderr.readline()
    hub.append("lines", 0, [b"1"])
    assert json.loads(program.stdout.readline())["value"] == "1"
    hub.split_shard("lines", 0)
    with hub.producer("lines") as producer:
        for number in range(2, 12):
            producer.send(str(number), key=f"{number}")
    told = [json.loads(program.stdout.readline())["value"] for _ in range(10)]
    assert sorted(map(int, told)) == list(range(2, 12))
    program.send_signal(signal.SIGINT)
    finish(program)


def test_a_restarted_server_watches_a_whole_timeout_before_it_judges_anyone_dead(
    server: ServerProcess, hub: shoal.Hub
) -> None:
    timeout_s = 3.0
    hub.create_stream("orders", shards=2)
    hub.create_group("orders", "billing", timeout=timeout_s)
    child = os.fork()
    if child == 0:  # A consumer that will never be heard of again.
        with shoal.connect(server.url) as its_own:
            member = its_own.join_group("orders", "billing", "gone")
            deadline = time.monotonic() + 20
            while len(member.leases) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(0)
    os.waitpid(child, 0)
    server.end(kill=True)
    time.sleep(timeout_s * 1.5)  # Nobody watches: it counts for nothing.
    server.start()
    back = time.monotonic()
    with hub.join_group("orders", "billing", "anna") as anna:
        holds(anna, [0, 1], 30)
        took_s = time.monotonic() - back
    # Heartbeats came every quarter of the timeout: so much may have been watched before the server ended.
    assert took_s > timeout_s * 0.7
    assert [note.kind for _, note in hub.group_history("orders", "billing")].count("expired") == 1
