"""What waits to be sent: within a shard nothing overtakes, and nothing is lost when the map changes."""

from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.limits import BATCH_BYTES_MAX, ROUND_BATCHES_PER_SHARD, ROUND_BYTES_MAX
from shoal.core.model import Appended, KeyHash, ShardId
from shoal.core.resharding import reshard
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.producer.options import ProducerOptions
from shoal.producer.pending import Pending, PendingColumns
from shoal.producer.queues import Queues
from tests.unit.lineages import Shards, lineages
from tests.unit.test_routing import stream_of

OPTIONS = ProducerOptions(linger_s=10, batch_records=5)


def columns(shard: int, size: int) -> PendingColumns:
    piece = PendingColumns(ShardId(shard), pa.record_batch({"key": [b"k"], "value": [b"v"]}))
    piece.size = size  # What the queues go by.
    return piece


sizes = st.sampled_from(
    [1, ROUND_BYTES_MAX // 8, ROUND_BYTES_MAX // 3, ROUND_BYTES_MAX - 10, ROUND_BYTES_MAX * 2]
)


@given(st.lists(st.tuples(st.integers(0, 3), sizes), min_size=1, max_size=20), st.booleans())
def test_each_round_takes_a_beginning_of_every_queue_within_its_limits_until_all_is_sent(
    sent: list[tuple[int, int]], everything: bool
) -> None:
    queues = Queues(ShardMap(version=1, begins=(0,), ids=(ShardId(0),)), KeyHash.XXH64, OPTIONS)
    waiting: dict[int, list[Pending]] = {}
    for shard, size in sent:
        piece = columns(shard, size)
        queues.add_columns([piece])
        waiting.setdefault(shard, []).append(piece)
    assert queues.bytes == sum(size for _, size in sent)
    while queues:
        due = queues.take(0.0, hurry=everything)
        assert due
        assert len(due) == 1 or sum(batch.size for batch in due) <= ROUND_BYTES_MAX
        for shard in {batch.shard for batch in due}:
            taken = [batch for batch in due if batch.shard == shard]
            assert taken == waiting[shard][: len(taken)], "a later batch was taken before an earlier one"
            assert len(taken) <= ROUND_BATCHES_PER_SHARD
        answers = [Appended(batch.shard, 0, 1) for batch in due]
        for batch, _ in queues.lanes.answered(due, answers, 0.0, 0.5).stored:
            queues.dropped(batch)
            waiting[batch.shard].remove(batch)
    assert queues.bytes == 0
    assert not any(waiting.values())


@settings(max_examples=40)
@given(
    lineages(changes_max=2, shards_max=4),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([10, 1_500_000])), min_size=1, max_size=30),
)
def test_when_the_map_changes_everything_moves_once_in_order_to_the_shard_of_its_key(
    shards: Shards, count: int, sent: list[tuple[int, int]]
) -> None:
    queues = Queues(ShardMap.of(stream_of(shards)), KeyHash.XXH64, ProducerOptions(linger_s=10))
    payload = bytes(2_000_000)
    for number, (key, size) in enumerate(sent):
        name = b"k%d" % key
        shard = queues.shards.shard_at(place(name))
        batch = queues.open.get(shard) or queues.open_batch(shard, 0.0)
        whole = size + 64 + len(name)
        batch.add(b"%06d" % number + payload[: size - 6], name, number, None, None, whole)
        queues.bytes += whole
        if queues.is_full(batch):
            queues.seal(batch)
    after = reshard(shards, count, 1)
    queues.remap(replace(stream_of(after), version=4), lambda: 0)
    found: dict[bytes, list[int]] = {}
    total = 0
    while queues:
        taken = queues.take(0.0, hurry=True)
        queues.lanes.answered(taken, [Appended(one.shard, 0, 1) for one in taken], 0.0, 0.5)
        for pending in taken:
            assert not isinstance(pending, PendingColumns)
            assert after[pending.shard].is_open
            assert sum(len(value) for value in pending.values) <= BATCH_BYTES_MAX
            total += pending.size
            for held, value in zip(pending.keys, pending.values, strict=True):
                assert held is not None
                assert queues.shards.shard_at(place(held)) == pending.shard
                found.setdefault(held, []).append(int(value[:6]))
            queues.dropped(pending)
    wanted: dict[bytes, list[int]] = {}
    for number, (key, _) in enumerate(sent):
        wanted.setdefault(b"k%d" % key, []).append(number)
    assert found == wanted
    assert total == sum(size + 64 + len(b"k%d" % key) for key, size in sent)
    assert queues.bytes == 0
