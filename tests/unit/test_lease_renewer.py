"""The renewer: the reference cases of other lease systems."""

from dataclasses import replace

import pytest

from shoal.core.errors import (
    Fenced,
    NotOwner,
)
from shoal.core.lease import fenced, taken
from shoal.core.model import ShardId
from tests.unit.lease_table import (
    GROUP,
    TIMEOUT_MS,
    Desk,
    MemoryTable,
    filled,
    holder,
    instance,
    owned,
    take_away,
)
from tests.unit.reference_cases import differs, ours

SHARDS = filled(1)
USABLE_MS = int(TIMEOUT_MS * 0.95)


# --- 1.16.2. -----------------------------------------------------------------------------------------


@ours("R1")
def test_a_renewal_raises_the_lease_id_and_moves_the_deadline() -> None:
    table = MemoryTable()
    foo = holder(table)
    before = table.row(0).lease_id
    foo.beat(500)
    assert table.row(0).lease_id == before + 1
    assert foo.may_act(0, 500 + USABLE_MS - 1)
    assert not foo.may_act(0, 500 + USABLE_MS)


@ours("R2")
def test_a_lease_that_someone_took_is_lost_at_the_next_renewal() -> None:
    table = MemoryTable()
    foo = holder(table)
    epoch = foo.epoch(0)
    take_away(table)
    foo.beat(100)
    assert foo.held == []
    assert foo.lost == [(0, epoch)]


@ours("R3")
def test_after_leaving_nothing_is_held() -> None:
    table = MemoryTable()
    foo = holder(table)
    foo.leave(SHARDS, 10)
    assert foo.held == []
    assert table.row(0).consumer_owner is None
    assert table.instances(GROUP) == []


@ours("R4")
def test_what_is_handed_out_cannot_change_what_is_held() -> None:
    table = MemoryTable()
    foo = holder(table)
    foo.consumer.leases.clear()
    with pytest.raises(AttributeError):
        foo.consumer.leases[ShardId(0)].deadline_ms = 1  # type: ignore[misc]
    assert foo.held == [0]


@differs(
    "R5", "a checkpoint is stored, and renews nothing: only what was asked as a renewal moves a deadline"
)
def test_a_checkpoint_is_stored_and_leaves_the_lease_id_alone() -> None:
    table = MemoryTable()
    foo = holder(table)
    before = table.row(0)
    foo.save(SHARDS[0], 4)
    after = table.row(0)
    assert (after.checkpoint, after.lease_id) == (4, before.lease_id)
    assert after.revision > before.revision
    assert not foo.may_act(0, USABLE_MS)


@ours("R6")
def test_a_checkpoint_after_an_unseen_loss_is_fenced_and_the_lease_is_dropped() -> None:
    table = MemoryTable()
    foo = holder(table)
    epoch = foo.epoch(0)
    take_away(table)
    with pytest.raises(Fenced):
        foo.save(SHARDS[0], 4)
    assert foo.held == []
    assert foo.lost == [(0, epoch)], "who holds a shard no more is told so, whatever became of its save"
    assert table.row(0).checkpoint == 0


@ours("R7")
def test_a_checkpoint_under_the_epoch_before_is_refused_and_the_lease_kept() -> None:
    table = MemoryTable()
    foo = holder(table)
    old = foo.epoch(0)
    foo.release(SHARDS[0])
    foo.look(SHARDS, 10)
    assert foo.epoch(0) > old
    with pytest.raises(NotOwner):
        foo.consumer.checkpoint(SHARDS[0], old, 4)
    assert foo.held == [0]


@differs("R8", "a lease has a deadline from the moment it is taken, counted from when the take was asked")
def test_a_lease_just_taken_may_act_at_once_and_no_longer_than_its_timeout() -> None:
    table = MemoryTable()
    foo = holder(table)
    assert foo.may_act(0, 0)
    assert not foo.may_act(0, USABLE_MS)


@differs(
    "R9",
    "past its deadline a lease does not act; a renewal that still finds the row ours makes it valid again",
)
def test_a_lease_past_its_deadline_does_not_act_until_a_renewal_finds_it_still_ours() -> None:
    table = MemoryTable()
    foo = holder(table)
    assert not foo.may_act(0, 10 * TIMEOUT_MS)
    foo.beat(10 * TIMEOUT_MS)
    assert foo.may_act(0, 10 * TIMEOUT_MS)
    assert foo.lost == []


@differs(
    "R10",
    "a restarted consumer is another incarnation, and waits for a release or the watch",
)
def test_rows_of_the_same_incarnation_are_adopted_and_rows_of_the_name_alone_are_not() -> None:
    table = MemoryTable()
    owned(table, {"foo": 2}, joined=False)
    table.put(replace(table.row(1), lease_owner="foo-0", consumer_owner="foo-0"))
    foo = Desk(table, "foo")
    foo.join()
    epoch = table.row(0).epoch
    foo.look_once(filled(2), 0)
    assert foo.opened == [(0, epoch)]


@differs(
    "R11",
    "a row that is ours and was asked back is adopted, drained and released: nobody else can let go of it",
)
def test_an_adopted_row_that_was_asked_back_is_to_be_closed() -> None:
    table = MemoryTable()
    owned(table, {"foo": 1, "bar": 0}, joined=True)
    table.put(replace(table.row(0), lease_owner="bar-1"))
    foo = Desk(table, "foo")
    foo.join()
    foo.look(SHARDS, 0)
    assert foo.closing == [0]


@ours("R12")
def test_a_renewal_is_kept_if_we_consume_the_shard_and_dropped_if_another_does() -> None:
    table = MemoryTable()
    foo = holder(table, filled(2))
    table.put(
        replace(table.row(0), lease_owner="bar-1", revision=table.row(0).revision + 1)
    )  # Asked back: we still consume it.
    take_away(table, 1)
    foo.beat(100)
    assert (foo.held, foo.closing) == ([0], [0])
    assert [shard for shard, _ in foo.lost] == [1]


@ours("R13")
def test_a_store_that_fails_changes_nothing_in_memory() -> None:
    table = MemoryTable()
    foo = holder(table)
    before = dict(foo.consumer.leases)
    table.fault = lambda _old, _new: "failed"
    foo.save(SHARDS[0], 4)
    foo.beat(100)
    assert foo.consumer.leases == before
    table.fault = lambda _old, _new: "ok"
    foo.save(SHARDS[0], 4)
    assert table.row(0).checkpoint == 4


# --- 2.6, as far as it is about renewing. ------------------------------------------------------------


@differs("S7", "the owner learns of a steal by its renewal being refused, or by any later look at the row")
def test_a_steal_is_learned_from_a_row_that_is_not_older_than_ours() -> None:
    table = MemoryTable()
    foo = holder(table)
    stale = table.row(0)
    foo.beat(100)
    table.put(replace(stale, lease_owner="bar-1"))  # Read before our renewal.
    foo.look_once(SHARDS, 100)
    assert foo.closing == []


@ours("S8")
def test_a_checkpoint_by_another_incarnation_is_refused() -> None:
    table = MemoryTable()
    foo = holder(table)
    with pytest.raises(NotOwner):
        fenced(table.row(0), ShardId(0), "foo-2", foo.epoch(0))


@ours("S9")
def test_a_lease_is_released_once() -> None:
    table = MemoryTable()
    foo = holder(table)
    epoch = foo.epoch(0)
    foo.release(SHARDS[0], 5)
    released = table.row(0)
    assert foo.consumer.release(SHARDS[0], epoch, 5) is None
    assert foo.consumer.release(SHARDS[0], epoch + 1, 5) is None
    assert table.row(0) == released


@ours("S10")
@pytest.mark.parametrize("kind", ["renew", "save", "release", "take"])
def test_a_change_of_a_row_as_it_was_before_is_refused(kind: str) -> None:
    table = MemoryTable()
    foo = holder(table)
    row = table.row(0)
    if kind == "take":
        foo.release(SHARDS[0])
        row = table.row(0)
        table.put(replace(row, revision=row.revision + 1))
        assert not table.swap(row, taken(row, instance("bar")))
        return
    table.put(replace(row, revision=row.revision + 1, stood_ms=10))
    if kind == "renew":
        change = foo.consumer.beat(10)[1]
    elif kind == "save":
        change = foo.consumer.checkpoint(SHARDS[0], foo.epoch(0), 3)
    else:
        released = foo.consumer.release(SHARDS[0], foo.epoch(0), 3)
        assert released is not None
        change = released
    assert change.old is not None
    assert change.new is not None
    assert not table.swap(change.old, change.new)
