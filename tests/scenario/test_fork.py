"""A hub goes on in both processes after a fork, whatever its threads were doing at that moment."""

import sqlite3
from contextlib import closing

import pytest

import shoal
from shoal.testing.history import Ack, find_faults, read_history
from shoal.testing.workers import Worker
from tests.scenario.forking import STREAM, fork_while_busy, fork_with_a_member

FORKS = 7


@pytest.mark.timeout(120)
def test_a_hub_can_be_used_on_both_sides_of_many_forks_while_its_threads_are_busy(
    store: str, store_url: str
) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
    with Worker(fork_while_busy, store_url, FORKS) as worker:
        acks: list[Ack] = [ack for report in worker.join(60) for ack in report]

    with shoal.connect(store_url) as hub:
        shards, stored = read_history(hub, STREAM)
    assert len({ack.writer for ack in acks}) == 1 + 2 * FORKS + 2
    faults = find_faults(shards, stored, acks)
    assert not faults, "\n".join(faults)
    assert len(stored) == len(acks)
    if store == "sqlite":
        with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_a_membership_is_void_in_a_child_and_goes_on_in_its_parent(store_url: str, coordination: str) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
        hub.append(STREAM, 0, [b"a", b"b"])
    with Worker(fork_with_a_member, store_url, coordination) as worker:
        assert worker.join(60) == [["anna"]]
