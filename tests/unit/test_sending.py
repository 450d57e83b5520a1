"""The sender's rules, one at a time; histories of all of them together are in `sim/producing`."""

import random
from dataclasses import replace

import pytest

from shoal.core.errors import (
    DeliveryTimeout,
    InvalidInput,
    OutOfSequence,
    ProducerFenced,
    ShardClosed,
    ShoalError,
    StoreBusy,
    StoreUnavailable,
    UnknownStream,
)
from shoal.core.limits import PRODUCER_WINDOW, ROUND_BATCHES_PER_SHARD
from shoal.core.model import Appended, SendStrategy, ShardId, StreamInfo
from shoal.core.parcels import Parcel, SendingRules, Settled, checked_strategy, is_strict, merged
from shoal.core.resharding import first_shards, reshard
from shoal.core.routing import ShardMap
from shoal.core.sending import Sending
from tests.unit.test_routing import stream_of

BUSY = StoreBusy("locked", 0.0)
AWAY = StoreUnavailable("no answer")
RULES = SendingRules(
    retry_first_s=1.0, retry_most_s=4.0, delivery_timeout_s=20.0, max_attempts=3, calls_max=4
)


class Box(Parcel):
    def __init__(self, shard: int, *, is_strict: bool = True, number: int | None = None) -> None:
        super().__init__(ShardId(shard), is_strict=is_strict)
        self.number = number

    def __len__(self) -> int:
        return 1

    @property
    def is_numbered(self) -> bool:
        return self.number is not None


def stream(shards: int = 2) -> StreamInfo:
    return stream_of(first_shards(shards, 0))


def sending(shards: int = 2) -> Sending[Box]:
    return Sending(ShardMap.of(stream(shards)), RULES)


def put(machine: Sending[Box], *boxes: Box) -> list[Box]:
    for box in boxes:
        machine.put(box)
    return list(boxes)


def take(machine: Sending[Box], now_s: float = 1.0) -> list[Box]:
    return machine.take(now_s, hurry=True)


def answer(
    machine: Sending[Box],
    boxes: list[Box],
    *answers: ShoalError | None,
    now_s: float = 1.0,
    dice: float = 0.0,
) -> Settled[Box]:
    given = [
        Appended(box.shard, 0, 1) if one is None else one for box, one in zip(boxes, answers, strict=True)
    ]
    return machine.answered(boxes, given, now_s, dice)


def out_of_sequence(box: Box, expected: int) -> OutOfSequence:
    assert box.sequence is not None
    return OutOfSequence(producer="p", shard=box.shard, sequence=box.sequence, expected=expected)


def closed(box: Box) -> ShardClosed:
    after = replace(stream_of(reshard(first_shards(2, 0), 4, 1)), version=9)
    return ShardClosed(stream=after, shard=box.shard)


def test_the_key_decides_unless_a_strategy_is_named_and_what_is_numbered_is_strict() -> None:
    for strategy, is_placed, wanted in (
        (None, True, True),
        (None, False, False),
        (SendStrategy.STRICT, False, True),
        (SendStrategy.BEST_TRIED, True, False),
    ):
        assert is_strict(strategy, is_placed=is_placed, is_numbered=False) is wanted
        assert is_strict(strategy, is_placed=is_placed, is_numbered=True)
    assert checked_strategy("strict") is SendStrategy.STRICT
    assert checked_strategy(None) is None
    with pytest.raises(InvalidInput, match=r"^strategy='loose'"):
        checked_strategy("loose")


def test_several_calls_of_a_shard_are_numbered_on_up_to_what_the_log_remembers() -> None:
    machine = sending()
    boxes = put(machine, *(Box(0) for _ in range(12)))
    first, second = take(machine), take(machine)
    assert [box.sequence for box in first + second] == list(range(2 * ROUND_BATCHES_PER_SHARD))
    assert take(machine) == []
    answer(machine, second, *[None] * 4)
    # The first call is still out: a number more, and its own would be forgotten before it is answered.
    assert machine.sequences[ShardId(0)] - 0 == PRODUCER_WINDOW
    assert take(machine) == []
    answer(machine, first, *[None] * 4)
    assert take(machine) == boxes[8:]


def test_what_came_before_its_turn_is_sent_again_after_it_with_the_same_number() -> None:
    machine = sending()
    first, second = put(machine, Box(0), Box(0))
    call = machine.take(1.0, hurry=True)
    assert call == [first, second]
    answer(machine, call, AWAY, out_of_sequence(second, 0))
    assert take(machine, 1.5) == []  # The lane waits.
    again = take(machine, 2.0)
    assert [(box, box.sequence) for box in again] == [(first, 0), (second, 1)]
    assert second.attempts == 1, "only the one that was heard"
    answer(machine, again, None, None)
    assert not machine


def test_the_wait_grows_up_to_its_bound_until_the_delivery_timeout() -> None:
    machine = sending()
    (box,) = put(machine, Box(0))
    now_s, waits = 1.0, []
    while True:
        assert take(machine, now_s) == [box]
        settled = answer(machine, [box], AWAY, now_s=now_s)
        if settled.failed:
            break
        wait_s = machine.due_in_s(now_s)
        assert wait_s is not None
        waits.append(wait_s)
        now_s += wait_s
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert isinstance(settled.failed[0][1], DeliveryTimeout)
    assert machine.is_life_over


def test_best_tried_goes_elsewhere_only_if_the_attempt_has_stored_nothing() -> None:
    machine = sending()
    (box,) = put(machine, Box(0, is_strict=False))
    settled = answer(machine, take(machine), AWAY)
    assert (box.shard, settled.rerouted) == (0, [])
    assert take(machine, 2.0) == [box]
    settled = answer(machine, [box], BUSY, now_s=2.0)
    assert (box.shard, settled.rerouted) == (0, []), "the first attempt may have stored it"

    (other,) = put(machine, Box(1, is_strict=False))
    settled = answer(machine, take(machine, 2.0), BUSY, now_s=2.0)
    assert (other.shard, settled.rerouted) == (1, []), "there is no other that works"

    machine = sending()
    (box,) = put(machine, Box(0, is_strict=False))
    settled = answer(machine, take(machine), BUSY)
    assert (box.shard, settled.rerouted) == (1, [box])
    assert not machine.is_life_over, "its number was given back"
    assert machine.sequences[ShardId(0)] == 0


def test_best_tried_is_set_aside_after_its_attempts_and_strict_is_not() -> None:
    machine = sending(1)
    loose, kept = put(machine, Box(0, is_strict=False), Box(0))
    settled: Settled[Box] = Settled()
    for attempt in range(RULES.max_attempts):
        now_s = 1.0 + 4.0 * attempt
        settled = answer(machine, take(machine, now_s), BUSY, BUSY, now_s=now_s)
    assert [box for box, _ in settled.aside] == [loose]
    assert f"max_attempts={RULES.max_attempts};" in str(settled.aside[0][1]), "and not that time was up"
    assert settled.failed == []
    assert machine.everything() == [kept]


def test_a_closed_shard_is_followed_when_all_that_is_on_its_way_to_it_is_settled() -> None:
    machine = sending()
    old = put(machine, *(Box(0) for _ in range(5)))
    first, second = take(machine), take(machine)
    answer(machine, second, closed(second[0]))
    assert not machine.can_follow
    answer(machine, first, None, AWAY, closed(first[2]), closed(first[3]))
    assert not machine.can_follow, "nobody knows what became of one"
    assert take(machine, 1.0) == []
    assert take(machine, 2.0) == [first[1]], "what is not known is asked for; the rest waits"
    answer(machine, [first[1]], None, now_s=2.0)
    assert machine.follow() == [old[2:]]
    assert all(box.sequence is None for box in old[2:])


@pytest.mark.parametrize("is_strict", [True, False])
def test_who_is_refused_without_a_newer_map_waits_longer_each_time_and_not_for_ever(is_strict: bool) -> None:
    machine = sending()
    (box,) = put(machine, Box(0, is_strict=is_strict))
    told = ShardClosed(stream=stream(), shard=0)
    taken_s = []
    now_s, settled = 0.0, Settled[Box]()
    while not (settled.failed or settled.aside):
        assert now_s < 30.0
        if take(machine, now_s) == [box]:
            taken_s.append(now_s)
            settled = answer(machine, [box], told, now_s=now_s)
            assert settled.refused == 1
        now_s += 0.5
    assert taken_s == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 19.0]
    ((given_up, error),) = settled.failed or settled.aside
    assert given_up is box
    assert isinstance(error, DeliveryTimeout)
    assert machine.everything() == []


def test_a_map_that_is_announced_holds_up_what_has_no_number_until_it_comes() -> None:
    machine = sending()
    (sent,) = put(machine, Box(0))
    answer(machine, take(machine), AWAY)
    (fresh,) = put(machine, Box(1))
    assert machine.hold(1.0, 10.0)
    assert machine.is_held(1.0)
    assert take(machine, 1.5) == []
    assert machine.due_in_s(1.5, hurry=True) == 0.5, "what was sent before is sent again"
    assert take(machine, 2.0) == [sent]
    answer(machine, [sent], None, now_s=2.0)
    assert machine.due_in_s(2.0) == 9.0
    machine.hear(replace(stream_of(reshard(first_shards(2, 0), 1, 1)), version=9))
    assert machine.can_follow
    assert not machine.is_held(2.0)
    assert machine.follow() == [[fresh]]


def test_a_map_that_does_not_come_holds_up_little_however_often_it_is_announced() -> None:
    machine = sending()
    (box,) = put(machine, Box(0))
    assert machine.hold(1.0, 0.5)
    assert not machine.hold(1.2, 0.5), "nor longer"
    assert machine.due_in_s(1.2, hurry=True) == pytest.approx(0.3)
    assert take(machine, 1.5) == [box]
    assert not machine.hold(10.9, 0.5)
    assert machine.hold(11.0, 0.5), "a twentieth of the time"
    machine.hear(replace(stream_of(reshard(first_shards(2, 0), 3, 1)), version=9))
    assert not machine.hold(11.1, 0.5), "it is there"
    machine.follow()
    assert machine.hold(11.2, 0.5), "the next one is another"


def given_up_in_doubt(*, is_strict: bool) -> tuple[Sending[Box], Box]:
    """Two of a shard went in one call, which had no answer; the first, sent long before, was given up."""
    machine = sending(1)
    old, young = put(machine, Box(0), Box(0, is_strict=is_strict))
    old.began_s, young.began_s = 1.0, 18.0
    settled = answer(machine, take(machine, 20.0), AWAY, AWAY, now_s=20.5)
    assert [box for box, _ in settled.failed] == [old]
    assert take(machine, 30.0) == [young]
    return machine, young


@pytest.mark.parametrize("is_kept", [False, True])
def test_who_is_behind_one_that_was_given_up_in_doubt_is_not_sent_again_in_another_life(
    is_kept: bool,
) -> None:
    machine, young = given_up_in_doubt(is_strict=is_kept)
    # The log has not come to its number; but the call that had no answer may be there yet, with both.
    settled = answer(machine, [young], out_of_sequence(young, 0), now_s=30.0)
    assert [box for box, _ in settled.failed] == ([young] if is_kept else [])
    assert [box for box, _ in settled.aside] == ([] if is_kept else [young])
    assert not machine
    machine.live()
    (after,) = put(machine, Box(0))
    assert (take(machine, 31.0), after.sequence) == ([after], 0)


def test_a_number_that_nobody_will_use_ends_the_life_when_all_else_is_settled() -> None:
    machine = sending()
    put(machine, Box(0), Box(0), Box(1))
    call = take(machine)
    assert [box.shard for box in call] == [0, 1, 0]
    settled = answer(machine, call, UnknownStream("s"), AWAY, out_of_sequence(call[2], 0))
    assert [box for box, _ in settled.failed] == [call[0]]
    assert machine.is_life_over
    assert not machine.wants_life(1.0), "nobody knows what became of one"
    assert take(machine, 2.0) == [call[1]], "and only that one is sent in this life"
    answer(machine, [call[1]], None, now_s=2.0)
    assert machine.wants_life(2.0)
    machine.live()
    assert [(box, box.sequence) for box in take(machine, 2.0)] == [(call[2], 0)]


def test_when_what_is_numbered_fails_all_that_waits_fails() -> None:
    machine = sending()
    boxes = put(machine, Box(0, number=1), Box(1, number=2), Box(0, number=3))
    call = take(machine)
    settled = answer(machine, [call[0]], ProducerFenced(producer="p", held=1, current=2))
    assert {box.number for box, _ in settled.failed} == {1, 2, 3}
    assert isinstance(settled.fatal, ProducerFenced)
    assert not machine
    assert len(boxes) == 3


def test_without_a_new_life_what_waits_tries_again_or_fails_for_good() -> None:
    machine = sending()
    (box,) = put(machine, Box(0))
    machine.is_life_over = True
    assert machine.wants_life(1.0)
    assert machine.lifeless(AWAY, 1.0).failed == []
    assert not machine.wants_life(1.5)
    assert machine.due_in_s(1.5) == 0.5
    assert machine.wants_life(2.0)
    settled = machine.lifeless(UnknownStream("s"), 2.0)
    assert [one for one, _ in settled.failed] == [box]


@pytest.mark.parametrize("bad", [{0}, {1, 2}, {0, 3, 5}])
@pytest.mark.parametrize("seed", range(20))
def test_lanes_that_fail_are_soon_tried_without_those_that_need_not(seed: int, bad: set[int]) -> None:
    machine, chance = (
        Sending[Box](ShardMap.of(stream(8)), replace(RULES, delivery_timeout_s=1e9)),
        random.Random(seed),
    )
    put(machine, *(Box(shard) for shard in range(8) for _ in range(2)))
    now_s, rounds = 1.0, 0
    while {box.shard for box in machine.everything()} != bad:
        rounds += 1
        assert rounds < 100, "some always share a call"
        while call := take(machine, now_s):
            is_bad = bool(bad & {box.shard for box in call})
            answers = [BUSY if is_bad else None] * len(call)
            answer(machine, call, *answers, now_s=now_s, dice=chance.random())
        now_s += 5.0


def test_lanes_are_merged_by_the_senders_numbers_each_in_its_own_order() -> None:
    lanes = [[("a", 1), ("b", None), ("c", 7)], [("d", None), ("e", 2), ("f", 5)]]
    found = list(merged(lanes, lambda one: one[1]))
    assert [number for _, number in found if number is not None] == [1, 2, 5, 7]
    for lane in lanes:
        assert [one for one in found if one in lane] == lane
