"""Which shards a query with a processor gives to its tasks, without Spark and without a hub."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.describing import Block, GroupShard
from shoal.core.group import ShardState
from shoal.core.model import ShardId
from shoal.core.retry import Backoff
from shoal.spark.plan.spans import Owner, Span
from shoal.spark.plan.stays import (
    CUT_SHORT,
    Offer,
    Standing,
    asked_back,
    cut_short,
    due,
    failures,
    late,
    offered,
)
from tests.unit.test_spark_members import TWO, lease, shard, stream
from tests.unit.test_spark_mirroring import group

BACKOFF = Backoff(first_s=1.0, jitter=0)


def seen(number: int, epoch: int, checkpoint: int, *, blocked: bool = False) -> GroupShard:
    return GroupShard(
        id=ShardId(number),
        state=ShardState.ALREADY_ALLOC,
        owner="query",
        next=None,
        epoch=epoch,
        checkpoint=checkpoint,
        lag=0,
        lag_s=0.0,
        since_ms=0,
        blocked=Block(epoch=epoch, attempts=1, error="ValueError: odd") if blocked else None,
    )


def planned(
    *known: GroupShard,
    offers: dict[int, Offer] | None = None,
    now_ms: int = 0,
    until: dict[int, int] | None = None,
    info: object = TWO,
) -> list[tuple[int, int, int]]:
    spans = due(
        info,  # type: ignore[arg-type]
        {0: lease(0, 5), 1: lease(1, 6)},
        {int(one.id): one for one in known},
        offers or {},
        group_id=1,
        is_leased=False,
        now_ms=now_ms,
        until=until,
    )
    return [(span.shard, span.start, span.end) for span in spans]


def test_a_shard_is_given_out_from_the_groups_checkpoint_to_its_end() -> None:
    assert planned(seen(0, 5, 30), seen(1, 6, 50)) == [(0, 30, 100)]


def test_what_the_group_says_of_another_epoch_is_not_given_out() -> None:
    assert planned(seen(0, 4, 30), seen(1, 6, 0)) == [(1, 0, 50)]


def test_what_is_asked_back_is_not_given_out_and_is_let_go_of() -> None:
    leases = {0: lease(0, 5, wanted=False), 1: lease(1, 6)}
    spans = due(TWO, leases, {0: seen(0, 5, 0), 1: seen(1, 6, 0)}, {}, group_id=1, is_leased=False, now_ms=0)
    assert [span.shard for span in spans] == [1]
    assert asked_back(leases) == {0: 5}


def test_the_end_of_a_closed_shard_is_one_more_than_it_holds() -> None:
    info = stream(shard(0, 100, closed=True), shard(1, 0))
    assert planned(seen(0, 5, 100), seen(1, 6, 0), info=info) == [(0, 100, 101)]
    assert planned(seen(0, 5, 100), seen(1, 6, 0), info=info, until={0: 100, 1: 0}) == [(0, 100, 101)]
    assert planned(seen(0, 5, 40), info=info, until={0: 50}) == [(0, 40, 50)]


def test_what_was_not_declared_done_comes_again_with_something_new_or_elsewhere() -> None:
    known = seen(0, 5, 30)
    assert planned(known, offers={0: Offer(epoch=5, done=30, end=100)}) == [], "nothing has changed"
    assert planned(known, offers={0: Offer(epoch=5, done=30, end=90)}) == [(0, 30, 100)]
    assert planned(known, offers={0: Offer(epoch=5, done=20, end=100)}) == [(0, 30, 100)]
    assert planned(known, offers={0: Offer(epoch=4, done=30, end=100)}) == [(0, 30, 100)]


def test_a_shard_that_is_held_up_is_tried_again_less_and_less_often() -> None:
    known = seen(0, 5, 30, blocked=True)
    offers: dict[int, Offer] = {}
    times: list[int] = []
    now_ms = 0
    while len(times) < 4:
        spans = due(TWO, {0: lease(0, 5)}, {0: known}, offers, group_id=1, is_leased=False, now_ms=now_ms)
        if spans:
            times.append(now_ms)
            offers = offered(spans, offers, BACKOFF, now_ms=now_ms, dice=0.5)
        now_ms += 500
    assert times == [0, 1000, 3000, 7000]
    moved = seen(0, 5, 31, blocked=True)
    assert planned(moved, offers=offers, now_ms=now_ms) == [(0, 31, 100)], "it has moved: at once"


def span(number: int, start: int, end: int, epoch: int) -> Span:
    owner = Owner(1, epoch, False)
    return Span(stream="orders", stream_id=7, shard=number, start=start, end=end, owner=owner)


def test_a_stay_that_was_cut_short_with_nothing_declared_done_is_told_and_given_out_again_at_once() -> None:
    offers = offered([span(0, 30, 100, 5)], {}, BACKOFF, now_ms=0, dice=0.5)
    known = seen(0, 5, 30)
    assert planned(known, offers=offers) == [], "it has come back from all of it, for all that the group says"
    told = cut_short(group([], known), TWO, [span(0, 30, 100, 5)], finished=())
    assert told == {0: Block(epoch=5, attempts=0, error=CUT_SHORT)}
    assert failures(told) == {}, "user code has raised nothing"
    assert planned(replace(known, blocked=told[ShardId(0)]), offers=offers) == [(0, 30, 100)]


@pytest.mark.parametrize(
    ("known", "given", "finished"),
    [
        (seen(0, 5, 30), span(0, 30, 100, 5), {0}),
        (seen(0, 5, 31), span(0, 30, 100, 5), ()),
        (seen(0, 6, 30), span(0, 30, 100, 5), ()),
        (replace(seen(0, 5, 30), owner=None), span(0, 30, 100, 5), ()),
        (seen(0, 5, 30, blocked=True), span(0, 30, 100, 5), ()),
        (seen(0, 5, 100), span(0, 100, 101, 5), ()),
        (seen(1, 5, 30), span(0, 30, 100, 5), ()),
    ],
    ids=["all handed out", "moved", "lost", "let go of", "held up", "only its end", "not there"],
)
def test_of_a_stay_nothing_is_told_that_the_group_says_or_that_is_over(
    known: GroupShard, given: Span, finished: set[int] | tuple[()]
) -> None:
    info = stream(shard(0, 100, closed=True), shard(1, 50))
    assert cut_short(group([], known), info, [given], finished) == {}


def test_the_rest_of_a_stay_waits_if_it_is_held_up_or_over_time_with_something_done() -> None:
    held = {
        ShardId(0): Standing(is_blocked=True, has_moved=False),
        ShardId(1): Standing(is_blocked=False, has_moved=True),
        ShardId(2): Standing(is_blocked=False, has_moved=False),
    }
    found = [late(lambda: held, seconds=seconds, batch_s=10.0) for seconds in (1.9, 2.0, 9.9, 10.0)]
    assert found == [set(), {0}, {0}, {0, 1}], "what user code has said nothing about goes on"
    assert late(lambda: held, seconds=0.5, batch_s=0.5) == {0, 1}, "a batch may be shorter than that"
