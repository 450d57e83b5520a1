"""What one who polls wants: subscriptions, shards by their names, how much at once, who is too late."""

import re
from collections.abc import Generator
from typing import Any

import pytest

from shoal.consumer.consumer_options import ConsumerOptions
from shoal.consumer.steps import Errand, Rest, Step, Tell, driven
from shoal.core.errors import InvalidInput
from shoal.core.names import stream_name
from shoal.core.polling import StreamShard, fitting, is_too_late, place_of, subscription_of


def test_a_pattern_matches_whole_names_with_their_project_and_nothing_that_was_set_aside() -> None:
    names = ["orders", "orders-eu", "shop/orders", "orders.billing.retry", "orders.billing.dead"]
    streams = [stream_name(name) for name in names]
    for pattern, wanted in (
        ("orders", ["orders"]),
        ("orders.*", ["orders", "orders-eu"]),
        (re.compile(".*/orders"), ["shop/orders"]),
        ("nothing", []),
    ):
        assert [str(name) for name in subscription_of(None, pattern).wanted(streams)] == wanted


def test_names_are_wanted_whether_or_not_they_exist_each_once() -> None:
    assert [str(name) for name in subscription_of(["b", "a", "b"], None).wanted([])] == ["b", "a"]


@pytest.mark.parametrize(
    ("streams", "pattern"),
    [
        ("orders", None),
        ([], None),
        (None, None),
        ([5], None),
        (None, "("),
        (None, 5),
        (["a"], "a"),
        ({}, None),
    ],
)
def test_what_is_no_subscription_is_refused(streams: object, pattern: object) -> None:
    with pytest.raises(InvalidInput):
        subscription_of(streams, pattern)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"heartbeat_interval": -1},
        {"handover_timeout": "soon"},
        {"coordination": "both"},
        {"strategy": 5},
    ],
    ids=str,
)
def test_options_for_a_group_that_is_made_are_checked_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(wrong))}="):
        ConsumerOptions(**wrong)


def test_a_shard_is_named_with_its_stream_or_by_its_number_if_there_is_one() -> None:
    assert place_of(3, ["orders"]) == StreamShard("orders", 3)
    assert place_of(("default/orders", 3), []) == StreamShard("orders", 3)
    assert place_of(StreamShard("a", 0), ["b", "c"]) == ("a", 0)
    for given, streams in (
        (3, ["a", "b"]),
        ("3", ["a"]),
        (("a",), ["a"]),
        (("a", "b"), ["a"]),
        (True, ["a"]),
    ):
        with pytest.raises(InvalidInput):
            place_of(given, streams)


@pytest.mark.parametrize(
    ("sizes", "most", "count"), [([], 5, 0), ([9], 5, 1), ([2, 3, 1], 5, 2), ([5, 1], 5, 1), ([1, 1], 5, 2)]
)
def test_at_least_one_is_given_out_and_together_not_more_than_wanted(
    sizes: list[int], most: int, count: int
) -> None:
    assert fitting(sizes, most) == count


def test_who_is_in_a_poll_or_need_not_come_is_never_too_late() -> None:
    assert is_too_late(1000, 1501, 500)
    assert not is_too_late(1000, 1500, 500)
    assert not is_too_late(None, 9999, 500)
    assert not is_too_late(1000, 9999, None)


def test_steps_are_done_in_turn_and_what_one_raises_comes_to_where_it_belongs() -> None:
    rested: list[float] = []

    def fail() -> None:
        raise ZeroDivisionError

    def steps() -> Generator[Step, object, list[object]]:
        found = [(yield Tell(lambda: 1)), (yield Errand(lambda: 2)), (yield Rest(0.5))]
        try:
            yield Errand(fail)
        except ZeroDivisionError:
            found.append("caught")
        return found

    assert driven(steps(), rested.append) == [1, 2, None, "caught"]
    assert rested == [0.5]
