"""A table that lost rows, by a deletion or a fail-over, under consumers that remember them."""

from dataclasses import replace

import pytest

from shoal.core.errors import NameTaken, NotOwner, StoreUnavailable
from shoal.core.lease import Change, ChangeKind, LeaseRow, SequenceRow, numbered, rewound, taken
from shoal.core.limits import EPOCH_JUMP
from tests.unit.lease_table import GROUP, INTERVAL_MS, TIMEOUT_MS, Desk, MemoryTable, filled

SHARDS = filled(1)


def holder(table: MemoryTable) -> Desk:
    desk = Desk(table, "foo")
    desk.join()
    desk.look(SHARDS, 0)
    assert desk.held == [0]
    return desk


def test_whoever_has_no_row_makes_none_for_the_shards_of_a_group_that_was_deleted() -> None:
    table = MemoryTable()
    foo = holder(table)
    for key, row in list(table.rows.items()):
        if not isinstance(row, SequenceRow):
            del table.rows[key]
    foo.look(SHARDS, 50)
    assert table.list(GROUP) == []
    assert foo.held == []


def test_a_holder_whose_renewals_were_forgotten_gives_the_shard_up_and_gets_it_anew() -> None:
    table = MemoryTable()
    foo = holder(table)
    forgotten = table.row(0)
    first_epoch = foo.epoch(0)
    foo.beat(100, SHARDS)
    foo.beat(200, SHARDS)
    table.put(forgotten)  # A fail-over to a copy that lagged.
    foo.beat(300, SHARDS)
    assert foo.lost == [(0, first_epoch)]
    assert not foo.may_act(0, 300)
    foo.look(SHARDS, 350)
    foo.look(SHARDS, 400)
    assert foo.held == [0]
    assert foo.epoch(0) > first_epoch


def test_a_save_on_a_row_that_was_forgotten_is_no_success() -> None:
    table = MemoryTable()
    foo = holder(table)
    forgotten = table.row(0)
    foo.beat(100, SHARDS)
    table.put(forgotten)
    with pytest.raises(NotOwner):
        foo.save(SHARDS[0], 4)
    assert foo.held == []
    assert table.row(0).checkpoint == 0


@pytest.mark.parametrize("fate", ["ok", "lost"])
def test_a_counter_that_the_table_forgot_is_not_stated_again(fate: str) -> None:
    table = MemoryTable()
    foo, bar = Desk(table, "foo"), Desk(table, "bar")
    foo.join()
    bar.join()
    before = next(row for row in table.instances(GROUP) if row.name == "foo")
    table.fault = lambda _old, _new: fate
    foo.beat(0)
    table.fault = lambda _old, _new: "ok"
    bar.look((), 0)
    table.put(before)  # A fail-over to a copy that lagged.
    foo.beat(5 * TIMEOUT_MS)
    bar.look((), 5 * TIMEOUT_MS)
    after = next(row for row in table.instances(GROUP) if row.name == "foo")
    assert after.stood_ms == 0, "bar has seen nothing of it before"


def test_who_was_expired_before_it_knew_that_it_had_joined_joins_with_values_that_nobody_has_seen() -> None:
    table = MemoryTable()
    foo, bar = Desk(table, "foo"), Desk(table, "bar")
    bar.join()
    table.fault = lambda _old, _new: "lost"
    foo.join()
    table.fault = lambda _old, _new: "ok"
    bar.look((), 0)
    before = next(row for row in table.instances(GROUP) if row.name == "foo")
    table.delete(before)  # As by whoever has watched it for its timeout.
    foo.join()
    bar.look((), 5 * TIMEOUT_MS)
    after = next(row for row in table.instances(GROUP) if row.name == "foo")
    assert (after.incarnation, after.stood_ms) == (before.incarnation, 0)
    assert after.revision > before.revision + TIMEOUT_MS, "what was meant for the first does not meet it"


def test_what_was_seen_before_a_table_forgot_is_watched_from_the_beginning() -> None:
    table = MemoryTable()
    holder(table)
    bar = Desk(table, "bar")
    bar.join()
    bar.look(SHARDS, 0)
    sequence = table.sequence(GROUP)
    assert sequence is not None
    number = sequence.number + EPOCH_JUMP
    table.put(replace(sequence, number=number, distrusted=number))
    late = 5 * TIMEOUT_MS
    for now_ms in (late, late + 1, late + INTERVAL_MS):
        bar.look(SHARDS, now_ms)
        assert table.row(0).stood_ms == 0, "it may have been renewed, and come to the same once more"
    bar.look(SHARDS, late + 2 * INTERVAL_MS)
    assert table.row(0).stood_ms == INTERVAL_MS


def test_a_table_that_forgets_between_a_look_and_a_draw_gives_no_epoch() -> None:
    table = MemoryTable()
    foo = Desk(table, "foo")
    foo.join()
    foo.look_once(SHARDS, 0)
    row = replace(table.row(0), epoch=9)
    take = Change(kind=ChangeKind.TAKE, old=row, new=taken(row, foo.consumer.me), wants_number=True)
    with pytest.raises(StoreUnavailable):
        numbered(take, 9)
    with pytest.raises(StoreUnavailable):
        rewound(row, SHARDS[0], 0, 9)


def test_epochs_from_before_a_table_forgot_are_let_go_of() -> None:
    table = MemoryTable()
    foo = holder(table)
    row = table.row(0)
    sequence = table.sequence(GROUP)
    assert sequence is not None
    number = sequence.number + EPOCH_JUMP
    table.put(replace(sequence, number=number, distrusted=number, distrust_ms=TIMEOUT_MS))
    foo.look(SHARDS, 50)
    foo.beat(100, SHARDS)
    assert foo.closing == [0], "another may have had the same number"
    foo.drain(SHARDS)
    for now_ms in range(150, 3 * TIMEOUT_MS, INTERVAL_MS // 4):
        foo.look(SHARDS, now_ms)
    assert foo.epoch(0) > number > row.epoch


def test_a_take_that_was_on_its_way_when_the_table_was_found_out_is_not_adopted() -> None:
    table = MemoryTable()
    foo = Desk(table, "foo")
    foo.join()
    table.fault = lambda _, new: "lost" if isinstance(new, LeaseRow) and new.consumer_owner else "ok"
    foo.look(SHARDS, 0)
    table.fault = lambda _old, _new: "ok"
    assert table.row(0).consumer_owner == "foo-1"
    sequence = table.sequence(GROUP)
    assert sequence is not None
    table.put(replace(sequence, number=sequence.number + EPOCH_JUMP, distrusted=sequence.number + EPOCH_JUMP))
    foo.look_once(SHARDS, 50)
    assert table.row(0).consumer_owner is None
    foo.look(SHARDS, 100)
    assert foo.epoch(0) > sequence.number + EPOCH_JUMP


def test_whoever_comes_back_does_not_take_a_name_that_another_has_got_since_it_looked() -> None:
    table = MemoryTable()
    back = Desk(table, "foo", incarnation="foo-2")
    back.consumer.check_free(table.instances(GROUP))
    Desk(table, "foo", incarnation="foo-3").join()
    with pytest.raises(NameTaken):
        back.consumer.join(table.instances(GROUP))


def test_a_number_that_was_given_before_makes_no_epoch() -> None:
    table = MemoryTable()
    foo = holder(table)
    row = table.row(0)
    take = Change(kind=ChangeKind.TAKE, old=row, new=row, wants_number=True)
    with pytest.raises(StoreUnavailable):  # Drawn after a fail-over, for a row that was read before it.
        numbered(take, foo.epoch(0))
    assert table.row(0) == row
