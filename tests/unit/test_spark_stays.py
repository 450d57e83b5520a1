"""What a task does with the shards that it is given, without Spark: the hub is real, and so is the group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import shoal
from shoal.consumer.membership import Membership
from shoal.core.describing import Block
from shoal.core.errors import Fenced, ProcessorFailed
from shoal.core.model import ShardId
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.spark.attempts import Turn
from shoal.spark.hubs import address_of
from shoal.spark.ledger import Identity, Ledger
from shoal.spark.plan.spans import Owner, Span
from shoal.spark.plan.stays import CUT_SHORT
from shoal.spark.processor_job import ProcessorJob, job_of, pickled
from shoal.spark.stays import Done, work_on
from tests.spark.diary import Blocked, Diary, FailingOnce, Forgetful, Poisoned, Slow, Unsteady, Writer

QUICK = Backoff(first_s=0.01, max_s=0.05)


class Driver:
    """What the driver of a query does for its tasks: it holds the shards, and says how far they go."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.hub = shoal.connect(url)
        self.diary = Diary(path)
        self.members: dict[str, Membership] = {}

    def make(self, shards: int = 2, **options: object) -> None:
        self.hub.create_stream("orders", shards=shards)
        self.hub.create_group("orders", "billing", timeout=2.0, **options)  # type: ignore[arg-type]
        self.join("orders")

    def join(self, stream: str) -> None:
        self.members[stream] = self.hub.join_group(stream, "billing", "driver")
        until(lambda: bool(self.members[stream].leases))

    def send(self, *values: bytes, shard: int = 0) -> None:
        self.hub.append("orders", shard, list(values))

    def job(self, processor: Callable[[str], object], **changes: object) -> ProcessorJob:
        job = ProcessorJob(
            hub=address_of(self.url),
            stream="orders",
            group="billing",
            rules=FailureRules(backoff=QUICK, delays_s=[0.0]),
            options=shoal.WorkerOptions(until="now", lag_interval=None, log_interval=None),
            batch_s=10.0,
            factory=pickled(partial(processor, str(self.diary.path))),  # type: ignore[arg-type]
        )
        return job_of(replace(job, **changes).to_text())  # type: ignore[arg-type]

    def spans(self, stream: str = "orders") -> list[Span]:
        info = self.hub.describe_stream(stream)
        return [
            Span(
                stream=stream,
                stream_id=info.id,
                shard=int(shard),
                start=int(lease.checkpoint),
                end=info.shards[shard].next_offset + (0 if info.shards[shard].is_open else 1),
                owner=Owner(self.members[stream].group_id, lease.epoch, False),
            )
            for shard, lease in self.members[stream].leases.items()
        ]

    def work(self, job: ProcessorJob, stream: str = "orders") -> Done:
        (done,) = work_on(job, "driver", self.spans(stream))
        return done

    def checkpoints(self, stream: str = "orders") -> dict[int, int]:
        return {
            int(shard.id): int(shard.checkpoint)
            for shard in self.hub.describe_group(stream, "billing").shards
        }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def driver(sqlite_url: str, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(sqlite_url, tmp_path / "diary")
    yield driver
    for member in driver.members.values():
        member.leave()
    driver.hub.close()


def test_each_stay_initializes_processes_saves_and_shuts_down(driver: Driver) -> None:
    driver.make()
    driver.send(b"1", b"2")
    driver.send(b"3", shard=1)
    done = driver.work(driver.job(Writer))
    assert (done.records, done.shards, done.failures) == (3, 2, 0)
    assert driver.checkpoints() == {0: 2, 1: 1}
    driver.send(b"4")
    assert driver.work(driver.job(Writer)).records == 1
    assert [line["what"] for line in driver.diary.lines() if line["shard"] == 0] == [
        "initialize",
        "process",
        "shutdown",
    ] * 2
    assert driver.diary.reasons == {"moved": 4}
    assert set(driver.diary.places.values()) == {1}


def test_a_task_that_is_repeated_goes_on_from_the_groups_checkpoint(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1", b"2")
    spans = driver.spans()
    job = driver.job(Writer)
    work_on(job, "driver", spans)
    work_on(job, "driver", spans)
    assert driver.diary.places == {(0, 0): 1, (0, 1): 1}


def test_of_two_attempts_at_once_the_one_that_began_last_works_on(driver: Driver, tmp_path: Path) -> None:
    """As when Spark speculates, or when an executor is out of reach and its task is run elsewhere."""
    driver.make(shards=1)
    driver.send(*[b"%d" % number for number in range(1000)])
    spans = driver.spans()
    one_by_one = replace(driver.job(Slow).options, batch_records=1, persist_interval=0.1)
    first = driver.job(Slow, batch_s=4.0, options=one_by_one)
    later = Diary(tmp_path / "later")
    factory = pickled(partial(Writer, str(later.path)))
    second = replace(first, factory=factory, options=driver.job(Writer).options)
    refused: list[Fenced] = []

    def attempt(number: int, job: ProcessorJob) -> None:
        try:
            work_on(job, "driver", spans, Turn(batch=3, attempt=number))
        except Fenced as error:
            refused.append(error)

    threads = [
        threading.Thread(target=attempt, args=(0, first)),
        threading.Thread(target=attempt, args=(1, second)),
    ]
    threads[0].start()
    until(lambda: len(driver.diary.places) > 0)
    threads[1].start()
    until(lambda: bool(later.lines("process")))
    before = driver.diary.places
    threads[1].join(20)
    assert threads[0].is_alive(), "Spark kills it now; if it ended before, Spark would kill the other"
    assert not refused
    threads[0].join(20)

    assert driver.diary.places == before, "the first had stopped when the second began"
    assert driver.diary.reasons == {"lost": 1}
    assert len(refused) == 1
    assert len(driver.diary.places) + len(later.places) >= 1000 > len(later.places)
    assert driver.checkpoints() == {0: 1000}


def test_an_attempt_whose_predecessor_has_failed_does_not_wait_for_it(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1", b"poison", b"2")
    spans = driver.spans()
    rules = replace(driver.job(Poisoned).rules, policy=Policy.STOP)
    with pytest.raises(ProcessorFailed):
        work_on(driver.job(Poisoned, rules=rules), "driver", spans, Turn(batch=3))
    began = time.monotonic()
    work_on(driver.job(Writer), "driver", spans, Turn(batch=3, attempt=1))
    assert time.monotonic() - began < 1.0, "half of the group's timeout"
    assert driver.checkpoints() == {0: 3}
    ledger = Ledger(driver.hub.service, "default")
    sink = Identity(query="a-sink", batch=0, partition=0)
    claim = ledger.begin(sink, 1, None).claim
    work_on(driver.job(Writer), "driver", spans, Turn(batch=3, attempt=2))
    assert ledger.begin(sink, 1, None).claim == claim, "sinks read on past what tasks have noted"


def test_the_end_of_a_closed_shard_is_seen_and_saved(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1")
    driver.hub.split_shard("orders", 0)
    driver.work(driver.job(Writer))
    assert driver.diary.reasons == {"ended": 1}
    assert str(driver.hub.describe_group("orders", "billing").shards[0].state) == "over"


def test_what_raises_under_strict_is_tried_again_in_place(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1", b"2")
    done = driver.work(driver.job(FailingOnce))
    assert (done.records, done.failures) == (2, 3)
    assert driver.checkpoints() == {0: 2}
    assert [line["what"] for line in driver.diary.lines()] == [
        "initialize",
        "initialize",
        "process",
        "shutdown",
    ]


def test_a_shard_that_is_held_up_is_shown_and_left_to_the_next_task(driver: Driver) -> None:
    driver.make(shards=2)
    driver.send(*(b"%d" % number for number in range(10)))
    driver.send(b"20", b"21", shard=1)
    Path(f"{driver.diary.path}.poison").touch()
    job = driver.job(Blocked, batch_s=0.5)
    done = driver.work(job)
    assert done.failures > 2
    assert done.seconds < 5
    assert driver.checkpoints() == {0: 7, 1: 2}, "nothing overtakes it, and no other waits for it"
    shard = driver.hub.describe_group("orders", "billing").shards[0]
    assert shard.blocked is not None
    assert shard.blocked.error == "ValueError: seven"

    Path(f"{driver.diary.path}.poison").unlink()
    driver.work(job)
    assert driver.checkpoints() == {0: 10, 1: 2}
    assert driver.hub.describe_group("orders", "billing").shards[0].blocked is None
    assert set(driver.diary.places.values()) == {1}


def test_a_task_is_bounded_and_leaves_the_rest_to_the_next(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(300)))
    options = shoal.WorkerOptions(until="now", lag_interval=None, log_interval=None, batch_records=5)
    job = driver.job(Slow, batch_s=0.4, options=options)
    done = driver.work(job)
    assert 10 < done.records < 300
    assert done.seconds < 2
    assert driver.checkpoints() == {0: done.records}


def test_what_is_not_declared_done_stays_so(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(8)))
    driver.work(driver.job(Forgetful))
    assert driver.checkpoints() == {0: 0}
    driver.send(b"8", b"9")
    driver.work(driver.job(Forgetful))
    assert driver.checkpoints() == {0: 10}


def test_best_tried_sets_poison_aside_tries_it_again_and_gives_it_up(driver: Driver) -> None:
    driver.make(shards=1, in_order=False)
    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK, delays_s=[0.0], max_attempts=2)
    job = driver.job(Poisoned, rules=rules)
    driver.send(b"1", b"poison", b"2")
    done = driver.work(job)
    assert (done.retries, done.dead) == (1, 0)
    assert driver.checkpoints() == {0: 3}

    retry = "orders.billing.retry"
    until(lambda: driver.hub.stats(retry).appended == 1)
    driver.hub.create_group(retry, "billing", in_order=False, start="earliest", timeout=2.0)
    driver.join(retry)
    done = driver.work(job, retry)
    assert (done.retries, done.dead) == (0, 1)
    (letter,) = driver.hub.dead_letters("orders", "billing")
    assert (letter.origin.shard, letter.origin.offset, letter.origin.attempts) == (0, 1, 2)
    assert letter.origin.error == "ValueError: poison"
    assert driver.checkpoints(retry) == {0: 1}


def test_the_policy_stop_ends_the_task_and_its_repeats_at_once(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1", b"poison", b"2")
    job = driver.job(Poisoned, rules=FailureRules(policy=Policy.STOP))
    for number in range(2):
        with pytest.raises(ProcessorFailed, match=r"shard=0: the processor raised ValueError: poison"):
            work_on(job, "driver", driver.spans(), Turn(attempt=number))
    assert len(driver.diary.lines("poison")) == 1
    assert driver.diary.reasons == {"stopped": 1}
    assert driver.checkpoints() == {0: 1}


def test_a_shard_that_is_asked_back_is_finished_with_at_once(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(2000)))
    options = shoal.WorkerOptions(until="now", lag_interval=None, log_interval=None, batch_records=10)
    job = driver.job(Slow, options=options)
    done: list[Done] = []
    task = threading.Thread(target=lambda: done.append(driver.work(job)))
    task.start()
    until(lambda: bool(driver.diary.lines("process")))
    driver.members["orders"].retire()
    task.join(20)
    assert done[0].records < 1900
    assert driver.diary.reasons == {"moved": 1}
    assert driver.checkpoints() == {0: len(driver.diary.places)}


def test_a_shard_that_is_given_up_as_held_up_while_it_succeeds_is_said_to_be_cut_short(
    driver: Driver,
) -> None:
    """Nothing holds it up any more, nothing is declared done, and its rest was never handed out."""
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(30)))
    options = replace(driver.job(Unsteady).options, batch_records=5)
    job = driver.job(Unsteady, options=options, batch_s=1.5)
    assert driver.work(job).records == 5
    block = driver.hub.describe_group("orders", "billing").shards[0].blocked
    assert block is not None
    assert (block.attempts, block.error) == (0, CUT_SHORT)
    assert driver.checkpoints() == {0: 0}
    options = replace(options, batch_records=500)
    assert driver.work(replace(job, options=options)).records == 30
    assert driver.checkpoints() == {0: 30}
    assert driver.hub.describe_group("orders", "billing").shards[0].blocked is None


def test_a_stay_that_was_cut_short_is_no_failure_to_stop_for(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1", b"2")
    epoch = driver.hub.describe_group("orders", "billing").shards[0].epoch
    note = Block(epoch=epoch, attempts=0, error=CUT_SHORT)
    driver.hub.service.groups.block(driver.members["orders"].group_id, ShardId(0), note)
    assert driver.work(driver.job(Writer, rules=FailureRules(policy=Policy.STOP))).records == 2


def test_a_shard_that_is_lost_is_shut_down_as_lost_and_saves_nothing(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(2000)))
    done: list[Done] = []
    task = threading.Thread(target=lambda: done.append(driver.work(driver.job(Slow))))
    task.start()
    until(lambda: bool(driver.diary.lines("process")))
    driver.hub.reset_group("orders", "billing", to={0: 5})
    task.join(20)
    assert done[0].lost == 1
    assert driver.diary.reasons == {"lost": 1}
    assert driver.checkpoints()[0] <= 5


def test_a_task_whose_lease_is_gone_before_it_begins_does_nothing(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(b"1")
    spans = driver.spans()
    driver.hub.reset_group("orders", "billing", to={0: 0})
    (done,) = work_on(driver.job(Writer), "driver", spans)
    assert done.records == 0
    assert driver.diary.lines() == []


def test_nothing_is_given_out_once_the_holder_has_been_silent(driver: Driver) -> None:
    driver.make(shards=1)
    driver.send(*(b"%d" % number for number in range(2000)))
    task = threading.Thread(target=lambda: driver.work(driver.job(Slow)), daemon=True)
    task.start()
    until(lambda: bool(driver.diary.lines("process")))
    driver.members["orders"].abandon()
    other = driver.hub.join_group("orders", "billing", "other")
    until(lambda: bool(other.leases))
    taken = len(driver.diary.lines("process"))
    until(lambda: not task.is_alive())
    assert len(driver.diary.lines("process")) == taken, "another has it: nothing more was handed out here"
    assert driver.diary.reasons == {"lost": 1}
    other.leave()
