"""What users bring along: executors and listeners; and what is refused when a worker is made."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Processor, Reason, Worker
from shoal.core.errors import InvalidInput
from shoal.testing.members import eventually
from shoal.testing.processing import checkpoints, save_now
from tests.scenario.small_work import GROUP, STREAM, Make


def test_user_code_runs_on_the_users_executor_and_ends_without_it(hub: Hub, work: Make) -> None:
    names: set[str] = set()
    told: list[Reason] = []

    class Named(Processor):
        def process(self, batch: Batch, checkpointer: Checkpointer) -> None:
            names.add(threading.current_thread().name)
            checkpointer.save(persist=False)

        def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
            told.append(reason)

    executor = ThreadPoolExecutor(2, thread_name_prefix="mine")
    worker = work(Named, executor=executor).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    executor.shutdown()
    worker.stop()
    assert all(name.startswith("mine") for name in names)
    assert told == [Reason.STOPPED] * 2
    assert checkpoints(hub, STREAM, GROUP) == {0: 5, 1: 5}


def test_what_an_executor_cancels_is_done_without_it(hub: Hub, work: Make) -> None:
    executor = ThreadPoolExecutor(1)
    begun, go = threading.Event(), threading.Event()

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        begun.set()
        go.wait(20)
        checkpointer.save(persist=False)

    worker = work(process, executor=executor).start()
    assert begun.wait(20)
    eventually(lambda: executor._work_queue.qsize() > 0, "the other shard waits for its turn")
    executor.shutdown(wait=False, cancel_futures=True)
    go.set()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert worker.stats.failures == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("executor", 5),
        ("executor", ProcessPoolExecutor(1)),
        ("listener", "print"),
        ("options", {}),
        ("create_group", "no"),
        ("in_order", None),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_worker_is_made(
    work: Make, option: str, value: object
) -> None:
    with pytest.raises(InvalidInput, match=f"^{option}="):
        work(save_now, **{option: value})


@pytest.mark.parametrize("wrong", ["sqlite:///shoal.db", None, shoal.connect, object()])
def test_what_is_no_hub_is_refused_when_a_worker_or_a_consumer_is_made(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^hub="):
        Worker(wrong, STREAM, GROUP, save_now)
    with pytest.raises(InvalidInput, match=r"^hub="):
        shoal.Consumer(wrong, group=GROUP)


class WithoutProcess(Processor):
    """It overrides nothing."""


class WithoutEnds:
    def process(self, batch: Batch, checkpointer: Checkpointer) -> None: ...


class Coroutines(Processor):
    async def process(self, batch: Batch, checkpointer: Checkpointer) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Processor, "does not override process"),
        (WithoutProcess, "does not override process"),
        (WithoutEnds, "no initialize and no shutdown"),
        (Coroutines, "see AsyncWorker"),
        (dict, "no initialize and no process and no shutdown"),
    ],
)
def test_a_class_that_is_no_processors_is_refused_when_the_worker_is_made(
    work: Make, wrong: type, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        work(wrong)
    assert caught.value.field == "processor"


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_a_listener_that_raises_does_no_harm(work: Make, kind: type[BaseException]) -> None:
    def listener(what: str, shard: int, epoch: int) -> None:
        raise kind(what)

    worker = work(save_now, listener=listener).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    worker.stop()
