"""Checkpoints as they must not be, and as they may be: of other threads, empty batches and many lanes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal import Batch, Checkpointer, Hub
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints
from tests.scenario.small_work import GROUP, STREAM, Make


def test_a_checkpointer_refuses_what_makes_no_sense_and_serves_other_threads(hub: Hub, work: Make) -> None:
    told: list[object] = []
    kept: list[Checkpointer] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 1:
            return
        nonsense: list[Callable[[], object]] = [
            lambda: checkpointer.save(offset=6),
            lambda: checkpointer.save(offset=-1),
            lambda: checkpointer.save(offset="3"),  # type: ignore[arg-type]
            lambda: checkpointer.save(3),  # type: ignore[arg-type]
            lambda: checkpointer.save(offset=True),
        ]
        for call in nonsense:
            try:
                told.append(call())
            except CheckpointMisuse as error:
                told.append(error)
        with ThreadPoolExecutor(1) as other:
            told.append(other.submit(checkpointer.save, offset=2).result())
        kept.append(checkpointer)

    worker = work(process).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert [type(one) for one in told] == [CheckpointMisuse] * 5 + [int]
    assert checkpoints(hub, STREAM, GROUP) == {0: 2, 1: 0}
    (checkpointer,) = kept
    assert checkpointer.save() == 5, "from outside, later: all that was processed"
    assert checkpoints(hub, STREAM, GROUP) == {0: 5, 1: 0}
    worker.stop()
    with pytest.raises(LeaseLost):
        checkpointer.save()
    assert checkpointer.position() == 5


def test_a_save_in_an_empty_batch_saves_what_was_processed(hub: Hub, work: Make) -> None:
    """Of a lane whose last record is not the shard's last one, too."""
    hub.append(STREAM, 0, [shoal.Record(0, 1, b"%d" % n, b"x", {}) for n in range(40)])
    told: list[int] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if not len(batch):
            checkpointer.save(persist=False)
            told.append(batch.shard)

    worker = work(process, parallelism=4, call_when_idle=0.05).start()
    eventually(lambda: told.count(0) >= 8 and told.count(1) >= 8, "all lanes are told, and save")
    assert worker.stats.failures == 0
    worker.stop()
    assert checkpoints(hub, STREAM, GROUP) == {0: 45, 1: 5}


def test_who_went_back_may_still_return_its_position(hub: Hub, work: Make) -> None:
    """It is beyond the batch then: more was declared done before."""
    diary = Diary()

    def process(batch: Batch, checkpointer: Checkpointer) -> int:
        checkpointer.save(persist=False)
        if batch.shard == 0 and len(diary.offsets(0)) == 5:
            return 1
        return checkpointer.position()

    worker = work(diary.processor(work=process), batch_records=2).start()
    eventually(lambda: diary.offsets(0) == [0, 1, 2, 3, 4, 1, 2, 3, 4], "all of it again, once")
    append_numbers(hub, STREAM, 0, range(5, 6))
    eventually(lambda: diary.offsets(0)[-1] == 5, "and what is new")
    assert worker.stats.failures == 0


def test_saves_of_many_lanes_at_once_do_not_cross(hub: Hub, work: Make) -> None:
    hub.append(STREAM, 0, [shoal.Record(0, 1, b"%d" % n, b"x", {}) for n in range(400)])

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        for _ in batch:
            checkpointer.save()

    worker = work(process, parallelism=8, batch_records=7).start()
    eventually(lambda: worker.stats.records == 410, "all is processed")
    assert worker.stats.failures == 0
    eventually(lambda: checkpoints(hub, STREAM, GROUP) == {0: 405, 1: 5}, "and saved")
