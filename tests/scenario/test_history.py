"""The checker of histories is checked itself: each planted fault is found, and a sound history has none."""

from collections.abc import Callable

import pytest
import xxhash

from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.testing.history import RING_END, Ack, Mark, Stored, find_faults

MIDDLE = RING_END // 2


def place(key: bytes) -> int:
    return xxhash.xxh64_intdigest(key, seed=42) << 64


LOW = next(key for key in (f"k{i}".encode() for i in range(100)) if place(key) < MIDDLE)
HIGH = next(key for key in (f"k{i}".encode() for i in range(100)) if place(key) >= MIDDLE)


def shard(number: int, begin: int, end: int, *parents: int, is_open: bool = True) -> Shard:
    return Shard(
        id=ShardId(number),
        begin=begin,
        end=end,
        parents=tuple(ShardId(parent) for parent in parents),
        status=ShardStatus.OPEN if is_open else ShardStatus.CLOSED,
    )


class History:
    """Two writers of a key that share its time, a key of one batch, and a split in between."""

    def __init__(self) -> None:
        self.shards = [
            shard(0, 0, RING_END, is_open=False),
            shard(1, 0, MIDDLE, 0),
            shard(2, MIDDLE, RING_END, 0),
        ]
        self.stored = [
            Stored(LOW, Mark.single("a", 0), 0, 0),
            Stored(HIGH, Mark("b", 0, 0, 2), 0, 1),
            Stored(HIGH, Mark("b", 1, 0, 2), 0, 2),
            Stored(LOW, Mark.single("c", 0), 1, 0),
            Stored(LOW, Mark.single("a", 1), 1, 1),
        ]
        self.acks = [
            Ack("a", LOW, 0, 0, 0, began_ns=10, ended_ns=20),
            Ack("c", LOW, 0, 1, 0, began_ns=30, ended_ns=40),
            Ack("a", LOW, 1, 1, 1, began_ns=50, ended_ns=60),
            Ack("b", HIGH, 0, 0, 1),
        ]
        self.given_up: set[tuple[str, bytes, int]] = set()

    def faults(self) -> str:
        return "\n".join(find_faults(self.shards, self.stored, self.acks, given_up=self.given_up))

    def lose_an_acknowledged_record(self) -> None:
        del self.stored[4]

    def lose_a_record_before_another(self) -> None:
        del self.stored[0], self.acks[0]

    def store_a_record_twice(self) -> None:
        self.stored.append(self.stored[4]._replace(offset=2))

    def tear_a_batch(self) -> None:
        del self.stored[2]

    def read_a_key_in_another_order(self) -> None:
        self.stored[0], self.stored[4] = self.stored[4], self.stored[0]

    def read_two_writers_against_time(self) -> None:
        self.acks[1] = self.acks[1]._replace(began_ns=70, ended_ns=80)

    def tell_a_wrong_place(self) -> None:
        self.acks[2] = self.acks[2]._replace(offset=5)

    def put_a_key_into_a_foreign_shard(self) -> None:
        self.stored[4] = self.stored[4]._replace(shard=2)

    def leave_a_gap_in_the_ring(self) -> None:
        self.shards[2] = shard(2, MIDDLE + 1, RING_END, 0)

    def open_a_shard_above_another(self) -> None:
        self.shards[0] = shard(0, 0, RING_END)

    def lose_a_shard(self) -> None:
        del self.shards[0]
        del self.stored[:3], self.acks[0], self.acks[2]


def test_a_sound_history_has_no_faults() -> None:
    assert History().faults() == ""


def test_a_record_that_its_writer_gave_up_may_be_missing() -> None:
    history = History()
    history.lose_a_record_before_another()
    history.given_up.add(("a", LOW, 0))
    assert history.faults() == ""


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        (History.lose_an_acknowledged_record, "acknowledged and is lost"),
        (History.lose_a_record_before_another, "number 1 before 0"),
        (History.store_a_record_twice, "number 1 again"),
        (History.tear_a_batch, "torn"),
        (History.read_a_key_in_another_order, "number 1 before 0"),
        (History.read_two_writers_against_time, "was acknowledged before"),
        (History.tell_a_wrong_place, "not (1, 5)"),
        (History.put_a_key_into_a_foreign_shard, "does not own it"),
        (History.leave_a_gap_in_the_ring, "not covered once"),
        (History.open_a_shard_above_another, "not covered once"),
        (History.lose_a_shard, "not dense"),
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[History], None], fault: str) -> None:
    history = History()
    plant(history)
    assert fault in history.faults()
