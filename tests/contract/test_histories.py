"""Random histories of a stream against a model in a few lists, on every store.

Defends invariants 4 and 7 of the design: every acknowledged record within its retention can be read exactly
once, in order per key along the lineage; open shards cover the ring at every step; nothing lies at or above
a closed shard's end. The model shares no code with the rules: where a key lies is worked out anew here.
"""

import uuid
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import shoal
from shoal import Hub, OffsetExpired, ProducerStamp, Record, ShardClosed, StreamInfo
from shoal.core.errors import UnknownStream

RING_SIZE = 2**128
KEYS = [b"k%d" % i for i in range(8)]
ONCE = {"sqlite": (25, 25), "postgresql": (6, 18), "mariadb": (6, 18)}
"""For each store how many histories, and how many steps in each."""


@dataclass
class ModelShard:
    begin: int
    end: int
    parents: tuple[int, ...] = ()
    is_open: bool = True
    first: int = 0
    records: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    """All that was ever acknowledged, by offset, also what has expired."""
    batch_ends: list[int] = field(default_factory=lambda: [0])


class History(RuleBasedStateMachine):
    """One stream's life. Every rule acts on the hub and on the model; `agrees` compares after each."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self.hub = hub
        self.stream = f"histories/s-{uuid.uuid4().hex}"
        self.shards: list[ModelShard] = []
        self.numbers = 0
        self.stamped: list[tuple[int, ProducerStamp, list[bytes], int]] = []
        self.sequences: dict[int, int] = {}

    # --- What happens. ---

    @initialize(count=st.integers(1, 4))
    def create(self, count: int) -> None:
        self.follow_new(self.hub.create_stream(self.stream, shards=count))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def append(self, keys: list[bytes]) -> None:
        home = self.owner(keys[0])
        fitting = [key for key in keys if self.owner(key) == home]
        values = [self.value() for _ in fitting]
        stamp = (self.numbers * 37) % 1000
        records = [Record(0, stamp, k, v, {"n": v}) for k, v in zip(fitting, values, strict=True)]
        at = self.hub.append(self.stream, home, records)
        self.acknowledged(home, list(zip(fitting, values, strict=True)), at.first_offset)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=40), by_table=st.booleans())
    def produce(self, keys: list[bytes], by_table: bool) -> None:
        values = [self.value() for _ in keys]
        with self.hub.producer(self.stream, linger_s=0) as producer:
            if by_table:
                producer.send_batch(pa.table({"key": keys, "value": values}))
            else:
                for key, value in zip(keys, values, strict=True):
                    producer.send(value, key=key)
        by_home: dict[int, list[tuple[bytes | None, bytes]]] = {}
        for key, value in zip(keys, values, strict=True):
            by_home.setdefault(self.owner(key), []).append((key, value))
        for home, rows in by_home.items():
            # How a producer cuts is its own affair: where its batches end is what the hub says.
            self.acknowledged(home, rows, len(self.shards[home].records), whole=False)

    @rule(data=st.data(), count=st.integers(1, 3))
    def append_numbered(self, data: st.DataObject, count: int) -> None:
        home = data.draw(st.sampled_from(self.open_ids()))
        values = [self.value() for _ in range(count)]
        stamp = ProducerStamp(producer="p", epoch=0, sequence=self.sequences.get(home, 0))
        at = self.hub.append(self.stream, home, list(values), stamp=stamp)
        self.acknowledged(home, [(None, value) for value in values], at.first_offset)
        self.stamped.append((home, stamp, values, at.first_offset))
        self.sequences[home] = stamp.sequence + 1

    @precondition(lambda self: self.stamped)
    @rule()
    def repeat_the_last_numbered(self) -> None:
        home, stamp, values, first = self.stamped[-1]
        at = self.hub.append(self.stream, home, list(values), stamp=stamp)
        assert at == (home, first, first + len(values))

    @rule(data=st.data(), in_the_middle=st.booleans())
    def split(self, data: st.DataObject, in_the_middle: bool) -> None:
        parent = data.draw(st.sampled_from(self.open_ids()))
        begin, end = self.shards[parent].begin, self.shards[parent].end
        if end - begin < 2 or len(self.open_ids()) > 10:
            return
        at = None if in_the_middle else data.draw(st.integers(begin + 1, end - 1))
        left, right = self.hub.split_shard(self.stream, parent, at)
        assert (left.begin, right.end, left.end) == (begin, end, right.begin)
        assert at is None or left.end == at
        self.born([parent], [(left.begin, left.end), (right.begin, right.end)])

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        alive = sorted(self.open_ids(), key=lambda shard: self.shards[shard].begin)
        if len(alive) < 2:
            return
        i = data.draw(st.integers(0, len(alive) - 2))
        self.hub.merge_shards(self.stream, alive[i], alive[i + 1])
        self.born(alive[i : i + 2], [(self.shards[alive[i]].begin, self.shards[alive[i + 1]].end)])

    @rule(count=st.integers(1, 6))
    def reshard(self, count: int) -> None:
        after = self.hub.reshard(self.stream, count)
        for shard in after.shards[len(self.shards) :]:
            self.shards.append(ModelShard(shard.begin, shard.end, tuple(shard.parents)))
            for parent in shard.parents:
                self.shards[parent].is_open = False
        assert len(self.open_ids()) == count

    @rule(kept=st.integers(1, 4000))
    def forget_by_size(self, kept: int) -> None:
        self.hub.set_retention(self.stream, retention=3600, retention_bytes=kept)
        trimmed = self.hub.enforce_retention(self.stream)
        stats = self.hub.stats(self.stream)
        for cut in trimmed:
            shard = self.shards[cut.shard]
            assert cut.first_offset in shard.batch_ends
            assert cut.first_offset > shard.first
            shard.first = cut.first_offset
        # Over the limit only where every shard is down to its newest batch.
        with_records = [s for s in self.shards if s.first < len(s.records)]
        assert stats.bytes <= kept or stats.batches == len(with_records)

    @rule()
    def forget_nothing_that_is_young_enough(self) -> None:
        self.hub.set_retention(self.stream, retention=3600, retention_bytes=10**9)
        assert self.hub.enforce_retention(self.stream) == []

    @rule(data=st.data(), max_records=st.integers(1, 20))
    def read_some(self, data: st.DataObject, max_records: int) -> None:
        shard = data.draw(st.integers(0, len(self.shards) - 1))
        model = self.shards[shard]
        offset = data.draw(st.integers(0, len(model.records)))
        if offset >= model.first:
            self.reads_a_part(shard, offset, max_records)
            return
        with pytest.raises(OffsetExpired) as caught:
            self.hub.read(self.stream, shard, offset)
        assert caught.value.first_offset == model.first

    @precondition(lambda self: any(not shard.is_open for shard in self.shards))
    @rule(data=st.data())
    def append_to_a_closed_shard(self, data: st.DataObject) -> None:
        shut = [i for i, shard in enumerate(self.shards) if not shard.is_open]
        shard = data.draw(st.sampled_from(shut))
        with pytest.raises(ShardClosed) as caught:
            self.hub.append(self.stream, shard, [b"never"])
        assert [s.id for s in caught.value.stream.open_shards] == sorted(
            self.open_ids(), key=lambda i: self.shards[i].begin
        )

    @rule(count=st.integers(1, 3))
    def delete_and_make_again(self, count: int) -> None:
        self.hub.delete_stream(self.stream)
        with pytest.raises(UnknownStream):
            self.hub.read(self.stream, 0, 0)
        self.follow_new(self.hub.create_stream(self.stream, shards=count))

    # --- What must always hold. ---

    @invariant()
    def agrees(self) -> None:
        if not self.shards:
            return
        info = self.hub.describe_stream(self.stream)
        assert [shard.id for shard in info.shards] == list(range(len(self.shards)))
        edge = 0
        for shard in sorted((s for s in info.shards if s.status == "open"), key=lambda s: s.begin):
            assert shard.begin == edge, "open shards do not cover the ring"
            assert shard.end > edge
            edge = shard.end
        assert edge == RING_SIZE
        seen: dict[bytes, int] = {}
        for shard, model in zip(info.shards, self.shards, strict=True):
            assert (shard.begin, shard.end, shard.parents) == (model.begin, model.end, model.parents)
            assert (shard.status == "open") is model.is_open
            assert (shard.first_offset, shard.next_offset) == (model.first, len(model.records))
            found = self.read_all(shard.id, model.first, shard.next_offset)
            assert found == model.records[model.first :]
            self.reads_a_part(shard.id, (model.first + len(model.records)) // 2, 3)
            for key, value in found:
                if key is not None:
                    assert model.begin <= self.place(key) < model.end
                    assert int(value[:8]) > seen.get(key, -1), "a key's order is broken along the lineage"
                    seen[key] = int(value[:8])
        stats = self.hub.stats(self.stream)
        assert stats.appended == sum(len(model.records) for model in self.shards)
        assert stats.records == sum(len(model.records) - model.first for model in self.shards)

    def teardown(self) -> None:
        if self.shards:
            self.hub.delete_stream(self.stream)

    # --- The model's own hands. ---

    def read_all(self, shard: int, offset: int, end: int) -> list[tuple[bytes | None, bytes]]:
        found: list[tuple[bytes | None, bytes]] = []
        while offset < end:
            batch = self.hub.read(self.stream, shard, offset)
            assert len(batch) > 0
            found += [(record.key, record.value) for record in batch]
            offset = batch.next_offset
        assert offset == end
        return found

    def reads_a_part(self, shard: int, offset: int, max_records: int) -> None:
        model = self.shards[shard]
        batch = self.hub.read(self.stream, shard, offset, max_records=max_records)
        assert [(r.key, r.value) for r in batch] == model.records[offset : offset + max_records]
        assert [r.offset for r in batch] == list(range(offset, batch.next_offset))
        assert batch.end_of_shard is (not model.is_open and batch.next_offset == len(model.records))

    def place(self, key: bytes) -> int:
        return xxhash.xxh64_intdigest(key, 42) << 64

    def owner(self, key: bytes) -> int:
        (home,) = [i for i in self.open_ids() if self.shards[i].begin <= self.place(key) < self.shards[i].end]
        return home

    def open_ids(self) -> list[int]:
        return [i for i, shard in enumerate(self.shards) if shard.is_open]

    def value(self) -> bytes:
        self.numbers += 1
        return b"%08d" % self.numbers + b"." * (self.numbers % 50)

    def acknowledged(
        self, home: int, rows: list[tuple[bytes | None, bytes]], first: int, *, whole: bool = True
    ) -> None:
        shard = self.shards[home]
        assert first == len(shard.records)
        shard.records += rows
        ends = [len(shard.records)] if whole else range(first + 1, len(shard.records) + 1)
        shard.batch_ends += ends

    def born(self, parents: list[int], ranges: list[tuple[int, int]]) -> None:
        for parent in parents:
            self.shards[parent].is_open = False
        self.shards += [ModelShard(begin, end, tuple(parents)) for begin, end in ranges]

    def follow_new(self, info: StreamInfo) -> None:
        self.shards = [ModelShard(shard.begin, shard.end) for shard in info.shards]
        self.stamped, self.sequences = [], {}


def test_any_history_reads_back_as_it_was_acknowledged(store: str, store_url: str) -> None:
    histories, steps = ONCE[store]
    with shoal.connect(store_url) as hub:
        run_state_machine_as_test(
            lambda: History(hub),  # type: ignore[arg-type]  # Anything that makes one will do.
            settings=settings(
                max_examples=histories,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
