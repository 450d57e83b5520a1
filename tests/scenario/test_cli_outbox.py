"""`shoal outbox`: make it, see what waits, relay it, and stop when asked."""

import json
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import shoal
from shoal import Outbox
from shoal.testing.reading import until, values_by_key
from shoal.testing.serving import ServerProcess
from tests.scenario.programs import Run, Start, finish, json_of


@pytest.fixture
def database(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOAL_HUB", sqlite_url)
    monkeypatch.setenv("SHOAL_DATABASE", f"sqlite:///{tmp_path / 'app.db'}")
    return tmp_path / "app.db"


def add(database: Path, count: int) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for number in range(count):
            Outbox().add(connection, "orders", str(number), key="a")


def test_an_outbox_is_made_filled_shown_and_relayed(database: Path, hub: shoal.Hub, run: Run) -> None:
    hub.create_stream("orders", shards=1)
    for _ in range(2):
        assert "outbox shoal_outbox is there" in run("outbox", "create").stdout
    add(database, 5)
    shown = run("outbox", "status")
    assert "5 records wait, the first since " in shown.stdout
    assert "nobody relays" in shown.stdout
    assert json_of(run("outbox", "relay", "--until-empty", "--json"))["relayed"] == 5
    found = json_of(run("outbox", "status", "--json"))
    assert found == {"waiting": 0, "oldest_ms": None, "relay": None, "relayed": 5, "stalled": []}
    assert values_by_key(hub, "orders") == {b"a": [b"0", b"1", b"2", b"3", b"4"]}


def test_a_relay_works_until_it_is_asked_to_stop_and_lets_go(
    database: Path, hub: shoal.Hub, run: Run, start: Start
) -> None:
    hub.create_stream("orders", shards=1)
    run("outbox", "create")
    relay = start("outbox", "relay", "--json", "--poll", "10ms")
    add(database, 3)
    until(lambda: hub.next_offset("orders", 0) == 3)
    assert json_of(run("outbox", "status", "--json"))["relay"] is not None
    relay.send_signal(signal.SIGTERM)
    code, out, err = finish(relay)
    assert (code, err) == (0, b"")
    assert json.loads(out)["relayed"] == 3
    assert json_of(run("outbox", "status", "--json"))["relay"] is None


def test_a_relay_that_is_asked_to_stop_while_its_server_is_gone_ends_soon_and_loses_nothing(
    database: Path, hub: shoal.Hub, sqlite_url: str, run: Run, start: Start
) -> None:
    hub.create_stream("orders", shards=1)
    run("outbox", "create")
    with ServerProcess(sqlite_url) as server:
        relay = start("outbox", "relay", "--json", "--poll", "10ms", "--hub", server.url)
        add(database, 3)
        until(lambda: json_of(run("outbox", "status", "--json"))["relayed"] == 3)
        server.end(kill=True)
        add(database, 5)
        until(lambda: bool(noted(database)))
        relay.send_signal(signal.SIGTERM)
        code, out, _ = finish(relay)  # Within less than a producer goes on trying.
        assert (code, json.loads(out)["relayed"]) == (0, 3)
    found = json_of(run("outbox", "status", "--json"))
    assert (found["waiting"], found["relay"]) == (5, None)
    assert json_of(run("outbox", "relay", "--until-empty", "--json"))["relayed"] == 5
    assert values_by_key(hub, "orders") == {b"a": [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"4"]}


def noted(database: Path) -> str:
    """The ids of the rows that are on their way."""
    with closing(sqlite3.connect(database)) as connection:
        found: str = connection.execute("SELECT ids FROM shoal_outbox_relay").fetchone()[0]
    return found


def test_what_is_missing_is_said_with_what_to_do(database: Path, run: Run) -> None:
    assert "no such file" in run("outbox", "status", exits=6).stderr
    wrong = run("outbox", "status", "--database", "mongodb://here", exits=6).stderr
    assert "an outbox's database is one of sqlite://…" in wrong
    database.touch()
    assert "no outbox in" in run("outbox", "relay", "--until-empty", exits=6).stderr
    run("outbox", "create")
    add(database, 1)
    assert "orders" in run("outbox", "relay", "--until-empty", exits=3).stderr
    shown = run("outbox", "status").stdout
    assert "1 for orders are held up from row 1 of shoal_outbox on: " in shown
    assert "shoal stream create" in shown
    (stalled,) = json_of(run("outbox", "status", "--json"))["stalled"]
    assert (stalled["row"], stalled["waiting"]) == (1, 1)
