"""Processors that raise, hang, return nonsense or stop their own worker.

Shown each time: nothing is passed over in silence, nothing else is held up, and work goes on by itself.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shoal import Batch, Checkpointer, Hub, Processor, Reason
from shoal.core.errors import LeaseLost, ProcessorFailed
from shoal.core.retry import FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints, save_now
from tests.scenario.small_work import GROUP, STREAM, Make


def test_initialize_that_raises_is_tried_again_on_a_new_object(work: Make) -> None:
    made: list[Processor] = []

    class Late(Processor):
        def initialize(self, shard: int) -> None:
            made.append(self)
            if shard == 0 and len(made) < 5:
                raise OSError("not yet")

        def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
            checkpointer.save()

    worker = work(Late).start()
    eventually(lambda: worker.stats.records == 10, "both shards are processed in the end")
    assert len(set(map(id, made))) == len(made) >= 5
    assert worker.stats.failures >= 3


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_process_raises_its_records_come_again(work: Make, error: BaseException) -> None:
    diary = Diary()

    def raise_twice(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and len([one for one in diary.batches if one.shard == 0]) <= 2:
            raise error
        checkpointer.save()

    worker = work(diary.processor(work=raise_twice)).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert diary.offsets(0) == [*range(5)] * 3
    assert worker.stats.failures == 2


def test_an_error_that_cannot_even_be_shown_is_a_failure_like_any_other(work: Make) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    seen: list[int] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.append(batch.shard)
        if len(seen) == 1:
            raise Unspeakable
        checkpointer.save()

    worker = work(process).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")


@pytest.mark.parametrize("nonsense", ["5", -1, 10**9, True, 2.0, [1]])
def test_a_return_that_makes_no_sense_is_a_failure_and_says_so(
    work: Make, nonsense: object, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [nonsense]

    def process(batch: Batch, checkpointer: Checkpointer) -> Any:
        if batch.shard == 0 and answers:
            return answers.pop()
        return checkpointer.save() and None

    worker = work(process).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert worker.stats.failures == 1
    assert f"process returned {nonsense!r}: return None, or an offset" in caplog.text


def test_shutdown_that_raises_keeps_what_was_saved_and_the_worker_stops(hub: Hub, work: Make) -> None:
    class Angry(Processor):
        def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
            checkpointer.save(persist=False, offset=3)

        def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
            raise RuntimeError(reason)

    worker = work(Angry).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    worker.stop()
    assert checkpoints(hub, STREAM, GROUP) == {0: 3, 1: 3}


def test_shutdown_that_raises_at_a_shards_end_gets_the_rest_again_and_children_wait(
    hub: Hub, work: Make
) -> None:
    diary = Diary()
    raised: list[Reason] = []

    class Ending(Processor):
        def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
            with diary.lock:
                seen.append((batch.shard, [record.offset for record in batch]))
            if batch.shard == 0:
                checkpointer.save(persist=False, offset=2)
            else:
                checkpointer.save(persist=False)

        def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
            if reason is Reason.ENDED and not raised:
                raised.append(reason)
                raise RuntimeError("not yet")

    seen: list[tuple[int, list[int]]] = []
    hub.split_shard(STREAM, 0)
    append_numbers(hub, STREAM, 2, range(2))
    append_numbers(hub, STREAM, 3, range(2))
    worker = work(Ending, until="now").start()
    assert worker.wait(20)
    assert [offsets for shard, offsets in seen if shard == 0] == [[0, 1, 2, 3, 4], [2, 3, 4]]
    children = [place for place, (shard, _) in enumerate(seen) if shard in (2, 3)]
    assert min(children) > max(place for place, (shard, _) in enumerate(seen) if shard == 0)
    assert checkpoints(hub, STREAM, GROUP) == {0: 5, 1: 5, 2: 2, 3: 2}


def test_a_process_that_takes_too_long_is_reported_once_and_left_alone(
    work: Make, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def hang(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0:
            go.wait(20)
        checkpointer.save()

    worker = work(hang, process_timeout=0.1).start()
    eventually(lambda: worker.stats.stuck == 1, "it is seen")
    eventually(lambda: worker.stats.records == 5, "the other shard goes on")
    eventually(lambda: threading.Event().wait(0.6) is False, "time goes by")
    assert worker.stats.stuck == 1
    assert caplog.text.count("has been running for over") == 1
    go.set()
    eventually(lambda: worker.stats.records == 10, "and goes on when it returns")


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_a_process_that_never_returns_loses_its_shard_to_another_processor(
    hub: Hub, work: Make, coordination: str
) -> None:
    diary = Diary()
    go, refused, hung = threading.Event(), threading.Event(), threading.Event()

    def hang(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and not hung.is_set():
            hung.set()
            checkpointer.save(persist=False, offset=2)
            go.wait(30)
            with pytest.raises(LeaseLost):
                checkpointer.save()
            refused.set()
            raise LeaseLost(shard=0, epoch=checkpointer.epoch)
        checkpointer.save()

    worker = work(
        diary.processor("anna", hang), process_timeout=0.3, on_stuck="release", coordination=coordination
    ).start()
    eventually(lambda: worker.stats.stuck == 1, "it is seen")
    eventually(lambda: checkpoints(hub, STREAM, GROUP)[0] >= 2, "it is given up, with what was saved")
    eventually(lambda: diary.offsets(0) == [0, 1, 2, 3, 4, 2, 3, 4], "another processor goes on")
    assert worker.stats.lost == 1
    go.set()
    eventually(refused.is_set, "what it does later does not count")
    eventually(lambda: Reason.LOST in diary.reasons("anna", 0), "and it is told")


def test_user_code_that_comes_back_before_its_shard_is_released_ends_nothing(
    work: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, is_gone, hung = threading.Event(), threading.Event(), threading.Event()

    def hang(batch: Batch, checkpointer: Checkpointer) -> None:
        if not hung.is_set():
            hung.set()
            free.wait(30)
        checkpointer.save()

    def listener(what: str, shard: int, epoch: int) -> None:
        if what == "gone":
            is_gone.set()

    worker = work(hang, process_timeout=0.2, on_stuck="release", listener=listener)
    worker.start()
    member = worker._runtimes[0]._member
    release = member.release

    def release_late(*what: Any, **how: Any) -> None:
        free.set()
        assert is_gone.wait(10), "its user code has come back, and was told"
        release(*what, **how)

    monkeypatch.setattr(member, "release", release_late)
    eventually(lambda: worker.stats.records >= 10, "all of it is processed, by another processor")
    assert is_gone.is_set()
    assert worker.is_running
    assert worker.error is None


def test_stop_may_be_called_by_a_processor(work: Make) -> None:
    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        checkpointer.save(persist=False)
        worker.stop()

    worker = work(process)
    worker.run()
    assert not worker.is_running


def test_stop_may_be_called_by_a_listener(work: Make) -> None:
    returned = threading.Event()

    def listener(what: str, shard: int, epoch: int) -> None:
        if what == "opened":
            worker.stop()
            returned.set()

    worker = work(save_now, listener=listener)
    worker.start()
    assert returned.wait(5), "it asks, and does not wait for itself"
    assert worker.wait(5)


def test_a_worker_that_failed_raises_when_its_block_is_left(work: Make) -> None:
    def fail(batch: Batch, checkpointer: Checkpointer) -> None:
        raise ValueError("odd")

    with pytest.raises(ProcessorFailed), work(fail, failure=FailureRules(policy=Policy.STOP)) as worker:
        assert worker.wait(20)
