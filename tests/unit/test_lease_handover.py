"""Hand-overs between leased consumers: who is watched, what is stolen, given back, bounded, left behind."""

from dataclasses import replace

from shoal.core.group import GroupSettings
from shoal.core.lease import ChangeKind, SequenceRow
from shoal.core.model import ShardId
from tests.unit.lease_table import (
    GROUP,
    INTERVAL_MS,
    TIMEOUT_MS,
    Desk,
    MemoryTable,
    filled,
    joined,
    owned,
)

BOUNDED = GroupSettings(timeout_ms=TIMEOUT_MS, handover_timeout_ms=300)


def test_observers_that_come_and_go_watch_a_death_together() -> None:
    table = MemoryTable()
    owned(table, {"dead": 1})
    shards = filled(1)
    now_ms = 0
    for number in range(30):
        short = Desk(table, f"short{number}")
        short.join()
        short.look_once(shards, now_ms)
        now_ms += INTERVAL_MS // 2
        short.leave(shards, now_ms)
        if table.row(0).stood_ms >= TIMEOUT_MS:
            break
    assert now_ms < 2 * TIMEOUT_MS
    (heir,) = joined(table, "heir")
    heir.look(shards, 0)
    assert heir.held == [0]


def test_an_observer_that_was_away_adds_one_interval_at_most() -> None:
    table = MemoryTable()
    owned(table, {"bar": 1})
    (foo,) = joined(table, "foo")
    foo.look(filled(1), 0)
    foo.look(filled(1), 100 * TIMEOUT_MS)
    assert table.row(0).stood_ms == INTERVAL_MS


def test_two_observers_never_add_the_same_time_twice() -> None:
    table = MemoryTable()
    owned(table, {"bar": 1})
    foo, baz = joined(table, "foo", "baz")
    for now_ms in range(0, 900, 25):
        for desk in (foo, baz):
            desk.look(filled(1), now_ms)
            assert table.row(0).stood_ms <= now_ms


def test_the_old_owner_renews_while_it_drains_and_the_thief_follows_its_checkpoint() -> None:
    table = MemoryTable()
    shards = filled(2)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    (foo,) = joined(table, "foo")
    foo.look(shards, 0)
    before = table.row(1)
    assert (before.lease_owner, before.consumer_owner) == ("foo-1", "bar-1")
    bar.beat(100)
    assert bar.closing == [1]
    assert bar.may_act(1, 100)
    assert table.row(1).lease_id == before.lease_id + 1
    foo.look(shards, 100)
    assert foo.held == []
    bar.release(shards[1], 7)
    foo.look(shards, 100)
    assert foo.held == [1]
    assert foo.consumer.leases[ShardId(1)].checkpoint == 7
    assert foo.epoch(1) > before.epoch


def test_a_steal_of_a_thief_that_died_is_undone_and_the_owner_goes_on() -> None:
    table = MemoryTable()
    shards = filled(2)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    (foo,) = joined(table, "foo")
    foo.look(shards, 0)
    for now_ms in range(0, 3 * TIMEOUT_MS, 50):
        bar.beat(now_ms)
        bar.look(shards, now_ms)
        if not bar.closing:
            break
    assert 0 < now_ms <= 1.5 * TIMEOUT_MS
    assert table.row(1).lease_owner == "bar-1"
    assert table.row(1).waited_ms == 0
    assert [row.name for row in table.instances(GROUP)] == ["bar"]


def test_a_thief_that_leaves_undoes_its_steals_at_once() -> None:
    table = MemoryTable()
    shards = filled(2)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    (foo,) = joined(table, "foo")
    foo.look(shards, 0)
    assert table.row(1).is_stolen
    foo.leave(shards, 10)
    assert not table.row(1).is_stolen


def test_a_living_owner_is_waited_for_without_a_bound_unless_the_user_sets_one() -> None:
    table = MemoryTable()
    shards = filled(2)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    (foo,) = joined(table, "foo")
    for now_ms in range(0, 20 * TIMEOUT_MS, 100):
        bar.beat(now_ms)
        foo.beat(now_ms)
        foo.look(shards, now_ms)
    assert table.row(1).consumer_owner == "bar-1"
    assert table.row(1).waited_ms > 12 * TIMEOUT_MS


def test_after_the_hand_over_timeout_the_deadline_is_not_extended_and_then_the_shard_moves() -> None:
    table = MemoryTable()
    shards = filled(2)
    (bar,) = joined(table, "bar", settings=BOUNDED)
    bar.look(shards, 0)
    (foo,) = joined(table, "foo", settings=BOUNDED)
    frozen_ms = taken_ms = 0
    for now_ms in range(0, 20 * TIMEOUT_MS, 50):
        bar.beat(now_ms)
        foo.beat(now_ms)
        foo.look(shards, now_ms)
        if not frozen_ms and table.row(1).lapse_ms:
            frozen_ms = now_ms
        if foo.held and not taken_ms:
            taken_ms = now_ms
            break
        if frozen_ms and now_ms - frozen_ms >= TIMEOUT_MS:
            assert not bar.may_act(1, now_ms)
    assert 300 <= frozen_ms <= 500
    assert frozen_ms + TIMEOUT_MS <= taken_ms <= frozen_ms + 1.2 * TIMEOUT_MS
    assert foo.changes.count(ChangeKind.FORCE) == 1
    bar.beat(taken_ms)
    assert [shard for shard, _ in bar.lost] == [1]


def test_a_restarted_consumer_bars_its_old_self_and_gets_its_shards_back() -> None:
    table = MemoryTable()
    shards = filled(4)
    old, other = Desk(table, "foo", incarnation="foo-1"), Desk(table, "other")
    for desk in (old, other):
        desk.join()
    for now_ms in (0, 50):
        for desk in (old, other):
            desk.look(shards, now_ms)
            desk.drain(shards)
    before = old.held
    new = Desk(table, "foo", incarnation="foo-2")
    new.join()
    new.look(shards, 100)
    assert new.held == []  # Only after a release, or the watch.
    old.beat(150)
    assert old.consumer.error is not None
    assert old.closing == before
    old.drain(shards)
    new.look(shards, 200)
    assert new.held == before
    assert [row.incarnation for row in table.instances(GROUP)].count("foo-1") == 0


def test_a_restarted_consumer_gets_its_shards_after_the_watch_if_its_old_self_is_dead() -> None:
    table = MemoryTable()
    shards = filled(2)
    old = Desk(table, "foo", incarnation="foo-1")
    old.join()
    old.look(shards, 0)
    new = Desk(table, "foo", incarnation="foo-2")
    new.join()
    for now_ms in range(0, 3 * TIMEOUT_MS, 50):
        new.beat(now_ms)
        new.look(shards, now_ms)
        if new.held:
            break
    assert TIMEOUT_MS <= now_ms <= 1.5 * TIMEOUT_MS
    assert new.held == [0, 1]


def test_a_clean_stop_hands_everything_over_at_once() -> None:
    table = MemoryTable()
    shards = filled(4)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    bar.save(shards[0], 3)
    bar.leave(shards, 10)
    (foo,) = joined(table, "foo")
    foo.look(shards, 10)
    assert foo.held == [0, 1, 2, 3]
    assert foo.consumer.leases[ShardId(0)].checkpoint == 3


def test_a_consumer_that_retires_is_no_longer_counted_on() -> None:
    table = MemoryTable()
    shards = filled(4)
    foo, bar = joined(table, "foo", "bar")
    bar.carry_out(bar.consumer.retire(0), shards)
    foo.look(shards, 0)
    bar.look(shards, 0)
    assert (foo.held, bar.held) == ([0, 1, 2, 3], [])


def test_a_consumer_that_does_not_know_the_rules_beats_and_decides_nothing() -> None:
    table = MemoryTable()
    owned(table, {None: 2})
    (foo,) = joined(table, "foo", settings=GroupSettings(timeout_ms=TIMEOUT_MS, rules=99))
    foo.look(filled(2), 0)
    foo.beat(10)
    assert foo.held == []
    assert set(foo.changes) == {ChangeKind.JOIN, ChangeKind.BEAT}


def test_a_table_that_forgot_commits_grants_nothing_for_a_timeout_and_jumps_over_its_numbers() -> None:
    table = MemoryTable()
    shards = filled(1)
    (foo,) = joined(table, "foo")
    foo.look(shards, 0)
    foo.look(shards, 0)
    epoch = foo.epoch(0)
    table.put(SequenceRow(group=GROUP, number=0))
    table.put(replace(table.row(0), consumer_owner=None, lease_owner=None, epoch=0, owner_epoch=0))
    for now_ms in range(10, 3 * TIMEOUT_MS, 50):
        foo.beat(now_ms)
        foo.look(shards, now_ms)
        if foo.held:
            break
    assert TIMEOUT_MS <= now_ms <= 1.5 * TIMEOUT_MS
    assert foo.epoch(0) > epoch + 2**19
