"""What waits to be sent: within a shard nothing overtakes, and nothing is lost when the map changes."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import DeliveryTimeout, ShardClosed, StoreBusy
from shoal.core.limits import BATCH_BYTES_MAX, ROUND_BATCHES_PER_SHARD, ROUND_BYTES_MAX
from shoal.core.model import Appended, KeyHash, SendStrategy, ShardId
from shoal.core.resharding import first_shards, reshard
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
        queues.add_columns([piece], 0.0)
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


BUSY = StoreBusy("locked", 0.0)
TIMED = ProducerOptions(
    linger_s=0.0, delivery_timeout_s=20.0, max_attempts=3, retry_first_s=1.0, retry_most_s=1.0
)


def moved_after_a_failure(*, is_table: bool, is_strict: bool = True) -> tuple[Queues, Pending]:
    """A batch that came at 100 s, was tried once, and whose shard was split at 115 s: one of its heirs,
    with a younger batch moved behind it."""
    strategy = SendStrategy.STRICT if is_strict else SendStrategy.BEST_TRIED
    queues = Queues(ShardMap.of(stream_of(first_shards(1, 0))), KeyHash.XXH64, TIMED, strategy)
    for given_s in (100.0, 110.0):
        if is_table:
            piece = PendingColumns(
                ShardId(0), pa.record_batch({"key": [b"k"], "value": [b"v"]}), is_strict=is_strict
            )
            queues.add_columns([piece], given_s)
        else:
            queues.open_batch(ShardId(0), given_s, is_strict=is_strict).add(b"v", b"k", 0, None, None, 66)
        if given_s == 100.0:
            first = queues.take(given_s, hurry=True)
            queues.lanes.answered(first, [BUSY], given_s, 0.5)
    after = replace(stream_of(reshard(first_shards(1, 0), 2, 1)), version=9)
    # The second attempt comes to the closed shard: no failure, nor more time.
    tried = queues.take(115.0, hurry=True)
    refused = [ShardClosed(stream=after, shard=batch.shard) for batch in tried]
    queues.lanes.answered(tried, refused, 115.0, 0.5)
    queues.follow(lambda: 0)
    return queues, queues.lanes.everything()[0]


@pytest.mark.parametrize("is_table", [False, True])
def test_what_moves_to_heirs_has_no_more_time_than_it_had(is_table: bool) -> None:
    queues, old = moved_after_a_failure(is_table=is_table)
    assert old.shard != 0
    young = queues.lanes.everything()[1]
    taken = queues.take(118.0, hurry=True)
    assert taken == [old, young], "of different ages: they fail apart"
    assert not queues.lanes.answered(taken, [BUSY, BUSY], 118.0, 0.5).failed
    taken = queues.take(119.5, hurry=True)
    settled = queues.lanes.answered(taken, [BUSY, BUSY], 119.5, 0.5)
    assert [batch for batch, _ in settled.failed] == [old], "20 s after it was sent, less the next wait"
    assert isinstance(settled.failed[0][1], DeliveryTimeout)
    taken = queues.take(125.0, hurry=True)
    assert taken == [young]
    assert not queues.lanes.answered(taken, [BUSY], 125.0, 0.5).failed


@pytest.mark.parametrize("is_table", [False, True])
def test_attempts_count_on_through_a_move_and_a_closed_shard_is_none(is_table: bool) -> None:
    queues, old = moved_after_a_failure(is_table=is_table, is_strict=False)
    assert old.attempts == 1
    now_s, asides = 116.0, []
    for _ in range(2):
        taken = queues.take(now_s, hurry=True)
        asides = [batch for batch, _ in queues.lanes.answered(taken, [BUSY] * len(taken), now_s, 0.5).aside]
        now_s += 1.5
    assert asides == [old], "the third attempt of three; the younger has had two"


def test_records_that_come_after_a_move_do_not_share_the_time_of_those_that_moved() -> None:
    queues, old = moved_after_a_failure(is_table=False)
    assert old.shard not in queues.open
    new = queues.open_batch(old.shard, 116.0)
    assert (new.began_s, new.attempts) == (116.0, 0)


def test_a_batch_that_cannot_go_takes_no_more_records_after_a_while() -> None:
    queues = Queues(ShardMap.of(stream_of(first_shards(1, 0))), KeyHash.XXH64, TIMED)
    batch = queues.open_batch(ShardId(0), 100.0)
    batch.add(b"v", b"k", 0, None, None, 66)
    queues.take(100.5, hurry=False, only_numbered=True)
    assert queues.open == {0: batch}
    queues.take(101.5, hurry=False, only_numbered=True)
    assert queues.open == {}, "who comes now would fail with it, long before its time"
