"""The taker: the reference cases of other lease systems."""

from dataclasses import replace

import pytest

from shoal.core.group import GroupSettings
from shoal.core.lease import ChangeKind, InstanceRow
from tests.unit.lease_table import (
    GROUP,
    INTERVAL_MS,
    TIMEOUT_MS,
    Desk,
    MemoryTable,
    filled,
    instance,
    joined,
    owned,
    view_of,
    watch,
)
from tests.unit.reference_cases import differs, ours

BOUNDED = GroupSettings(timeout_ms=TIMEOUT_MS, handover_timeout_ms=300)


# --- 1.16.1, the taker. ------------------------------------------------------------------------------


@ours("T1")
def test_a_free_lease_is_taken() -> None:
    table = MemoryTable()
    owned(table, {None: 1})
    (foo,) = joined(table, "foo")
    foo.look(filled(1), 0)
    assert foo.held == [0]


@ours("T2")
def test_a_lease_that_is_renewed_is_not_taken_however_long_one_looks() -> None:
    table = MemoryTable()
    foo, bar = joined(table, "foo", "bar")
    shards = filled(1)
    bar.look(shards, 0)
    for now_ms in range(0, 5 * TIMEOUT_MS, 50):
        if now_ms % INTERVAL_MS == 0:
            bar.beat(now_ms)
        foo.look(shards, now_ms)
    assert (bar.held, foo.held) == ([0], [])
    assert ChangeKind.WATCH not in foo.changes


@differs(
    "T3", "a consumer that finds its own lease expired goes on with it under the same epoch: nobody had it"
)
def test_an_own_lease_that_expired_is_renewed_under_its_epoch() -> None:
    table = MemoryTable()
    (foo,) = joined(table, "foo")
    foo.look(filled(1), 0)
    epoch = foo.epoch(0)
    table.put(replace(table.row(0), stood_ms=5 * TIMEOUT_MS))
    assert not foo.may_act(0, 5 * TIMEOUT_MS)
    foo.look(filled(1), 5 * TIMEOUT_MS)
    foo.beat(5 * TIMEOUT_MS)
    assert foo.may_act(0, 5 * TIMEOUT_MS)
    assert foo.epoch(0) == epoch


@ours("T4")
def test_a_lease_that_is_never_renewed_is_taken_once_it_was_watched_for_its_timeout() -> None:
    table = MemoryTable()
    owned(table, {"bar": 1})
    (foo,) = joined(table, "foo")
    watch(foo, 1, TIMEOUT_MS - 50)
    assert foo.held == []
    watch(foo, 1, 2 * TIMEOUT_MS)
    assert foo.held == [0]


@ours("T5")
def test_free_leases_are_taken_up_to_the_target_and_no_further() -> None:
    table = MemoryTable()
    owned(table, {None: 3, "bar": 1})
    (foo,) = joined(table, "foo")
    foo.look(filled(4), 0)
    assert len(foo.held) == 2


@differs(
    "T6",
    "a free lease is not old because one has never seen it; it is anyone's once it was watched for a timeout",
)
def test_what_another_was_to_take_is_anyones_after_a_timeout() -> None:
    table = MemoryTable()
    owned(table, {None: 3, "bar": 1})
    (foo,) = joined(table, "foo")
    shards = filled(4)
    for now_ms in range(0, 3 * TIMEOUT_MS, 50):
        bar = table.row(3)
        table.put(replace(bar, lease_id=bar.lease_id + 1, revision=bar.revision + 1, stood_ms=0))
        beaten = table.rows[GROUP, "instance", "bar"]
        assert isinstance(beaten, InstanceRow)
        table.put(replace(beaten, counter=beaten.counter + 1, revision=beaten.revision + 1, stood_ms=0))
        foo.beat(now_ms)
        foo.look(shards, now_ms)
        if now_ms == TIMEOUT_MS - 50:
            assert len(foo.held) == 2
    assert foo.held == [0, 1, 2]


@ours("T7")
def test_nobody_steals_from_one_who_holds_only_one_more() -> None:
    table = MemoryTable()
    owned(table, {"bar": 2, "baz": 2, "foo": 1})
    foo = Desk(table, "foo")
    foo.join()
    foo.look(filled(5), 0)
    assert ChangeKind.STEAL not in foo.changes


@differs("T8", "steals come in batches that level the fullest, not one at a time")
def test_a_steal_levels_the_fullest_at_once() -> None:
    table = MemoryTable()
    shards = owned(table, {"bar": 1, "baz": 5})
    (foo,) = joined(table, "foo")
    foo.look(filled(6), 0)
    stolen = [row.shard for row in table.list(GROUP) if row.lease_owner == "foo-1"]
    assert len(stolen) == 2
    assert set(stolen) <= set(shards["baz"])


@differs("T9", "what is still missing after the free leases is stolen in the same look")
def test_free_leases_and_steals_come_in_one_look() -> None:
    table = MemoryTable()
    owned(table, {None: 1, "bar": 3})
    (foo,) = joined(table, "foo")
    foo.look(filled(4), 0)
    assert foo.held == [0]
    assert [row.shard for row in table.list(GROUP) if row.is_stolen] == [3]


@ours("T10")
def test_a_lease_of_nobody_counts_for_nobody() -> None:
    table = MemoryTable()
    owned(table, {None: 1, "foo": 1, "bar": 1, "baz": 1})
    qux = Desk(table, "qux")
    qux.join()
    qux.look(filled(4), 0)
    assert qux.held == [0]
    assert ChangeKind.STEAL not in qux.changes


@ours("T11")
def test_expired_leases_count_for_nobody() -> None:
    table = MemoryTable()
    owned(table, {"bar": 2, "baz": 2}, joined=False)
    for row in table.list(GROUP):
        table.put(replace(row, stood_ms=TIMEOUT_MS))
    (foo,) = joined(table, "foo")
    foo.look(filled(4), 0)
    assert foo.held == [0, 1, 2, 3]


@differs("T12", "what is taken beyond the target is judged by the lease's own timeout, not by a multiplier")
@pytest.mark.parametrize(("stood_ms", "held"), [(TIMEOUT_MS - 1, []), (TIMEOUT_MS, [0])])
def test_a_lease_let_go_for_another_is_neglected_after_exactly_a_timeout(
    stood_ms: int, held: list[int]
) -> None:
    table = MemoryTable()
    owned(table, {None: 1, "bar": 0})
    table.put(replace(table.row(0), lease_owner="bar-1", stood_ms=stood_ms))
    (foo,) = joined(table, "foo")
    foo.look(filled(1), 0)
    assert foo.held == held


@ours("T13")
def test_all_free_leases_are_taken_if_the_target_allows_it() -> None:
    table = MemoryTable()
    owned(table, {"bar": 3, None: 3})
    (foo,) = joined(table, "foo")
    foo.look(filled(6), 0)
    assert foo.held == [3, 4, 5]


@differs("T14", "a steal leaves lease_id alone and is compared with the row as read: a slow look only fails")
def test_a_steal_from_an_old_look_changes_nothing() -> None:
    table = MemoryTable()
    owned(table, {"bar": 4})
    (foo,) = joined(table, "foo")
    told = foo.consumer.look(view_of(table, filled(4)), now_ms=0, watch_ms=0)
    for row in table.list(GROUP):
        table.put(replace(row, lease_id=row.lease_id + 1, revision=row.revision + 1))
    before = dict(table.rows)
    assert foo.carry_out(told.changes, filled(4)) == []
    assert table.rows == before


@ours("T15")
@pytest.mark.parametrize("owner", [None, "bar"])
def test_a_take_raises_the_lease_id_by_one_and_the_epoch(owner: str | None) -> None:
    table = MemoryTable()
    owned(table, {owner: 1}, joined=False)
    table.put(replace(table.row(0), stood_ms=TIMEOUT_MS))
    before = table.row(0)
    (foo,) = joined(table, "foo")
    foo.look(filled(1), 0)
    after = table.row(0)
    assert after.lease_id == before.lease_id + 1
    assert after.epoch > before.epoch
    assert (after.lease_owner, after.consumer_owner, after.owner_epoch) == ("foo-1", "foo-1", after.epoch)


# --- 1.16.4, counts. ---------------------------------------------------------------------------------


@ours("D1 empty", "D2 one worker gets all", "D3 3 on 2 all assigned", "D5 2/0 one moved")
@pytest.mark.parametrize(
    ("counts", "after"),
    [({}, []), ({None: 3}, [3]), ({None: 3, "bar": 0}, [1, 2]), ({"bar": 2}, [1, 1])],
)
def test_counts_end_within_one(counts: dict[str | None, int], after: list[int]) -> None:
    table = MemoryTable()
    owned(table, counts)
    shards = filled(sum(counts.values())) if counts else ()
    desks = joined(table, "foo", *(name for name in counts if name is not None))
    for now_ms in range(0, 500, 50):
        for desk in desks:
            desk.look(shards, now_ms)
            desk.drain(shards)
    held = sorted(sum(row.lease_owner == f"{desk.name}-1" for row in table.list(GROUP)) for desk in desks)
    assert held == after if counts else held == [0]


@ours("D4 balanced, no move", "D9 a dead worker gets none")
def test_nothing_moves_in_a_balanced_group_and_the_dead_get_nothing() -> None:
    table = MemoryTable()
    owned(table, {"foo": 2, "bar": 2})
    table.put(replace(instance("dead"), stood_ms=TIMEOUT_MS))
    foo = Desk(table, "foo")
    foo.join()
    foo.look(filled(4), 0)
    assert set(foo.changes) == {ChangeKind.JOIN, ChangeKind.RENEW, ChangeKind.BURY}
    assert foo.held == [0, 1]


@ours("D6 a pending hand-over is not moved, one whose thief is gone may be")
def test_what_is_being_handed_over_is_not_stolen_again_unless_its_thief_is_gone() -> None:
    table = MemoryTable()
    owned(table, {"bar": 3, "baz": 0})
    table.put(replace(table.row(2), lease_owner="baz-1"))
    (foo,) = joined(table, "foo")
    foo.look(filled(3), 0)
    assert [table.row(shard).lease_owner for shard in range(3)] == ["bar-1", "foo-1", "baz-1"]
    del table.rows[GROUP, "instance", "baz"]
    foo.look(filled(3), 0)
    assert [table.row(shard).lease_owner for shard in range(3)] == ["bar-1", "foo-1", "bar-1"]


@differs(
    "D7 both over their maximum",
    "a consumer has no maximum of leases: what it cannot keep up with shows as lag; nothing moves here too",
)
def test_two_that_hold_twelve_each_keep_them() -> None:
    table = MemoryTable()
    owned(table, {"foo": 12, "bar": 12})
    foo, bar = Desk(table, "foo"), Desk(table, "bar")
    for desk in (foo, bar):
        desk.join()
        desk.look(filled(24), 0)
    assert (len(foo.held), len(bar.held)) == (12, 12)
    assert ChangeKind.STEAL not in {*foo.changes, *bar.changes}


@differs(
    "D8 15 leases, maximum 10",
    "a consumer has no maximum of leases: every shard has an owner if there is one",
)
def test_the_only_one_takes_all_fifteen() -> None:
    table = MemoryTable()
    owned(table, {None: 15})
    (foo,) = joined(table, "foo")
    foo.look(filled(15), 0)
    assert foo.held == list(range(15))


# --- 2.6, as far as it is about taking. --------------------------------------------------------------


@ours("S1")
def test_time_is_kept_by_values_that_stand_still_and_begins_anew_when_they_move() -> None:
    table = MemoryTable()
    owned(table, {"bar": 1})
    (foo,) = joined(table, "foo")
    watch(foo, 1, 800)
    assert 0 < table.row(0).stood_ms < TIMEOUT_MS
    bar = table.row(0)
    table.put(replace(bar, lease_id=bar.lease_id + 1, revision=bar.revision + 1, stood_ms=0))
    foo.look(filled(1), 850)
    assert table.row(0).stood_ms == 0


@ours("S2")
def test_expired_leases_are_not_counted_with_their_owner() -> None:
    table = MemoryTable()
    owners = owned(table, {"w1": 9, "w2": 8, "w3": 7, "w4": 6, "w5": 5})
    for name, expired in {"w1": 4, "w2": 3, "w4": 3}.items():
        for shard in owners[name][:expired]:
            table.put(replace(table.row(shard), stood_ms=TIMEOUT_MS))
    (me,) = joined(table, "me")
    me.look(filled(35), 0)
    # Counts are 5, 5, 7, 3, 5 and 0: of the ten that expired six are mine, the others for w4, w1 and w2.
    assert len(me.held) == 6
    assert ChangeKind.STEAL not in me.changes


@differs(
    "S3", "one steals from whoever holds two more, and as many as level it; the need alone decides nothing"
)
@pytest.mark.parametrize(
    ("mine", "fullest", "stolen"), [(8, 9, 0), (7, 9, 1), (6, 9, 1), (3, 9, 3), (0, 1, 0)]
)
def test_how_many_are_stolen_from_the_fullest(mine: int, fullest: int, stolen: int) -> None:
    table = MemoryTable()
    owned(table, {"foo": mine, "bar": fullest})
    foo = Desk(table, "foo")
    foo.join()
    foo.look_once(filled(mine + fullest), 0)
    assert foo.changes.count(ChangeKind.STEAL) == stolen


@ours("S4")
def test_a_newcomer_takes_exactly_what_is_free_if_that_is_its_share() -> None:
    table = MemoryTable()
    owned(table, {"w1": 7, "w2": 7, "w3": 7, "w4": 7, "w5": 7, None: 7})
    (me,) = joined(table, "me")
    me.look(filled(42), 0)
    assert me.held == list(range(35, 42))
    assert ChangeKind.STEAL not in me.changes


@differs("S5", "all that is missing is asked for at once, not one lease per round")
def test_expired_leases_are_taken_and_the_rest_is_stolen_and_taken_once_released() -> None:
    table = MemoryTable()
    shards = filled(12)
    (bar,) = joined(table, "bar")
    bar.look(shards, 0)
    for shard in range(3):
        bar.consumer.release(shards[shard], bar.epoch(shard), None)
        table.put(replace(table.row(shard), stood_ms=TIMEOUT_MS))
    (foo,) = joined(table, "foo")
    foo.look(shards, 0)
    assert foo.held == [0, 1, 2]
    bar.look(shards, 0)
    assert len(bar.closing) == 3
    bar.drain(shards)
    foo.look(shards, 0)
    assert (len(foo.held), len(bar.held)) == (6, 6)


@ours("S6")
@pytest.mark.parametrize(
    ("others", "held"), [(["bar", "baz"], [3, 4, 5]), (["bar"], [3, 4, 5]), ([], [0, 1, 2, 3, 4, 5])]
)
def test_what_was_stolen_and_released_is_taken_before_anything_else(
    others: list[str], held: list[int]
) -> None:
    table = MemoryTable()
    owned(table, {None: 6, **dict.fromkeys(others, 0)})
    for shard in (3, 4, 5):
        table.put(replace(table.row(shard), lease_owner="foo-1"))
    (foo,) = joined(table, "foo")
    foo.look(filled(6), 0)
    assert foo.held == held
    assert foo.changes.count(ChangeKind.TAKE) == len(held), "none twice"


@differs(
    "S11",
    "a lease on its way from a consumer to a fuller one may be asked for again: it costs nobody a drain",
)
def test_a_lease_on_its_way_to_a_fuller_one_is_redirected() -> None:
    table = MemoryTable()
    owned(table, {"bar": 3, "baz": 3})
    table.put(replace(table.row(2), lease_owner="baz-1", waited_ms=70))
    (foo,) = joined(table, "foo")
    foo.look_once(filled(6), 0)
    assert table.row(2).lease_owner == "foo-1"
    assert table.row(2).waited_ms == 70
    assert table.row(2).consumer_owner == "bar-1"
