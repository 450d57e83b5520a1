"""What a leased consumer holds: deadlines, lost answers, checkpoints, and who it is."""

from dataclasses import replace

import pytest

from shoal.core.errors import (
    CheckpointBackwards,
    Fenced,
    InvalidInput,
    NameTaken,
    OffsetOutOfRange,
    UnknownConsumer,
)
from shoal.core.group import GroupSettings
from shoal.core.lease import ChangeKind, InstanceRow, LeaseRow, rewound
from shoal.core.leasing import LeasedConsumer, Outcome
from shoal.core.model import ShardId, ShardStatus
from shoal.lease_port import draw
from tests.unit.lease_table import (
    GROUP,
    INTERVAL_MS,
    TIMEOUT_MS,
    Desk,
    MemoryTable,
    filled,
    holder,
    instance,
    lose_answers,
    owned,
    view_of,
)

SHARDS = filled(1)
USABLE_MS = int(TIMEOUT_MS * 0.95)


# --- Ours: deadlines. --------------------------------------------------------------------------------


def test_a_deadline_counts_from_when_the_renewal_was_asked_not_from_its_answer() -> None:
    table = MemoryTable()
    foo = holder(table)
    changes = foo.consumer.beat(100)  # The answers come much later.
    foo.carry_out(changes, SHARDS)
    assert not foo.may_act(0, 100 + USABLE_MS)


def test_an_answer_to_an_earlier_round_extends_nothing() -> None:
    table = MemoryTable()
    foo = holder(table)
    first = foo.consumer.beat(100)
    foo.consumer.beat(200)
    foo.carry_out(first, SHARDS)
    assert not foo.may_act(0, USABLE_MS)


def test_stating_a_shorter_timeout_shortens_what_is_held_before_anyone_hears_of_it() -> None:
    table = MemoryTable()
    foo = holder(table)
    foo.consumer.change_settings(GroupSettings(timeout_ms=400))
    foo.consumer.beat(100)
    assert foo.may_act(0, 100 + 379)
    assert not foo.may_act(0, 100 + 380)


def test_one_that_comes_back_beats_as_often_as_the_timeout_allows_and_as_it_wished_later() -> None:
    short = GroupSettings(timeout_ms=400)
    back = LeasedConsumer(
        group=GROUP, name="foo", incarnation="foo-2", settings=short, interval_ms=600, is_again=True
    )
    assert (back.me.timeout_ms, back.me.interval_ms) == (400, 200)
    for timeout_ms, interval_ms in ((400, 200), (1000, 500), (5000, 600)):
        back.change_settings(GroupSettings(timeout_ms=timeout_ms))
        stated = back.beat(100)[0].new
        assert isinstance(stated, InstanceRow)
        assert (stated.timeout_ms, stated.interval_ms) == (timeout_ms, interval_ms)
    with pytest.raises(InvalidInput, match="heartbeat_interval"):
        LeasedConsumer(group=GROUP, name="foo", incarnation="foo-1", settings=short, interval_ms=600)


def test_a_renewal_whose_answer_was_lost_is_recognised_and_the_lease_kept() -> None:
    table = MemoryTable()
    foo = holder(table)
    lose_answers(table, 2)
    foo.beat(300)
    assert not foo.may_act(0, USABLE_MS)  # Nobody told us.
    foo.beat(600)
    assert foo.may_act(0, 600 + USABLE_MS - 1)
    assert foo.lost == []


def test_a_save_repeated_below_us_is_recognised_by_the_row_it_left() -> None:
    table = MemoryTable()
    foo = holder(table)
    change = foo.consumer.checkpoint(SHARDS[0], foo.epoch(0), 5)
    assert change.old is not None
    assert change.new is not None
    assert table.swap(change.old, change.new)
    told = foo.consumer.settle(change, Outcome.REFUSED, table.row(0), SHARDS[0])
    assert told.changes == []
    assert foo.held == [0]


def test_a_renewal_is_not_mistaken_for_the_one_before_it_whose_answer_was_lost() -> None:
    """Both leave the same row. A deadline by the later one would outlast the watch over the earlier one."""
    table = MemoryTable()
    foo = holder(table)
    first = foo.consumer.beat(300)[1]
    assert isinstance(first.old, LeaseRow)
    assert isinstance(first.new, LeaseRow)
    assert table.swap(first.old, first.new)
    foo.consumer.settle(first, Outcome.UNKNOWN)
    second = foo.consumer.beat(900)[1]
    assert second.new == table.row(0)
    told = foo.consumer.settle(second, Outcome.REFUSED, table.row(0), SHARDS[0])
    assert not foo.may_act(0, 300 + TIMEOUT_MS)
    (again,) = told.changes
    assert (again.old, again.asked_ms) == (first.new, 900)
    foo.carry_out(told.changes, SHARDS)
    assert foo.may_act(0, 300 + TIMEOUT_MS)


def test_a_take_whose_answer_was_lost_is_adopted_at_the_next_look() -> None:
    table = MemoryTable()
    owned(table, {None: 1})
    foo = Desk(table, "foo")
    foo.join()
    told = foo.consumer.look(view_of(table, SHARDS), now_ms=0, watch_ms=0)
    table.fault = lambda old, _new: "lost" if isinstance(old, LeaseRow) else "ok"
    foo.carry_out(told.changes, SHARDS)
    assert (foo.held, table.row(0).consumer_owner) == ([], "foo-1")
    table.fault = lambda _old, _new: "ok"
    foo.look(SHARDS, 50)
    assert foo.opened == [(0, table.row(0).epoch)]
    assert foo.may_act(0, 50)


def test_a_release_whose_answer_was_lost_acts_no_more_and_is_sent_again_if_it_was_not_in() -> None:
    table = MemoryTable()
    foo = holder(table)
    table.fault = lambda _old, _new: "failed"
    foo.release(SHARDS[0], 6)
    table.fault = lambda _old, _new: "ok"
    assert foo.held == []
    assert table.row(0).consumer_owner == "foo-1"
    foo.look_once(SHARDS, 20)
    assert (table.row(0).consumer_owner, table.row(0).checkpoint) == (None, 6)
    assert foo.held == []


def test_a_release_that_did_not_arrive_is_said_again_by_whoever_leaves_then() -> None:
    table = MemoryTable()
    foo = holder(table)
    table.fault = lambda _old, _new: "failed"
    foo.release(SHARDS[0], 6)
    foo.leave(SHARDS, 20)  # Nor does this arrive.
    assert table.row(0).consumer_owner == "foo-1"
    table.fault = lambda _old, _new: "ok"
    foo.leave(SHARDS, 40)
    assert (table.row(0).consumer_owner, table.row(0).checkpoint) == (None, 6)
    assert table.instances(GROUP) == []


def test_a_take_whose_answer_was_lost_is_let_go_of_by_whoever_leaves_then() -> None:
    table = MemoryTable()
    owned(table, {None: 1})
    foo = Desk(table, "foo")
    foo.join()
    told = foo.consumer.look(view_of(table, SHARDS), now_ms=0, watch_ms=0)
    table.fault = lambda old, _new: "lost" if isinstance(old, LeaseRow) else "ok"
    foo.carry_out(told.changes, SHARDS)
    table.fault = lambda _old, _new: "ok"
    assert table.row(0).consumer_owner == "foo-1"
    foo.leave(SHARDS, 20)
    assert table.row(0).consumer_owner is None
    assert foo.opened == []


def test_one_that_is_barred_owes_a_release_until_it_was_answered() -> None:
    table = MemoryTable()
    foo = holder(table)
    table.put(replace(instance("foo", incarnation="foo-2"), revision=9))
    foo.beat(20, SHARDS)
    assert isinstance(foo.consumer.error, NameTaken)
    table.fault = lambda _old, _new: "failed"
    foo.release(SHARDS[0], 6)
    assert (foo.held, foo.consumer.is_owing) == ([], True)
    table.fault = lambda _old, _new: "ok"
    foo.look_once(SHARDS, 40)
    assert (table.row(0).consumer_owner, table.row(0).checkpoint) == (None, 6)
    assert not foo.consumer.is_owing


def test_a_release_against_a_row_that_was_asked_back_meanwhile_is_tried_again() -> None:
    table = MemoryTable()
    foo = holder(table)
    row = table.row(0)
    table.put(replace(row, lease_owner="bar-1", revision=row.revision + 1))
    foo.release(SHARDS[0], 6)
    after = table.row(0)
    assert (after.lease_owner, after.consumer_owner, after.checkpoint) == ("bar-1", None, 6)


# --- Ours: checkpoints. ------------------------------------------------------------------------------


def test_a_checkpoint_goes_neither_back_nor_past_the_end() -> None:
    table = MemoryTable()
    foo = holder(table)
    foo.save(SHARDS[0], 5)
    with pytest.raises(CheckpointBackwards):
        foo.save(SHARDS[0], 4)
    with pytest.raises(OffsetOutOfRange):
        foo.save(SHARDS[0], 11)
    with pytest.raises(OffsetOutOfRange):
        foo.consumer.release(SHARDS[0], foo.epoch(0), 11)
    assert foo.held == [0]
    assert table.row(0).checkpoint == 5


def test_saving_the_end_of_a_closed_shard_ends_it_and_its_owner_still_lets_go() -> None:
    table = MemoryTable()
    foo = holder(table)
    closed = replace(SHARDS[0], status=ShardStatus.CLOSED)
    foo.save(closed, 10)
    assert table.row(0).is_over
    assert foo.held == [0]
    foo.release(closed, 10)
    assert table.row(0).consumer_owner is None


def test_a_reset_fences_the_owner_at_once_and_the_next_one_begins_where_it_says() -> None:
    table = MemoryTable()
    foo = holder(table)
    foo.save(SHARDS[0], 8)
    old = foo.epoch(0)
    table.put(rewound(table.row(0), SHARDS[0], 2, draw(table, GROUP, 1)[0]))
    with pytest.raises(Fenced):
        foo.save(SHARDS[0], 9)
    foo.beat(100)
    assert foo.closing == [0]
    assert not foo.may_act(0, USABLE_MS)  # Its deadline is no longer extended.
    foo.release(SHARDS[0], 9)
    assert table.row(0).checkpoint == 2
    foo.look(SHARDS, 100)
    assert foo.consumer.leases[ShardId(0)].checkpoint == 2
    assert foo.epoch(0) > old


# --- Ours: incarnations. -----------------------------------------------------------------------------


def test_an_older_incarnation_is_barred_and_only_lets_go() -> None:
    table = MemoryTable()
    old = holder(table)
    new = Desk(table, "foo", incarnation="foo-2")
    new.join()
    old.beat(100)
    assert isinstance(old.consumer.error, NameTaken)
    assert old.consumer.beat(200) == []
    assert old.closing == [0]
    assert old.may_act(0, 100)  # Until its deadline: it may drain.
    before = table.row(0)
    old.look(SHARDS, 200)
    assert table.row(0) == before
    old.release(SHARDS[0], 3)
    assert table.row(0).checkpoint == 3


def test_a_consumer_that_was_thought_dead_does_not_beat_itself_back_to_life() -> None:
    table = MemoryTable()
    foo = holder(table)
    del table.rows[GROUP, "instance", "foo"]
    foo.beat(100)
    assert isinstance(foo.consumer.error, UnknownConsumer)
    assert table.instances(GROUP) == []


def test_a_join_whose_answer_was_lost_does_not_bar_the_process_that_came_after_it() -> None:
    table = MemoryTable()
    first = Desk(table, "foo", incarnation="foo-1")
    lose_answers(table, 1)
    first.join()
    second = Desk(table, "foo", incarnation="foo-2")
    second.join()
    with pytest.raises(NameTaken):
        first.join()
    assert [row.incarnation for row in table.instances(GROUP)] == ["foo-2"]


def test_a_join_whose_answer_was_lost_is_recognised() -> None:
    table = MemoryTable()
    foo = Desk(table, "foo")
    lose_answers(table, 1)
    foo.join()
    foo.join()
    foo.beat(INTERVAL_MS)
    row = table.rows[GROUP, "instance", "foo"]
    assert isinstance(row, InstanceRow)
    assert row.counter == 1
    assert ChangeKind.BEAT in foo.changes


def test_a_beat_goes_on_after_others_have_watched_it() -> None:
    table = MemoryTable()
    foo = holder(table)
    row = table.rows[GROUP, "instance", "foo"]
    assert isinstance(row, InstanceRow)
    table.put(replace(row, stood_ms=700, revision=row.revision + 1))
    foo.beat(100)
    assert [(row.counter, row.stood_ms) for row in table.instances(GROUP)] == [(2, 0)]
