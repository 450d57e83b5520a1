"""Records that processors refuse: set aside with all that they are, buried, and processed when replayed."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.core.aside import origin_of, own_headers
from shoal.core.limits import HEADERS_MAX, RECORD_BYTES_MAX
from shoal.core.retry import FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, checkpoints
from shoal.testing.reading import read_shard
from tests.scenario.small_work import GROUP, STREAM, Make


def test_a_typed_record_is_set_aside_with_its_columns(hub: Hub) -> None:
    hub.create_stream("typed", shards=1, schema=pa.schema([("amount", pa.int64()), ("city", pa.string())]))
    hub.append("typed", 0, [{"amount": n, "city": "Ulm"} for n in range(4)])

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.value["amount"] == 2:
                raise ValueError("two")
            checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.01,), max_attempts=2)
    with Worker(hub, "typed", GROUP, process, failure=rules) as worker:
        eventually(lambda: worker.stats.dead == 1, "it is buried")
        eventually(lambda: worker.stats.records == 3, "what is before and after it is processed")
    (buried,) = read_shard(hub, f"typed.{GROUP}.dead", 0)
    assert buried.value == {"amount": 2, "city": "Ulm"}
    origin = origin_of(buried.headers)
    assert origin is not None
    assert (origin.offset, origin.attempts) == (2, 2)


def test_what_was_buried_at_the_first_attempt_is_processed_when_it_is_replayed(hub: Hub, work: Make) -> None:
    is_mended = threading.Event()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and 2 in batch.offsets and not is_mended.is_set():
            raise ValueError("two")
        checkpointer.save()

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(), max_attempts=1)
    worker = work(process, failure=rules).start()
    eventually(lambda: worker.stats.dead == 1, "it is buried")
    eventually(lambda: worker.stats.records == 9, "all others are processed")
    is_mended.set()
    hub.replay_dead_letters(STREAM, GROUP)
    eventually(lambda: worker.stats.records == 10, "it is processed")
    worker.stop()
    assert hub.dead_letters(STREAM, GROUP) == []
    assert hub.describe_group(f"{STREAM}.{GROUP}.retry", GROUP).lag == 0


def test_a_dead_stream_that_was_deleted_is_made_anew(hub: Hub, work: Make) -> None:
    def fail(batch: Batch, checkpointer: Checkpointer) -> None:
        if b"odd" in [record.value for record in batch]:
            raise ValueError("odd")
        checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(), max_attempts=1)
    worker = work(fail, failure=rules, batch_records=1).start()
    for buried in (1, 2):
        hub.append(STREAM, 0, [b"odd"])
        eventually(lambda: worker.stats.dead == buried, "it is buried")  # noqa: B023 - called at once
        assert len(hub.dead_letters(STREAM, GROUP)) == 1
        hub.delete_stream(f"{STREAM}.{GROUP}.dead")
    worker.stop()


def test_rules_that_name_no_policy_have_the_groups(hub: Hub, work: Make) -> None:
    hub.create_group(STREAM, GROUP, failure="best_tried")

    def fail(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0:
            raise ValueError("odd")

    worker = work(fail, failure=FailureRules(max_attempts=1, outage_after=10)).start()
    eventually(lambda: worker.stats.dead == 5, "all of them are set aside")


AS_LARGE_AS_MAY_BE = pytest.mark.parametrize(
    ("size", "headers"), [(RECORD_BYTES_MAX - 1, 0), (5, HEADERS_MAX), (RECORD_BYTES_MAX - 1000, HEADERS_MAX)]
)


@AS_LARGE_AS_MAY_BE
def test_a_record_as_large_as_it_may_be_can_be_set_aside(
    hub: Hub, work: Make, size: int, headers: int
) -> None:
    many = {f"h{n}": b"v" for n in range(headers)}
    hub.append(STREAM, 0, [shoal.Record(0, 1, b"k", b"x" * size, many), b"next"])
    diary = Diary()

    def refuse(batch: Batch, checkpointer: Checkpointer) -> None:
        if 5 in batch.offsets and batch.shard == 0 and batch.stream == STREAM:
            raise ValueError("odd " * 1000)
        checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, max_attempts=1)
    worker = work(diary.processor(work=refuse), failure=rules).start()
    eventually(lambda: diary.offsets(0)[-1:] == [6], "its neighbours go on")
    eventually(lambda: worker.stats.dead == 1, "it is set aside")
    (letter,) = hub.dead_letters(STREAM, GROUP)
    assert isinstance(letter.value, bytes)
    assert (len(letter.value), letter.origin.offset) == (size, 5)
    worker.stop()
    assert checkpoints(hub, STREAM, GROUP) == {0: 7, 1: 5}
    assert hub.replay_dead_letters(STREAM, GROUP)


@AS_LARGE_AS_MAY_BE
def test_a_record_as_large_as_it_may_be_can_be_tried_again(
    hub: Hub, work: Make, size: int, headers: int
) -> None:
    many = {f"h{n}": b"v" for n in range(headers)}
    hub.append(STREAM, 0, [shoal.Record(0, 1, b"k", b"x" * size, many)])
    came: list[tuple[int, int, int]] = []

    def refuse(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if batch.stream != STREAM:
                came.append((len(record.value), len(own_headers(record.headers)), record.timestamp))
            elif record.key == b"k":
                raise ValueError("odd " * 1000)
            checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.01,), max_attempts=2)
    work(refuse, failure=rules).start()
    eventually(lambda: came == [(size, headers, 1)], "it comes again, whole")
