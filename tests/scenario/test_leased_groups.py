"""Leased groups as people see and delete them, while consumers come and go."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.consumer import LeasedMembership
from shoal.core.errors import GroupInUse, InvalidInput, NotFound, UnknownGroup
from shoal.core.names import stream_name
from shoal.testing.members import eventually, hand_over, holds
from tests.scenario.programs import Start, finish

STREAM, GROUP = "orders", "billing"


@pytest.fixture(autouse=True)
def _group(hub: Hub, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_HUB", sqlite_url)
    hub.create_stream(STREAM, shards=2)
    for shard in (0, 1):
        hub.append(STREAM, shard, [b"x"] * 10)
    hub.create_group(STREAM, GROUP, coordination="leased", timeout=1.0)


def since(hub: Hub) -> dict[int, int]:
    return {shard.id: shard.since_ms for shard in hub.describe_group(STREAM, GROUP).shards}


def told(hub: Hub) -> list[str]:
    return [note.kind for _, note in hub.group_history(STREAM, GROUP)]


def test_since_when_a_shard_is_in_its_state_is_told_for_each(hub: Hub) -> None:
    made = since(hub)
    with hub.join_group(STREAM, GROUP, "anna") as anna:
        holds(anna, [0, 1])
        eventually(lambda: told(hub).count("granted") == 2, "it is written down")
        granted = since(hub)
        assert all(granted[shard] > made[shard] for shard in (0, 1))
        time.sleep(0.01)
        with hub.join_group(STREAM, GROUP, "bert") as bert:
            eventually(lambda: bool(hand_over(anna)), "one is asked for")
            eventually(lambda: len(bert.leases) == 1, "and is handed over")
            (moved,) = bert.leases
            eventually(lambda: since(hub)[moved] > granted[moved], "since then")
            assert since(hub)[1 - moved] == granted[1 - moved]


def test_its_history_is_followed_line_by_line(hub: Hub, start: Start) -> None:
    follower = start("group", "history", STREAM, GROUP, "--follow", "--json")
    assert follower.stdout is not None
    with hub.join_group(STREAM, GROUP, "anna"):
        kinds = [json.loads(follower.stdout.readline())["kind"] for _ in range(5)]
        assert sorted(kinds) == ["born", "born", "granted", "granted", "joined"]
    kinds = [json.loads(follower.stdout.readline())["kind"] for _ in range(3)]
    assert sorted(kinds) == ["left", "released", "released"]
    follower.send_signal(signal.SIGINT)
    assert finish(follower) == (130, b"", b"")


def test_its_history_tells_consumers_with_long_names_apart(hub: Hub) -> None:
    anna, bert = (f"{'a-long-way-to-the-part-that-matters-' * 2}{name}" for name in ("anna", "bert"))
    with hub.join_group(STREAM, GROUP, anna) as first:
        holds(first, [0, 1])
        with hub.join_group(STREAM, GROUP, bert):
            eventually(lambda: "moving" in told(hub), "one is asked for")
            moving = next(note for _, note in hub.group_history(STREAM, GROUP) if note.kind == "moving")
            assert (moving.consumer, moving.detail) == (anna, f"to {bert}")


class Between:
    """A store in which something happens between the look at who uses a group and its end."""

    def __init__(self, store: Any, happens: Any) -> None:
        self._store, self._happens = store, happens

    def delete_group(self, group_id: int) -> None:
        self._happens()
        self._store.delete_group(group_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_whoever_joins_while_its_group_is_deleted_is_told_and_leaves_nothing_behind(hub: Hub) -> None:
    joined: list[LeasedMembership] = []

    def join() -> None:
        member = hub.join_group(STREAM, GROUP, "anna")
        assert isinstance(member, LeasedMembership)
        holds(member, [0, 1])
        joined.append(member)

    leased = hub.service.groups._leased  # type: ignore[attr-defined]
    leased._store = Between(leased._store, join)
    hub.delete_group(STREAM, GROUP)
    (anna,) = joined
    with pytest.raises(NotFound):
        hub.read(STREAM, 0, 0, group=GROUP, epoch=1)
    eventually(lambda: isinstance(anna.error, UnknownGroup), "it is told")
    assert not anna.leases
    with pytest.raises(shoal.ShoalError):
        anna.checkpoint({0: 5})
    with pytest.raises(shoal.ShoalError):
        anna.release({0: 5})
    # A group of that name is another one, and has nothing to do with what was on its way.
    hub.create_group(STREAM, GROUP, coordination="leased", timeout=1.0)
    with hub.join_group(STREAM, GROUP, "bert") as bert:
        holds(bert, [0, 1])
        assert [lease.checkpoint for lease in bert.leases.values()] == [0, 0]
        eventually(lambda: not anna._table.instances(anna._key), "nothing is left of the first")
        eventually(lambda: not anna._table.list(anna._key), "nor of its shards")


def test_whoever_joins_after_the_rows_were_removed_takes_its_own_along(hub: Hub) -> None:
    found = hub.service.groups.find(stream_name(STREAM), GROUP)
    hub.delete_group(STREAM, GROUP)
    late = LeasedMembership(hub.service, stream_name(STREAM), found, "late")
    eventually(lambda: isinstance(late.error, UnknownGroup), "it is told")
    eventually(lambda: not late._table.instances(late._key), "its row is gone")
    eventually(lambda: not late._table.list(late._key), "and those of shards")


def test_one_in_use_is_deleted_only_by_force(hub: Hub) -> None:
    with hub.join_group(STREAM, GROUP, "anna") as anna:
        holds(anna, [0, 1])
        with pytest.raises(GroupInUse):
            hub.delete_group(STREAM, GROUP)
        hub.delete_group(STREAM, GROUP, force=True)
        eventually(lambda: isinstance(anna.error, UnknownGroup), "it is told")


def test_whatever_a_table_is_called_it_is_one_of_ours_and_no_other(hub: Hub, sqlite_url: str) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        database.execute("create table users (name text)")
        before = tables(database)
        names = ("users", "shoal_user", "sqlite_master", "pg_class")
        for name in names:
            hub.create_group(STREAM, name, coordination="leased", lease_table=name)
            assert {shard.checkpoint for shard in hub.describe_group(STREAM, name).shards} == {0}
        ours = {f"shoal_leases_{name}{of}" for name in names for of in ("", "_instance", "_sequence")}
        assert tables(database) == before | ours
        assert database.execute("select count(*) from users").fetchone() == (0,)
    for name in ("a_instance", "a_sequence"):
        with pytest.raises(InvalidInput, match="lease_table"):
            hub.create_group(STREAM, "other", coordination="leased", lease_table=name)
    assert len(hub.list_groups(STREAM)) == 1 + len(names)


def tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
