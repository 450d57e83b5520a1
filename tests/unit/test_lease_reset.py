"""Resets of leased groups, step by step: back into rows that were cleaned up, whoever looks in between."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.group import GroupSettings
from shoal.core.lease import Change, ChangeKind, LeaseRow
from shoal.core.lease_reset import Resetting, numbers_max
from shoal.core.leasing import Outcome
from shoal.core.model import Shard, ShardId
from shoal.core.resharding import merge, split
from shoal.core.succession import standing
from shoal.lease_port import draw
from tests.unit.lease_table import GROUP, TIMEOUT_MS, Desk, MemoryTable, execute, filled, grown, view_of

SETTINGS = GroupSettings(timeout_ms=TIMEOUT_MS)
LOOSE = GroupSettings(timeout_ms=TIMEOUT_MS, in_order=False)
Shards = tuple[Shard, ...]


class Crashed(Exception):
    """Of a resetter."""


def reset(
    table: MemoryTable,
    shards: Shards,
    positions: dict[int, int],
    before_step: Callable[[], None] = lambda: None,
    settings: GroupSettings = SETTINGS,
    *,
    resharded: Callable[[Shards], Shards] = lambda shards: shards,
) -> tuple[list[ShardId], list[Change]]:
    """As the hub does it; which descendants had been read, and what was done."""
    wanted = {ShardId(shard): offset for shard, offset in positions.items()}
    resetting = Resetting("hub.1", group=GROUP, settings=settings, positions=wanted, starts={})
    done: list[Change] = []
    for _ in range(20):
        rows = table.list(GROUP)
        shards = resharded(shards)
        changes = resetting.plan(rows, shards, draw(table, GROUP, numbers_max(shards)))
        if not changes:
            return resetting.had_been_read, done
        for change in changes:
            before_step()
            if execute(table, change) is not Outcome.DONE:
                break
            resetting.settle(change)
            done.append(change)
    raise AssertionError("it never ends")


def consumable(table: MemoryTable, shards: Shards) -> set[int]:
    where = standing(table.list(GROUP), shards)
    return {int(row.shard) for row in where.rows.values() if where.is_eligible(row, in_order=True)}


def check_begun_anew(table: MemoryTable, shards: Shards, offset: int) -> None:
    """Shard 0 is to be consumed from there; everything else is there, knows its parents, and waits."""
    where = standing(table.list(GROUP), shards)
    assert not where.void
    assert sorted(where.rows) == [shard.id for shard in shards]
    assert (table.row(0).checkpoint, table.row(0).is_over) == (offset, False)
    assert consumable(table, shards) == {0}
    for row in where.rows.values():
        assert row.parents_born == tuple(table.row(parent).born for parent in row.parents)
        assert row.shard == 0 or row.owner_epoch != row.epoch, "whoever has a descendant is fenced"


def test_what_was_cleaned_up_is_made_again_and_everything_below_it_waits() -> None:
    table, shards, foo, _ = grown()
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 3, 4]
    read, done = reset(table, shards, {0: 3})
    assert read == [1, 2, 3, 4]
    check_begun_anew(table, shards, 3)
    assert table.row(1).is_over
    assert [table.row(shard).checkpoint for shard in (1, 2, 3, 4)] == [10, 5, 5, 5]
    kinds = [change.kind for change in done]
    assert kinds == sorted(kinds, key=[ChangeKind.LINK, ChangeKind.CREATE, ChangeKind.REWIND].index)
    born = [change.row.shard for change in done if isinstance(change.row, LeaseRow) and change.old is None]
    assert born == [1, 0], "children before parents"
    foo.look(shards, 3)
    assert foo.closing == [2, 3, 4]


def test_consumers_go_through_it_again_and_end_where_they_were() -> None:
    table, shards, foo, _ = grown()
    reset(table, shards, {0: 3})
    foo.look(shards, 3)
    foo.drain(shards)
    foo.look(shards, 3)
    assert foo.held == [0]
    foo.save(shards[0], 10)
    foo.release(shards[0])
    for _ in range(4):
        foo.look(shards, 4)
    assert foo.held == [2, 3, 4]
    assert [foo.consumer.leases[ShardId(shard)].checkpoint for shard in (2, 3, 4)] == [5, 5, 5]
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 3, 4], "and it is cleaned up once more"


def test_a_consumer_that_is_faster_than_the_reset_does_not_keep_it_from_ending() -> None:
    table, shards, foo, _ = grown()
    consumed: list[int] = []

    def consume() -> None:
        foo.look(shards, 3)
        foo.drain(shards)
        foo.look(shards, 3)
        if 0 in foo.held:
            consumed.append(foo.epoch(0))
            foo.save(shards[0], 10)
            foo.release(shards[0])
        foo.look(shards, 3)

    reset(table, shards, {0: 3}, consume)
    assert len(consumed) == 1, "once, and not again with every row that was cleaned up meanwhile"
    assert [table.row(shard).checkpoint for shard in (2, 3, 4)] == [5, 5, 5]


def test_a_shard_that_is_split_and_consumed_while_it_is_reset_begins_anew() -> None:
    table, old = MemoryTable(), filled(1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(old, 0)
    new = tuple(replace(shard, next_offset=10) for shard in split(old, old[0], None, 1))

    def consume() -> None:
        """Before the first step, and after the stream was looked at."""
        if table.load(GROUP, ShardId(1)) is not None:
            return
        foo.look(new, 1)
        foo.release(new[0], 10)
        foo.look(new, 1)
        for shard in (1, 2):
            foo.save(new[shard], 5)
        foo.look(new, 1)
        assert sorted(row.shard for row in table.list(GROUP)) == [1, 2]

    reset(table, old, {0: 3}, consume, resharded=lambda known: known if len(table.list(GROUP)) == 1 else new)
    check_begun_anew(table, new, 3)


def test_a_descendant_that_came_back_by_mistake_is_made_anew() -> None:
    table, shards, foo, history = grown()
    first = next(row for row in history if row.shard == 1)
    number = draw(table, GROUP, 1)[0]
    table.put(replace(first, born=number, revision=number, lease_id=number, parents_born=(0,)))
    reset(table, shards, {0: 3})
    check_begun_anew(table, shards, 3)
    assert table.row(1).is_over, "it had been consumed"
    foo.look(shards, 3)
    check_begun_anew(table, shards, 3)


def test_an_ancestor_that_came_back_by_mistake_is_not_made_to_count() -> None:
    table, shards = MemoryTable(), filled(2)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    first = table.row(0)
    for generation in (1, 2):
        after = merge(shards, shards[0], None, 1) if generation == 1 else split(shards, shards[2], None, 2)
        shards = tuple(replace(shard, next_offset=10) for shard in after)
        for shard in foo.held:
            foo.release(shards[shard], 10)
        for _ in range(2):
            foo.look(shards, generation)
    for shard in foo.held:
        foo.save(shards[shard], 5)
    for _ in range(3):
        foo.look(shards, 2)
    assert sorted(row.shard for row in table.list(GROUP)) == [3, 4]
    # One who found no rows at all, as a reset may have, makes the oldest; long after.
    number = draw(table, GROUP, 1)[0]
    made = replace(first, born=number, revision=number, lease_id=number, epoch=0, owner_epoch=0)
    table.put(replace(made, lease_owner=None, consumer_owner=None))
    reset(table, shards, {2: 3})
    assert consumable(table, shards) == {2}
    foo.look(shards, 3)
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 3, 4]


@pytest.mark.parametrize("settings", [SETTINGS, LOOSE], ids=["in order", "loose"])
def test_what_is_cleaned_up_below_a_row_that_was_just_made_is_made_again(settings: GroupSettings) -> None:
    table, shards, foo, _ = grown()
    shards = split(shards, shards[3], None, 3)
    shards = tuple(replace(shard, next_offset=10) if shard.is_open else shard for shard in shards)
    foo.release(shards[3], 10)
    foo.look(shards, 3)
    for shard in (5, 6):
        foo.save(shards[shard], 5)
    foo.look(shards, 3)
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 4, 5, 6]
    is_cleaned = False

    def clean() -> None:
        """As by someone who found shard 3 done, before its parents came back."""
        nonlocal is_cleaned
        rows = {row.shard: row for row in table.list(GROUP)}
        if not is_cleaned and 0 in rows:
            is_cleaned = table.delete(rows[ShardId(3)])

    reset(table, shards, {0: 3}, clean, settings)
    assert is_cleaned
    assert not standing(table.list(GROUP), shards).void
    assert table.row(0).checkpoint == 3


def test_a_group_without_order_goes_back_and_leaves_the_others_alone() -> None:
    table, shards, foo, _ = grown()
    epochs = {shard: table.row(shard).epoch for shard in (2, 3, 4)}
    read, _ = reset(table, shards, {0: 3}, settings=LOOSE)
    assert read == []
    where = standing(table.list(GROUP), shards)
    assert not where.void
    assert table.row(0).checkpoint == 3
    assert {shard: table.row(shard).epoch for shard in (2, 3, 4)} == epochs
    assert foo.closing == []


def test_the_ancestors_of_a_shard_that_nobody_has_looked_at_are_consumed_all_the_same() -> None:
    table, shards = MemoryTable(), filled(1)
    shards = split(shards, shards[0], None, 0)
    reset(table, shards, {2: 0})
    where = standing(table.list(GROUP), shards)
    assert consumable(table, shards) == {0}
    assert [shard.id for shard in where.missing] == [1]
    assert not where.void


def test_a_shard_that_nobody_has_looked_at_yet_begins_where_it_is_told() -> None:
    table, shards = MemoryTable(), filled(2)
    read, done = reset(table, shards, {1: 4})
    assert (read, [change.kind for change in done]) == ([], [ChangeKind.CREATE, ChangeKind.REWIND])
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    assert [foo.consumer.leases[ShardId(shard)].checkpoint for shard in (0, 1)] == [0, 4]


def test_one_that_was_taken_between_the_steps_is_fenced_after_all() -> None:
    """A look from before the parent was there takes a child that must wait by now."""
    table, shards, foo, _ = grown()
    foo.release(shards[2])
    late = Desk(table, "late")
    late.join()
    view = view_of(table, shards)

    def take() -> None:
        if table.load(GROUP, ShardId(0)) is not None and not late.held:
            row = table.row(2)
            # The same row but for what the reset told it: as a look between the steps would have shown it.
            shown = replace(view, rows=[row if old.shard == 2 else old for old in view.rows])
            told = late.consumer.look(shown, now_ms=0, watch_ms=0)
            late.hear(told)
            late.carry_out(told.changes, shards)

    reset(table, shards, {0: 3}, take)
    assert 2 in [shard for shard, _ in late.opened]
    assert table.row(2).is_fenced
    check_begun_anew(table, shards, 3)


def test_who_takes_a_child_before_its_parent_is_open_again_is_fenced_too() -> None:
    """The parent's row is still there, and over: until it is reset, its children may be taken."""
    table, shards = MemoryTable(), filled(1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    shards = split(shards, shards[0], None, 1)
    shards = tuple(replace(shard, next_offset=10) for shard in shards)
    foo.look(shards, 1)
    foo.release(shards[0], 10)
    foo.look(shards, 1)
    assert foo.held == [1, 2]

    def take_turns() -> None:
        for shard in foo.held:
            foo.release(shards[shard])
        foo.look(shards, 2)

    reset(table, shards, {0: 3}, take_turns)
    check_begun_anew(table, shards, 3)


@given(st.data())
def test_whoever_looks_between_the_steps_or_acts_on_an_old_look_it_ends_the_same(data: st.DataObject) -> None:
    table, shards, foo, _ = grown()
    late = Desk(table, "late")
    late.join()
    planned: list[tuple[Desk, list[Change]]] = []
    left = [12]  # The world comes to rest in the end: a reset that is always overtaken says StoreBusy.

    def meddle() -> None:
        left[0] -= 1
        for desk in (foo, late):
            match (
                data.draw(st.sampled_from(["nothing", "look", "plan", "act"])) if left[0] > 0 else "nothing"
            ):
                case "look":
                    desk.look_once(shards, 3)
                case "plan":
                    told = desk.consumer.look(view_of(table, shards), now_ms=3, watch_ms=3)
                    desk.hear(told)
                    planned.append((desk, told.changes))
                case "act" if planned:
                    whose, changes = planned.pop(0)
                    whose.carry_out(changes, shards)
                case _:
                    pass

    read, _ = reset(table, shards, {0: 3}, meddle)
    assert set(read) <= {1, 2, 3, 4}
    check_begun_anew(table, shards, 3)
    for whose, changes in planned:  # What was planned long ago comes in at last, and changes nothing.
        whose.carry_out(changes, shards)
    check_begun_anew(table, shards, 3)


@pytest.mark.parametrize("steps", range(12))
def test_a_reset_that_dies_between_two_steps_loses_nothing_and_can_be_asked_for_again(steps: int) -> None:
    table, shards, foo, _ = grown()
    before = {row.shard: row.checkpoint for row in table.list(GROUP)}
    left = [steps]

    def die() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crashed

    try:
        reset(table, shards, {0: 3}, die)
    except Crashed:
        where = standing(table.list(GROUP), shards)
        assert all(where.rows[ShardId(shard)].checkpoint >= at for shard, at in before.items())
        assert not {row.shard for row in where.void} & set(before)
        assert consumable(table, shards) in ({2, 3, 4}, {0})
        for now_ms in range(10, 14):
            foo.look(shards, now_ms)
    reset(table, shards, {0: 3})
    check_begun_anew(table, shards, 3)
