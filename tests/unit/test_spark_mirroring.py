"""What queries of Spark's conclude from a look at their group, without Spark and without a hub."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.core.describing import GroupInfo, GroupShard, MemberInfo
from shoal.core.group import GroupSettings, MemberStatus, ShardState
from shoal.core.limits import CLOCK_MARGIN
from shoal.core.model import ShardId
from shoal.spark.plan.members import Boundary, may_come
from shoal.spark.plan.mirroring import behind, mirrored, others_in, set_back, taken, unheld
from shoal.spark.plan.spans import span_of
from shoal.spark.plan.stays import borrowed
from tests.unit.test_spark_members import shard, stream


def member(name: str, *, status: MemberStatus = MemberStatus.ACTIVE, silent_ms: int = 0) -> MemberInfo:
    return MemberInfo(
        name=name,
        incarnation=f"{name}-1",
        status=status,
        shards=1,
        timeout_ms=20_000,
        silent_ms=silent_ms,
    )


def seen(
    number: int, owner: str | None, *, epoch: int = 3, state: ShardState = ShardState.ALREADY_ALLOC
) -> GroupShard:
    return GroupShard(
        id=ShardId(number),
        state=state,
        owner=owner,
        next=None,
        epoch=epoch,
        checkpoint=10,
        lag=0,
        lag_s=0.0,
        since_ms=0,
    )


def group(members: list[MemberInfo], *shards: GroupShard) -> GroupInfo:
    return GroupInfo(
        stream="orders",
        name="billing",
        state="stable",
        version=1,
        settings=GroupSettings(),
        members=tuple(members),
        shards=shards,
        lag=0,
        created_ms=0,
    )


ME = member("me")
OTHER = member("other")


@pytest.mark.parametrize(
    ("members", "one", "until", "expected"),
    [
        ([ME], seen(0, None, state=ShardState.NOT_ALLOC), None, True),
        ([ME, OTHER], seen(0, "me"), None, True),
        ([ME, OTHER], seen(0, "other"), None, False),
        ([ME], seen(0, None, state=ShardState.OVER), None, False),
        ([ME], seen(0, None, state=ShardState.WAIT), None, True),
        ([ME, OTHER], seen(0, None, state=ShardState.WAIT), None, False),
        ([ME], seen(0, None), {0: 11}, True),
        ([ME], seen(0, None), {0: 10}, False),
        ([ME], seen(0, None), {}, False),
    ],
    ids=["free", "mine", "another's", "over", "waits", "waits, with others", "due", "all done", "not asked"],
)
def test_a_shard_may_come_that_nobody_else_holds_and_of_which_something_is_left(
    members: list[MemberInfo], one: GroupShard, until: dict[int, int] | None, expected: bool
) -> None:
    assert may_come(group(members, one), "me", {0}, until) is expected
    assert not may_come(group(members, one), "me", {1}, until)


def test_a_task_has_what_is_left_of_half_its_members_timeout_less_the_margin() -> None:
    look = group([replace(ME, silent_ms=4_000)], seen(0, "me"))
    found = borrowed(look, "me", {0: 3}, asked_ms=1_000)
    assert found[ShardId(0)].deadline_ms == 1_000 + round(6_000 * (1 - CLOCK_MARGIN))
    assert found[ShardId(0)].is_wanted


@pytest.mark.parametrize(
    ("members", "one"),
    [([], seen(0, "me")), ([ME], seen(0, "other")), ([ME], seen(0, "me", epoch=4)), ([ME], seen(1, "me"))],
    ids=["no member", "another's", "another epoch", "another shard"],
)
def test_a_task_has_nothing_of_what_its_member_holds_no_longer(
    members: list[MemberInfo], one: GroupShard
) -> None:
    assert borrowed(group(members, one), "me", {0: 3}, asked_ms=0) == {}


def test_a_task_gives_back_what_goes_to_another_or_whose_member_leaves() -> None:
    leaving = replace(ME, status=MemberStatus.LEAVING)
    going = replace(seen(0, "me"), next="other")
    for look in (group([leaving], seen(0, "me")), group([ME], going)):
        assert not borrowed(look, "me", {0: 3}, asked_ms=0)[ShardId(0)].is_wanted


def test_what_is_new_is_saved_and_what_has_ended_is_let_go_of_at_its_end() -> None:
    info = stream(shard(0, 100), shard(1, 50, closed=True), shard(2, 50, closed=True), shard(3, 9, first=5))
    said = mirrored(info, {0: 40, 1: 50, 2: 49, 3: 2}, {0: 40, 1: 20, 2: 20, 3: 0, 7: 0})
    assert said == Boundary(saves={2: 49, 3: 5}, releases={1: 50})


def test_a_shard_is_behind_whose_checkpoint_is_lower_than_what_was_done() -> None:
    assert behind({0: 5, 1: 6}, {0: 6, 1: 6, 2: 9}) == [0]


def test_what_is_to_be_read_and_not_held_is_refused_once_another_has_it() -> None:
    spans = [span_of(stream(), shard(number, 9), 0, 9) for number in range(4)]
    assert unheld(spans, {"orders": {0, 1, 2, 3}}) == set()
    assert unheld(spans, {"orders": {0, 1, 2}}) == unheld(spans, {}) == {"orders"}
    look = group(
        [ME, OTHER], seen(0, "me"), seen(1, None), seen(2, "other"), seen(3, "dead"), seen(7, "other")
    )
    assert taken(spans, "orders", "me", look, {}) == {2: "other"}, (
        "not what is free or on its way, nor what is not read"
    )
    assert taken(spans, "returns", "me", look, {}) == {}


def test_who_was_found_silent_counts_again_once_it_is_heard_of() -> None:
    look = group([ME, replace(OTHER, beat=7)], seen(2, "other"))
    spans = [span_of(stream(), shard(2, 9), 0, 9)]
    assert others_in(look, "me", {}) == [replace(OTHER, beat=7)]
    for silent, others in (({OTHER.incarnation: 7}, {}), ({OTHER.incarnation: 6}, {2: "other"})):
        assert taken(spans, "orders", "me", look, silent) == others


def test_a_shard_whose_checkpoint_was_set_is_let_go_of_only_by_who_is_alone() -> None:
    asked = {0: 3, 1: 2}
    shards = (seen(0, "me"), seen(1, "me"), seen(2, "me"))
    assert set_back(asked, "me", group([ME], *shards)) == [1]
    assert set_back(asked, "me", group([ME, OTHER], *shards)) == []
