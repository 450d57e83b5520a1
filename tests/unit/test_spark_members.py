"""A Spark query as a member of a group, without Spark: what it plans, saves and lets go of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import OffsetExpired
from shoal.core.holding import Lease
from shoal.core.model import Shard, ShardId, ShardStatus, StreamInfo, StreamName, StreamSettings
from shoal.spark.plan.members import (
    Tenure,
    boundary,
    due,
    finished,
    gone,
    held,
    passed,
    replaced,
    replayed,
    to_leave,
)
from shoal.spark.plan.offsets import Manifest, Part, manifest
from shoal.spark.plan.spans import Owner


def shard(number: int, next_offset: int, *, first: int = 0, closed: bool = False) -> Shard:
    return Shard(
        id=ShardId(number),
        begin=0,
        end=1,
        first_offset=first,
        next_offset=next_offset,
        status=ShardStatus.CLOSED if closed else ShardStatus.OPEN,
    )


def stream(*shards: Shard) -> StreamInfo:
    return StreamInfo(
        full_name=StreamName("default", "orders"), id=7, version=1, settings=StreamSettings(), shards=shards
    )


def lease(number: int, epoch: int, checkpoint: int = 0, *, wanted: bool = True) -> Lease:
    return Lease(
        shard=ShardId(number), epoch=epoch, checkpoint=checkpoint, deadline_ms=10**9, is_wanted=wanted
    )


def part(number: int, start: int, end: int, epoch: int, stream_id: int = 7) -> Part:
    return Part("orders", stream_id, number, start, end, epoch)


TWO = stream(shard(0, 100), shard(1, 50))


def test_a_shard_starts_at_the_groups_checkpoint_each_time_it_comes() -> None:
    mine = held({}, {0: lease(0, 5, 30)})
    mine = finished(mine, 7, [part(0, 30, 40, 5)])
    assert mine[0].done == 40
    assert held(mine, {0: lease(0, 5, 30)})[0].done == 40, "the same tenure goes on where it was"
    assert held(mine, {0: lease(0, 6, 33)})[0].done == 33, "a new one begins where the group stands"


def test_a_batch_of_another_epoch_or_stream_says_nothing_about_a_tenure() -> None:
    mine = held({}, {0: lease(0, 5, 30)})
    assert finished(mine, 7, [part(0, 30, 40, 4), part(0, 30, 40, 5, stream_id=6)])[0].done == 30


def test_what_is_done_is_saved_and_what_is_asked_back_is_let_go_of_with_it() -> None:
    leases = {0: lease(0, 5), 1: lease(1, 6, wanted=False)}
    mine = finished(held({}, leases), 7, [part(0, 0, 10, 5), part(1, 0, 20, 6)])
    told = boundary(mine, leases, TWO)
    assert (dict(told.saves), dict(told.releases)) == ({0: 10}, {1: 20})
    saved = {0: replace(mine[0], saved=10), 1: mine[1]}
    assert dict(boundary(saved, leases, TWO).saves) == {}, "nothing is saved twice"


def test_a_member_that_is_to_leave_plans_nothing_and_lets_go_of_all() -> None:
    leases = to_leave({0: lease(0, 5), 1: lease(1, 6)})
    mine = finished(held({}, leases), 7, [part(0, 0, 10, 5)])
    assert dict(boundary(mine, leases, TWO).releases) == {0: 10, 1: 0}
    assert due(TWO, mine, leases, group_id=3, is_leased=False, strict=True) == []


def test_a_stream_that_was_made_anew_is_known_by_its_id() -> None:
    streams = {"orders": TWO}
    assert replaced({"orders": 7}, streams) == replaced({}, streams) == []
    assert replaced({"orders": 6, "carts": 6}, streams) == ["orders"]


def test_a_stream_that_is_not_there_any_more_is_missed_if_it_is_still_to_be_read() -> None:
    known = {"orders": 7, "carts": 8, "returns": 9}
    assert gone(known, {"orders": TWO}, {"orders", "carts"}) == ["carts"]


def test_a_member_keeps_which_streams_it_has_seen_beside_what_its_batch_was_made_of() -> None:
    kept = manifest(
        Manifest(query="q", parts=(part(0, 0, 5, 1),), streams={"orders": 7, "carts": 8}).to_json()
    )
    assert kept.ids == {"orders": 7, "carts": 8}
    older = {"shoal": 1, "query": "q", "batch": [list(part(0, 0, 5, 1))]}
    assert manifest(older).ids == {"orders": 7}, "of a checkpoint from before, what its batch tells"


def test_what_retention_took_of_a_tenure_is_passed_over_and_an_end_reached_so_is_let_go_of() -> None:
    info = stream(
        shard(0, 10, first=10, closed=True), shard(1, 50, first=20), shard(2, 50, first=5), shard(3, 7)
    )
    leases = {0: lease(0, 5, 4), 1: lease(1, 5, 4), 2: lease(2, 5, 9), 3: lease(3, 5, 8), 9: lease(9, 5, 3)}
    mine = passed(held({}, leases), info)
    assert {number: tenure.done for number, tenure in mine.items()} == {0: 10, 1: 20, 2: 9, 3: 8, 9: 3}
    told = boundary(mine, leases, info)
    assert (dict(told.saves), dict(told.releases)) == ({1: 20}, {0: 10})


def test_a_closed_shard_that_was_read_to_its_end_is_let_go_of() -> None:
    info = stream(shard(0, 10, closed=True))
    leases = {0: lease(0, 5)}
    mine = finished(held({}, leases), 7, [part(0, 0, 9, 5)])
    assert dict(boundary(mine, leases, info).releases) == {}
    mine = finished(mine, 7, [part(0, 9, 10, 5)])
    assert dict(boundary(mine, leases, info).releases) == {0: 10}


def test_only_shards_that_are_held_and_wanted_are_planned_under_their_epochs() -> None:
    leases = {0: lease(0, 5, 30), 1: lease(1, 6, wanted=False)}
    (span,) = due(TWO, held({}, leases), leases, group_id=3, is_leased=False, strict=True)
    assert (span.shard, span.start, span.end, span.owner) == (0, 30, 100, Owner(3, 5, False))


def test_what_lanes_of_an_earlier_owner_did_is_left_out_and_kept_in_the_checkpoint() -> None:
    leases = {0: lease(0, 5, Checkpoint(30, [(60, 40)]))}
    mine = held({}, leases)
    (span,) = due(TWO, mine, leases, group_id=3, is_leased=False, strict=True)
    assert span.beyond == ((60, 40),)
    saves = boundary(finished(mine, 7, [part(0, 30, 50, 5)]), leases, TWO).saves
    assert (saves[0], beyond(saves[0])) == (50, ((60, 40),))
    saves = boundary(finished(mine, 7, [part(0, 30, 70, 5)]), leases, TWO).saves
    assert beyond(saves[0]) == ()


def test_what_retention_took_is_an_error_or_passed_over() -> None:
    info = stream(shard(0, 100, first=40))
    leases = {0: lease(0, 5, 30)}
    with pytest.raises(OffsetExpired):
        due(info, held({}, leases), leases, group_id=3, is_leased=False, strict=True)
    (span,) = due(info, held({}, leases), leases, group_id=3, is_leased=False, strict=False)
    assert span.start == 40


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        (10, [(10, 20)]),
        (15, [(15, 20)]),
        (20, []),
        (25, []),
        (5, []),
    ],
    ids=["untouched", "another did a part", "another did all", "another went on", "set back"],
)
def test_a_replayed_batch_is_cut_to_what_the_groups_checkpoint_leaves(
    checkpoint: int, expected: list[tuple[int, int]]
) -> None:
    mine = {0: Tenure(epoch=9, done=checkpoint, saved=checkpoint)}
    found = replayed([part(0, 10, 20, 5), part(1, 0, 5, 5)], TWO, mine, group_id=3, is_leased=False)
    assert [(span.start, span.end) for span in found] == expected, "and what is not held is left out"
    assert all(span.owner == Owner(3, 9, False) for span in found)
