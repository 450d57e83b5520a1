"""The rule of one append, against a model that remembers everything."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.appending import (
    Closed,
    Decision,
    Offer,
    ProducerState,
    Refuse,
    Repeat,
    ShardTail,
    Store,
    check_stamp,
    decide,
)
from shoal.core.errors import InvalidInput, OutOfSequence, ProducerFenced
from shoal.core.limits import PRODUCER_WINDOW
from shoal.core.model import Appended, ProducerStamp, ShardId, ShardStatus

EMPTY = ShardTail(
    shard=ShardId(3), status=ShardStatus.OPEN, next_offset=0, bytes=0, appended_ms=0, top_timestamp_us=0
)


def offer(records: int = 1, stamp: ProducerStamp | None = None, top: int = 0) -> Offer:
    return Offer(records=records, stored_bytes=records * 10, top_timestamp_us=top, stamp=stamp)


class World:
    """One shard and one producer, stepped by the rule, beside everything that was ever stored."""

    def __init__(self) -> None:
        self.tail = EMPTY
        self.known: ProducerState | None = None
        self.stored: dict[tuple[int, int], Appended] = {}
        self.epoch = -1
        self.last = -1

    def step(self, stamp: ProducerStamp, records: int, now_ms: int) -> Decision:
        decision = decide(self.tail, self.known, offer(records, stamp), now_ms)
        if isinstance(decision, Store):
            self.tail, self.known = decision.tail, decision.producer
        return decision


attempts = st.tuples(st.integers(0, 3), st.integers(0, 14), st.integers(1, 5), st.integers(0, 100))


@given(st.lists(attempts, max_size=60), st.integers(0, 60))
def test_a_numbered_batch_is_stored_once_and_answered_the_same_ever_after(
    history: list[tuple[int, int, int, int]], closed_at: int
) -> None:
    world = World()
    for turn, (epoch, sequence, records, now_ms) in enumerate(history):
        if turn == closed_at:
            world.tail = ShardTail(
                shard=ShardId(3),
                status=ShardStatus.CLOSED,
                next_offset=world.tail.next_offset,
                bytes=world.tail.bytes,
                appended_ms=world.tail.appended_ms,
                top_timestamp_us=world.tail.top_timestamp_us,
            )
        before = world.tail
        decision = world.step(ProducerStamp(producer="p", epoch=epoch, sequence=sequence), records, now_ms)
        last = world.last if epoch == world.epoch else -1
        earlier = world.stored.get((epoch, sequence))
        if epoch < world.epoch:
            assert isinstance(decision, Refuse)
            assert isinstance(decision.error, ProducerFenced)
        elif earlier is not None and sequence > last - PRODUCER_WINDOW:
            assert decision == Repeat(at=earlier)
        elif before.status is ShardStatus.CLOSED:
            assert decision == Closed(last_sequence=last)
        elif sequence != last + 1:
            assert isinstance(decision, Refuse)
            assert isinstance(decision.error, OutOfSequence)
            assert decision.error.expected == last + 1
        else:
            at = Appended(3, before.next_offset, before.next_offset + records)
            assert isinstance(decision, Store)
            assert decision.at == at
            assert decision.tail.bytes == before.bytes + records * 10
            assert (epoch, sequence) not in world.stored
            world.stored[epoch, sequence] = at
            world.epoch, world.last = epoch, sequence
        if not isinstance(decision, Store):
            assert world.tail == before
    offsets = sorted(at.first_offset for at in world.stored.values())
    ends = sorted(at.next_offset for at in world.stored.values())
    assert offsets == [0, *ends][: len(offsets)]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=20))
def test_the_times_kept_with_a_shard_never_go_down(steps: list[tuple[int, int]]) -> None:
    tail = EMPTY
    for now_ms, top_us in steps:
        decision = decide(tail, None, offer(top=top_us), now_ms)
        assert isinstance(decision, Store)
        assert decision.tail.appended_ms == max(tail.appended_ms, now_ms)
        assert decision.tail.top_timestamp_us == max(tail.top_timestamp_us, top_us)
        tail = decision.tail


def test_an_append_without_a_stamp_leaves_no_producer_behind() -> None:
    decision = decide(EMPTY, None, offer(2), 5)
    assert isinstance(decision, Store)
    assert decision.producer is None


@pytest.mark.parametrize(
    "stamp",
    [("", 0, 0), ("p" * 129, 0, 0), ("a b", 0, 0), ("ä", 0, 0), (b"p", 0, 0), ("p", -1, 0), ("p", 0, -1),
     ("p", 2**62, 0), ("p", True, 0), ("p", 0, 1.0)],
)  # fmt: skip
def test_a_stamp_that_not_every_store_could_keep_is_refused(stamp: tuple[Any, Any, Any]) -> None:
    producer, epoch, sequence = stamp
    with pytest.raises(InvalidInput):
        check_stamp(ProducerStamp(producer=producer, epoch=epoch, sequence=sequence))


def test_the_stamps_of_our_own_producers_are_good() -> None:
    check_stamp(ProducerStamp(producer="~" + "0" * 32, epoch=0, sequence=2**40))


def test_who_has_an_older_life_of_a_name_is_fenced_before_any_shard_knows_of_the_newer() -> None:
    stamp = ProducerStamp(producer="till-1", epoch=4, sequence=0)
    assert isinstance(decide(EMPTY, None, offer(stamp=stamp), 0, opened=4), Store)
    refused = decide(EMPTY, None, offer(stamp=stamp), 0, opened=5)
    assert isinstance(refused, Refuse)
    assert isinstance(refused.error, ProducerFenced)


def test_the_highest_number_outlives_epochs_and_batches_without_one() -> None:
    known: ProducerState | None = None
    for epoch, number, highest in ((1, 7, 7), (2, None, 7), (3, 9, 9)):
        stamp = ProducerStamp(producer="till-1", epoch=epoch, sequence=0, number=number)
        decision = decide(EMPTY, known, offer(stamp=stamp), 0)
        assert isinstance(decision, Store)
        known = decision.producer
        assert known is not None
        assert known.number == highest
