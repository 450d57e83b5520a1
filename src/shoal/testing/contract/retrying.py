"""Records that fail under `best_tried`: set aside, kept for their delay by the hub, tried again, buried.

Defends invariant 4 of the design: what was set aside reaches `process` again or the dead stream, whoever
stops or goes away meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field

import pytest

import shoal
from shoal import Batch, Checkpointer, Hub
from shoal.core.aside import origin_of
from shoal.core.retry import FailureRules, Policy
from shoal.testing.contract.suite import ConnectAgain
from shoal.testing.contract.workers import GROUP, Make, WorkerSuite, record_of
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, checkpoints
from shoal.testing.reading import read_shard, read_stream

HOURS = FailureRules(policy=Policy.BEST_TRIED, delays_s=(3600.0,), outage_after=100)
SOON_S = 0.4
SOON = FailureRules(policy=Policy.BEST_TRIED, delays_s=(SOON_S,), max_attempts=4, outage_after=100)


@dataclass
class Refusing:
    """Refuses some values in the main stream, and takes everything from the retry stream."""

    main: str
    values: set[bytes]
    refused_s: dict[bytes, float] = field(default_factory=dict)
    came: list[tuple[float, shoal.Record]] = field(default_factory=list)
    """What came of the retry stream, and when. Writer: user code, one shard's thread at a time."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, batch: Batch, checkpointer: Checkpointer) -> None:
        with self.lock:
            for record in batch:
                if batch.stream != self.main:
                    self.came.append((time.monotonic(), record))
                elif record.value in self.values:
                    self.refused_s[record.value] = time.monotonic()
                    raise ValueError("not here")
                checkpointer.save(persist=False)

    @property
    def again(self) -> list[object]:
        with self.lock:
            return [record.value for _, record in self.came]


class RetryContract(WorkerSuite):
    def test_best_tried_sets_a_poison_record_aside_tries_it_again_and_buries_it(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [record_of(b"%d" % n, b"key-%d" % n) for n in range(12)])
        diary = Diary()

        def refuse(batch: Batch, checkpointer: Checkpointer) -> None:
            if b"5" in [record.value for record in batch]:
                raise ValueError("5 is odd")
            if b"7" in [record.value for record in batch] and diary.values().count(b"7") < 2:
                raise KeyError("7 comes later")
            checkpointer.save(persist=False)

        rules = FailureRules(policy="best_tried", delays_s=(0.05, 0.1), max_attempts=3)  # type: ignore[arg-type]
        worker = work(diary.processor(work=refuse), failure=rules, batch_records=1).start()
        dead = f"{orders}.{GROUP}.dead"
        eventually(lambda: worker.stats.dead == 1, "it is buried")
        eventually(lambda: worker.stats.records >= 11, "all others are processed")
        worker.stop()
        assert worker.stats.retries == 3
        assert diary.values().count(b"5") == 3
        main = [offset for one in diary.batches if one.stream == orders for offset in one.offsets]
        assert main == list(range(12)), "nothing waited for it"
        (buried,) = read_shard(hub, dead, 0)
        origin = origin_of(buried.headers)
        assert origin is not None
        assert (buried.value, buried.key) == (b"5", b"key-5")
        assert (origin.stream, origin.shard, origin.offset, origin.attempts) == (orders, 0, 5, 3)
        assert origin.error == "ValueError: 5 is odd"
        assert buried.headers["own"] == b"kept"
        assert checkpoints(hub, orders, GROUP) == {0: 12}
        assert hub.describe_group(f"{orders}.{GROUP}.retry", GROUP).lag == 0

    def test_what_waits_for_another_attempt_is_in_no_shard_yet_and_is_seen_to_wait(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=2)
        hub.append(orders, 0, [record_of(b"%d" % n, b"k") for n in range(5)])
        worker = work(Refusing(orders, {b"2"}), failure=HOURS).start()
        eventually(lambda: worker.stats.retries == 1, "it is set aside")
        eventually(lambda: worker.stats.records >= 4, "its neighbours go on")
        retry = f"{orders}.{GROUP}.retry"
        for _ in range(2):
            left = hub.retrying(orders, GROUP)
            assert (left.stream, left.waiting, left.due) == (retry, 1, 0)
            assert hub.count_delayed(retry) == 1
            assert hub.stats(retry).appended == 0
            worker.stop()
        assert hub.stats(retry).delayed == 1
        assert checkpoints(hub, orders, GROUP) == {0: 5, 1: 0}
        hub.delete_stream(retry)
        left = hub.retrying(orders, GROUP)
        assert (left.waiting, left.due) == (0, 0), "what waits goes with its stream"

    def test_it_comes_again_after_its_delay_and_not_before_with_all_that_it_was(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [shoal.Record(0, 77, b"k", b"x", {"own": b"kept"})])
        refusing = Refusing(orders, {b"x"})
        worker = work(refusing, failure=SOON).start()
        eventually(lambda: refusing.again == [b"x"], "it comes again")
        ((came_s, record),) = refusing.came
        # A millisecond is the unit of the hub's clock.
        assert came_s - refusing.refused_s[b"x"] >= SOON_S - 0.002
        assert (record.key, record.timestamp, record.headers["own"]) == (b"k", 77, b"kept")
        origin = origin_of(record.headers)
        assert origin is not None
        assert (origin.stream, origin.shard, origin.offset, origin.attempts) == (orders, 0, 0, 1)
        worker.stop()
        assert (hub.retrying(orders, GROUP).waiting, hub.retrying(orders, GROUP).due) == (0, 0)

    def test_those_of_a_key_come_again_in_the_order_in_which_they_were_set_aside(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=3)
        numbers = [b"%d" % n for n in range(30)]
        with hub.producer(orders) as producer:
            for number, value in enumerate(numbers):
                producer.send(value, key=b"key-%d" % (number % 5))
        refusing = Refusing(orders, set(numbers))
        worker = work(refusing, failure=SOON, batch_records=1).start()
        eventually(lambda: len(refusing.again) == len(numbers), "all come again")
        worker.stop()
        retry = f"{orders}.{GROUP}.retry"
        assert sum(bool(records) for records in read_stream(hub, retry).values()) > 1, "in several shards"
        for key in range(5):
            mine = [record.value for _, record in refusing.came if record.key == b"key-%d" % key]
            assert mine == numbers[key::5]

    def test_the_retry_stream_may_be_resharded_while_records_wait(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [record_of(b"%d" % n, b"key-%d" % n) for n in range(8)])
        refusing = Refusing(orders, {b"%d" % n for n in range(8)})
        worker = work(refusing, failure=SOON).start()
        eventually(lambda: worker.stats.retries == 8, "all are set aside")
        hub.reshard(f"{orders}.{GROUP}.retry", 3)
        eventually(lambda: len(refusing.again) == 8, "and come again")
        worker.stop()
        assert sorted(map(str, refusing.again)) == sorted(str(b"%d" % n) for n in range(8))

    def test_what_one_worker_set_aside_another_tries_again_when_the_first_has_left(
        self, hub: Hub, orders: str, work: Make, connect_again: ConnectAgain
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [record_of(b"x", b"k")])
        first = connect_again()
        anna = work(Refusing(orders, {b"x"}), "anna", hub=first, failure=SOON).start()
        eventually(lambda: anna.stats.retries == 1, "it is set aside")
        anna.stop()
        first.close()
        refusing = Refusing(orders, set())
        work(refusing, "bert", failure=SOON).start()
        eventually(lambda: refusing.again == [b"x"], "another tries it")

    def test_a_worker_that_ends_when_all_is_consumed_says_what_is_still_to_be_tried(
        self, hub: Hub, orders: str, work: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        hub.create_stream(orders, shards=1)
        hub.append(orders, 0, [record_of(b"%d" % n, b"k") for n in range(3)])
        with caplog.at_level(logging.WARNING, "shoal.worker"):
            work(Refusing(orders, {b"1"}), failure=HOURS, until="now").run()
        said = (
            f"anna leaves 1 records that are to be tried again, 1 of them when their delay is over: {orders}"
        )
        assert said in caplog.text
        assert hub.retrying(orders, GROUP).waiting == 1
        assert hub.describe_group(orders, GROUP).lag == 0

    def test_dead_letters_come_again_at_once_in_the_shards_of_their_keys(
        self, hub: Hub, orders: str, work: Make
    ) -> None:
        hub.create_stream(orders, shards=4)
        values = {b"%d" % n for n in range(12)}
        hub.append(orders, 0, [shoal.Record(0, 77, value, value) for value in sorted(values)])
        at_once = FailureRules(policy=Policy.BEST_TRIED, max_attempts=1, outage_after=100)
        refusing = Refusing(orders, values)
        worker = work(refusing, failure=at_once).start()
        eventually(lambda: worker.stats.dead == len(values), "all are buried")
        assert len(hub.replay_dead_letters(orders, GROUP)) == len(values)
        eventually(lambda: set(refusing.again) == values, "all come again")
        worker.stop()
        assert {record.timestamp for _, record in refusing.came} == {77}
        assert hub.dead_letters(orders, GROUP) == []
        found = read_stream(hub, f"{orders}.{GROUP}.retry")
        assert sum(bool(records) for records in found.values()) > 1
