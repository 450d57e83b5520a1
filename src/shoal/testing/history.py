"""What a stream holds against what its writers were told: is every promise of the log kept?

A writer numbers its records per key from 0 and writes the number into the value (`Mark`). Afterwards
`read_history` reads the whole stream along its lineage, and `find_faults` compares. It works on values
alone and shares no code with the rules it checks: placement, lineage and cover are worked out anew here.
Not for: streams that are still written to, typed streams, or explicit hash keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import xxhash

from shoal.connect import Hub
from shoal.core.model import Shard

RING_END: Final = 1 << 128
FAULTS_MAX: Final = 20


class Mark(NamedTuple):
    """What a writer puts into a record: who wrote it, its number, and the atomic batch it is part of."""

    writer: str
    number: int
    first: int
    """The number of the first record of the batch; the batch is of one key, `records` long."""
    records: int

    def value(self) -> bytes:
        """The mark as a record's value."""
        return f"{self.writer} {self.number} {self.first} {self.records}".encode()

    @classmethod
    def of(cls, value: bytes) -> Mark:
        """The mark of a record that was read."""
        writer, number, first, records = value.decode().split(" ")
        return cls(writer, int(number), int(first), int(records))

    @classmethod
    def single(cls, writer: str, number: int) -> Mark:
        """A record that is sent by itself."""
        return cls(writer, number, number, 1)


class Ack(NamedTuple):
    """A record that its writer was told is stored."""

    writer: str
    key: bytes
    number: int
    shard: int = -1
    """-1 if the writer was not told where."""
    offset: int = -1
    began_ns: int = 0
    """By the clock that all processes of a machine share: before the record was sent,"""
    ended_ns: int = RING_END
    """and after it was known to be stored."""


class Stored(NamedTuple):
    """A record that was read."""

    key: bytes
    mark: Mark
    shard: int
    offset: int


def read_history(hub: Hub, stream: str, *, records_per_read: int = 5000) -> tuple[list[Shard], list[Stored]]:
    """The shards, and every record in the order of reading: a shard after all its parents."""
    shards = list(hub.describe_stream(stream).shards)
    stored: list[Stored] = []
    for shard in _parents_first(shards):
        offset = shard.first_offset
        while offset < shard.next_offset:
            batch = hub.read(stream, shard.id, offset, max_records=records_per_read)
            assert batch.first_offset == offset, f"asked shard {shard.id} for {offset}, got {batch!r}"
            assert len(batch), f"shard {shard.id} ends at {shard.next_offset}, but gives nothing at {offset}"
            for record in batch:
                assert record.offset == offset, f"shard {shard.id}: {record!r} where {offset} should be"
                assert record.key is not None
                stored.append(Stored(record.key, Mark.of(record.value), shard.id, offset))
                offset += 1
    return shards, stored


def find_faults(
    shards: Sequence[Shard],
    stored: Sequence[Stored],
    acks: Iterable[Ack],
    *,
    given_up: Collection[tuple[str, bytes, int]] = (),
) -> list[str]:
    """Sentences on what is wrong, none if all is well.

    `given_up` names (writer, key, number) of records whose writer was told that they failed: they may be
    there or not. All others of a writer and key must be there without a gap, up to the last one stored,
    since nothing overtakes.
    """
    known = list(acks)
    faults = [
        *_cover_faults(shards),
        *_placement_faults(shards, stored),
        *_number_faults(stored, set(given_up)),
        *_tear_faults(stored),
        *_ack_faults(stored, known),
        *_time_faults(stored, known),
    ]
    left_out = len(faults) - FAULTS_MAX
    return faults if left_out <= 0 else [*faults[:FAULTS_MAX], f"and {left_out} more"]


def _parents_first(shards: Sequence[Shard]) -> list[Shard]:
    placed: dict[int, Shard] = {}
    waiting = list(shards)
    while waiting:
        ready = [shard for shard in waiting if all(parent in placed for parent in shard.parents)]
        assert ready, f"shards {[shard.id for shard in waiting]} descend from themselves or from nothing"
        placed.update((shard.id, shard) for shard in ready)
        waiting = [shard for shard in waiting if shard.id not in placed]
    return list(placed.values())


def _cover_faults(shards: Sequence[Shard]) -> list[str]:
    edges = sorted((shard.begin, shard.end) for shard in shards if shard.status == "open")
    faults = [f"an open shard owns [{begin:#x}, {end:#x})" for begin, end in edges if begin >= end]
    ends = [0, *(end for _, end in edges)]
    begins = [*(begin for begin, _ in edges), RING_END]
    faults += [
        f"the ring is not covered once: one open shard ends at {end:#x}, the next begins at {begin:#x}"
        for end, begin in zip(ends, begins, strict=True)
        if end != begin
    ]
    if [shard.id for shard in shards] != list(range(len(shards))):
        faults.append(f"shard ids are not dense: {[shard.id for shard in shards]}")
    return faults


def _placement_faults(shards: Sequence[Shard], stored: Sequence[Stored]) -> list[str]:
    """A key lies in the shard that owns its hash. So all its shards are one line of descent."""
    owners: dict[int, Shard] = {shard.id: shard for shard in shards}
    faults = []
    for key, shard in {(record.key, record.shard) for record in stored}:
        place = xxhash.xxh64_intdigest(key, seed=42) << 64
        if not owners[shard].begin <= place < owners[shard].end:
            faults.append(f"key {key!r} is in shard {shard}, which does not own it")
    return faults


def _number_faults(stored: Sequence[Stored], given_up: set[tuple[str, bytes, int]]) -> list[str]:
    """Of one writer and key the numbers are read in order, each once, and none is skipped."""
    faults = []
    expected: dict[tuple[str, bytes], int] = defaultdict(int)
    for key, mark, shard, offset in stored:
        who = (mark.writer, key)
        wanted = expected[who]
        while wanted < mark.number and (mark.writer, key, wanted) in given_up:
            wanted += 1
        if mark.number != wanted:
            what = "again" if mark.number < wanted else f"before {wanted}"
            faults.append(f"{mark.writer} {key!r}: number {mark.number} {what}, at {shard}:{offset}")
        expected[who] = max(wanted, mark.number) + 1
    return faults


def _tear_faults(stored: Sequence[Stored]) -> list[str]:
    """A batch is there as a whole, in one shard, one record after the other."""
    parts: dict[tuple[str, bytes, int], list[Stored]] = defaultdict(list)
    for record in stored:
        parts[record.mark.writer, record.key, record.mark.first].append(record)
    faults = []
    for (writer, key, first), found in parts.items():
        wanted = [
            (first + i, found[0].shard, found[0].offset + i) for i in range(max(1, found[0].mark.records))
        ]
        if [(record.mark.number, record.shard, record.offset) for record in found] != wanted:
            faults.append(f"{writer} {key!r}: the batch from number {first} on is torn or there twice")
    return faults


def _ack_faults(stored: Sequence[Stored], acks: Iterable[Ack]) -> list[str]:
    """What was acknowledged is there, and where it was said to be."""
    places: dict[tuple[str, bytes, int], tuple[int, int]] = {}
    for key, mark, shard, offset in stored:
        places.setdefault((mark.writer, key, mark.number), (shard, offset))
    faults = []
    for ack in acks:
        place = places.get((ack.writer, ack.key, ack.number))
        if place is None:
            faults.append(f"{ack.writer} {ack.key!r}: number {ack.number} was acknowledged and is lost")
        elif ack.shard >= 0 and place != (ack.shard, ack.offset):
            faults.append(
                f"{ack.writer} {ack.key!r}: number {ack.number} is at {place}, not {ack.shard, ack.offset}"
            )
    return faults


def _time_faults(stored: Sequence[Stored], acks: Iterable[Ack]) -> list[str]:
    """Of one key, whoever wrote: what was acknowledged before another was sent is read before it."""
    times = {(ack.writer, ack.key, ack.number): (ack.began_ns, ack.ended_ns) for ack in acks}
    latest_began: dict[bytes, int] = defaultdict(int)
    faults = []
    for key, mark, shard, offset in stored:
        began_ns, ended_ns = times.get((mark.writer, key, mark.number), (0, RING_END))
        if ended_ns < latest_began[key]:
            faults.append(
                f"{mark.writer} {key!r}: number {mark.number}, at {shard}:{offset}, was acknowledged before "
                "a record was sent that is read before it"
            )
        latest_began[key] = max(latest_began[key], began_ns)
    return faults
