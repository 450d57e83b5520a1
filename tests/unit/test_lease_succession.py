"""Rows and lineage: who gets a row when, what waits, what is done, and what never comes back."""

from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.claims import is_at_end
from shoal.core.group import GroupSettings
from shoal.core.lease import ChangeKind, LeaseRow, created, ended, numbered
from shoal.core.lineage import ancestors
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.resharding import merge, split
from shoal.core.succession import standing
from shoal.lease_port import draw
from tests.unit.lease_table import (
    GROUP,
    TIMEOUT_MS,
    Desk,
    MemoryTable,
    execute,
    filled,
    grown,
    instance,
    view_of,
)
from tests.unit.lineages import Shards, lineages
from tests.unit.reference_cases import differs, ours

GRAPHS: dict[str, dict[int, tuple[int, ...]]] = {
    "A": {0: (), 1: (), 2: (), 3: (), 4: (), 5: (), 6: (0, 1), 7: (2, 3), 8: (6, 7), 9: (5,), 10: (5,)},
    "B": {
        0: (),
        1: (),
        2: (0, 1),
        3: (2,),
        4: (2,),
        5: (3, 4),
        6: (5,),
        7: (5,),
        8: (6, 7),
        9: (8,),
        10: (8,),
    },
    "C": {0: (), 1: (), 2: (), 3: (), 4: (0,), 5: (0,), 6: (2, 3), 7: (4,), 8: (4,), 9: (5,), 10: (5,)},
}


def graph(name: str) -> Shards:
    """A lineage by its parents; who has a child is closed. Every shard holds ten records."""
    parents = GRAPHS[name]
    closed = {parent for family in parents.values() for parent in family}
    return tuple(
        Shard(
            id=ShardId(shard),
            begin=shard,
            end=shard + 1,
            status=ShardStatus.CLOSED if shard in closed else ShardStatus.OPEN,
            parents=tuple(ShardId(parent) for parent in family),
            next_offset=10,
        )
        for shard, family in sorted(parents.items())
    )


def with_rows(shards: Shards, existing: Collection[int]) -> MemoryTable:
    """A table in which these shards have rows, of which nothing has been consumed."""
    table = MemoryTable()
    borns: dict[int, int] = {}
    for shard in sorted(existing):
        borns[shard] = draw(table, GROUP, 1)[0]
        table.put(
            replace(
                created(
                    GROUP,
                    shards[shard],
                    0,
                    owner=instance("nobody"),
                    parents_born=tuple(borns.get(parent, 0) for parent in shards[shard].parents),
                    bound=True,
                ),
                born=borns[shard],
                revision=borns[shard],
                lease_id=borns[shard],
            )
        )
    return table


def consumable(table: MemoryTable, shards: Shards) -> set[int]:
    where = standing(table.list(GROUP), shards)
    return {row.shard for row in where.rows.values() if where.is_eligible(row, in_order=True)}


Row = tuple[str, set[int], set[int], set[int]]
"""Graph, rows that are there, what may be consumed with `latest`, and from the beginning."""

SAME: list[Row] = [
    ("A", set(), {4, 8, 9, 10}, {0, 1, 2, 3, 4, 5}),
    ("A", {4, 9, 10}, {4, 8, 9, 10}, {0, 1, 2, 3, 4, 9, 10}),
    ("A", {4, 5, 6, 7}, {4, 5, 6, 7}, {4, 5, 6, 7}),
    ("A", set(range(8)), {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}),
    ("A", {0, 1, 4, 7, 9, 10}, {0, 1, 4, 7, 9, 10}, {0, 1, 4, 7, 9, 10}),
    ("B", set(), {9, 10}, {0, 1}),
    ("B", {5}, {5}, {5}),
    ("B", set(range(6)), {0, 1}, {0, 1}),
    ("C", {9, 10}, {1, 6, 7, 8, 9, 10}, {1, 2, 3, 4, 9, 10}),
]
OTHER: list[Row] = [
    ("A", {3, 4, 5}, {3, 4, 5}, {0, 1, 2, 3, 4, 5}),
    ("A", {4, 5, 7}, {4, 5, 7}, {0, 1, 4, 5, 7}),
    ("A", {2, 6}, {2, 4, 6, 9, 10}, {2, 3, 4, 5, 6}),
    ("B", {6}, {6}, {6, 7}),
]


def sync(case: Row) -> tuple[set[int], set[int]]:
    """What may be consumed after leases for the missing shards were made, by both start positions."""
    name, existing, _, _ = case
    shards = graph(name)
    found = []
    for starts in ({shard.id: shard.next_offset for shard in shards}, {}):
        table = with_rows(shards, existing)
        desk = Desk(table, "foo")
        desk.join()
        desk.carry_out(desk.consumer.retire(0), shards)  # It makes rows, and takes none.
        desk.look(shards, 0, starts)
        found.append(consumable(table, shards))
        skipped = {one for shard in existing for one in ancestors(shards, shard)} - existing
        made = {new.shard for old, new in table.history if old is None and isinstance(new, LeaseRow)}
        assert made == {shard.id for shard in shards} - skipped - existing
    return found[0], found[1]


@differs(
    "Y A0 A4 A5 A6 A7 B0 B2 B3 C0",
    "every shard gets its row at once, children too; what is consumed is the same",
)
@pytest.mark.parametrize("case", SAME, ids=lambda case: f"{case[0]}{sorted(case[1])}")
def test_leases_are_made_for_all_shards_and_the_same_may_be_consumed(case: Row) -> None:
    assert sync(case) == case[2:]


@differs(
    "Y A1 A2 A3 B1",
    "`latest` was resolved when the group was made: what was closed by then is done",
)
@pytest.mark.parametrize("case", OTHER, ids=lambda case: f"{case[0]}{sorted(case[1])}")
def test_a_closed_shard_without_a_row_is_done_for_a_group_that_began_at_the_end(case: Row) -> None:
    assert sync(case) == case[2:]


@differs("S15", "a row is made only if absent, and shards are never unlisted, so that there is no garbage")
def test_parents_get_their_rows_before_their_children() -> None:
    shards = graph("A")
    table = with_rows(shards, ())
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    born = {row.shard: row.born for row in table.list(GROUP)}
    assert len(born) == len(shards)
    for shard in shards:
        assert all(born[parent] < born[shard.id] for parent in shard.parents)


@ours("S16")
@pytest.mark.parametrize(
    ("parent", "is_consumed"), [("none", True), ("cleaned up", True), ("not ended", False), ("ended", True)]
)
def test_a_child_is_consumed_after_its_parents(parent: str, is_consumed: bool) -> None:
    shards = graph("B")
    child = 0 if parent == "none" else 2
    table = with_rows(shards, {2} if parent == "cleaned up" else {0, 1, 2})
    if parent == "ended":
        for shard in (0, 1):
            table.put(ended(table.row(shard)))
    assert (child in consumable(table, shards)) is is_consumed


# --- Ours: in order. ---------------------------------------------------------------------------------


def test_a_child_is_neither_taken_nor_counted_while_its_parent_is_read() -> None:
    table = MemoryTable()
    shards = filled(2)
    foo, bar = Desk(table, "bar"), Desk(table, "foo")
    for desk in (foo, bar):
        desk.join()
    for desk in (foo, bar):
        desk.look(shards, 0)
    shards = split(shards, shards[0], None, 1)
    foo.look(shards, 10)
    bar.look(shards, 10)
    assert len(foo.held) == len(bar.held) == 1
    owner = foo if foo.held == [0] else bar
    owner.save(shards[0], 10)  # The end: in the same change the children may go.
    for now_ms in (20, 30, 40):
        for desk in (foo, bar):
            desk.look(shards, now_ms)
    assert sorted([*foo.held, *bar.held]) == [0, 1, 2, 3]
    assert table.row(2).epoch > table.row(0).epoch


def test_a_group_that_is_not_in_order_reads_children_at_once() -> None:
    table = MemoryTable()
    shards = split(filled(1), filled(1)[0], None, 1)
    foo = Desk(table, "foo", settings=GroupSettings(timeout_ms=TIMEOUT_MS, in_order=False))
    foo.join()
    foo.look(shards, 0)
    assert foo.held == [0, 1, 2]


def test_what_was_there_when_a_group_became_ordered_waits_for_nobody() -> None:
    shards = split(filled(1), filled(1)[0], None, 1)
    rows = with_rows(shards, {0, 1, 2}).list(GROUP)
    where = standing(rows, shards, {ShardId(1)})
    assert [where.is_waiting(row, in_order=True) for row in rows] == [False, False, True]


def test_a_closed_shard_that_never_held_a_record_is_born_over() -> None:
    table = MemoryTable()
    shards = split(filled(1, records=0), filled(1, records=0)[0], None, 1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    assert table.row(0).is_over
    assert foo.held == [1, 2]


def test_a_shard_that_is_closed_where_its_checkpoint_stands_ends_by_itself() -> None:
    table = MemoryTable()
    shards = filled(1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    foo.save(shards[0], 10)
    assert not table.row(0).is_over
    shards = split(shards, shards[0], None, 1)
    foo.look(shards, 10)
    assert table.row(0).is_over
    foo.look(shards, 20)
    assert foo.held == [0, 1, 2]  # Its owner lets go of it when it has closed it.


# --- Ours: cleaning up. ------------------------------------------------------------------------------


def test_rows_go_when_their_children_have_got_somewhere_and_their_parents_are_gone() -> None:
    table, shards, foo, _ = grown()
    assert [shard.id for shard in shards if not shard.is_open] == [0, 1]
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 3, 4]
    assert foo.held == [2, 3, 4]
    assert foo.changes.count(ChangeKind.CLEAN) == 2


def test_a_row_stays_while_a_child_has_not_begun() -> None:
    table = MemoryTable()
    shards = filled(1)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    foo.save(shards[0], 10)
    shards = split(shards, shards[0], None, 1)
    shards = tuple(replace(shard, next_offset=10) for shard in shards)
    foo.release(shards[0], 10)
    for _ in range(3):
        foo.look(shards, 10)
    foo.save(shards[1], 5)
    foo.look(shards, 10)
    assert table.row(0).is_over
    foo.save(shards[2], 1)
    foo.look(shards, 10)
    assert table.load(GROUP, ShardId(0)) is None


def test_a_row_that_was_cleaned_up_is_not_made_again() -> None:
    table, shards, _, _ = grown()
    late = Desk(table, "late")
    late.join()
    late.look(shards, 10)
    assert sorted(row.shard for row in table.list(GROUP)) == [2, 3, 4]
    assert standing(table.list(GROUP), shards).ended == {0, 1}


@pytest.mark.parametrize("shard", [0, 1])
def test_a_row_made_again_by_one_who_thought_too_long_is_void_and_goes(shard: int) -> None:
    table, shards, foo, rows = grown()
    first = next(row for row in rows if row.shard == shard)
    number = draw(table, GROUP, 1)[0]
    table.put(replace(first, born=number, revision=number, lease_id=number))
    where = standing(table.list(GROUP), shards)
    assert [row.shard for row in where.void] == [shard]
    assert where.ended == {0, 1}
    held = foo.held
    foo.look_once(shards, 20)
    assert table.load(GROUP, ShardId(shard)) is None
    assert foo.held == held


def test_a_late_creation_planned_before_anyone_else_came_brings_nothing_back() -> None:
    table, shards, _, _ = grown()
    empty = MemoryTable()
    slow = Desk(empty, "slow")
    slow.join()
    told = slow.consumer.look(view_of(empty, filled(1)), now_ms=0, watch_ms=0)
    creation = next(change for change in told.changes if change.kind is ChangeKind.CREATE)
    execute(table, numbered(creation, 1))  # Number 1 was drawn long ago: the first row had a later one.
    where = standing(table.list(GROUP), shards)
    assert [row.shard for row in where.void] == [0]
    assert where.ended == {0, 1}


@given(lineages(changes_max=6, shards_max=4), st.data())
def test_whatever_is_cleaned_up_the_same_shards_have_ended_and_none_is_made_again(
    shards: Shards, data: st.DataObject
) -> None:
    """Cleaning up, in any order that the rule allows, changes nothing that anyone can see."""
    shards = tuple(replace(shard, next_offset=10) for shard in shards)
    table = with_rows(shards, [shard.id for shard in shards])
    for shard in shards:  # Parents first, a group reads as far as it may.
        row = table.row(shard.id)
        if all(table.row(parent).is_over for parent in shard.parents):
            offset = data.draw(st.sampled_from([0, 5, 10]))
            row = replace(row, checkpoint=offset, is_over=is_at_end(shard, offset))
            table.put(row)
    before = standing(table.list(GROUP), shards)
    for _ in range(len(shards)):
        now = standing(table.list(GROUP), shards)
        assert now.ended == before.ended
        assert not now.void
        assert not now.missing
        if not now.done:
            break
        victim = data.draw(st.sampled_from(sorted(now.done, key=lambda row: row.shard)))
        assert table.delete(victim)
    after = {row.shard for row in table.list(GROUP)}
    assert {shard.id for shard in shards if shard.is_open} <= after


def test_a_merge_waits_for_both_parents() -> None:
    table = MemoryTable()
    shards = filled(2)
    foo = Desk(table, "foo")
    foo.join()
    foo.look(shards, 0)
    shards = merge(shards, shards[0], shards[1], 1)
    foo.look(shards, 1)
    foo.save(shards[0], 10)
    foo.look(shards, 1)
    assert foo.held == [0, 1]
    foo.save(shards[1], 10)
    foo.look(shards, 1)
    assert foo.held == [0, 1, 2]


def test_a_shard_that_is_over_is_vacated_when_its_owner_can_act_no_more() -> None:
    table = MemoryTable()
    shards = filled(1)
    dead = Desk(table, "dead")
    dead.join()
    dead.look(shards, 0)
    shards = split(shards, shards[0], None, 1)
    dead.save(shards[0], 10)
    heir = Desk(table, "heir")
    heir.join()
    for now_ms in range(0, 2 * TIMEOUT_MS, 50):
        heir.beat(now_ms)
        heir.look(shards, now_ms)
    assert table.row(0).is_over
    assert table.row(0).consumer_owner is None
    assert heir.held == [1, 2]
