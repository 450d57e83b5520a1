"""Processors that raise, hang, return nonsense or save what they must not; logs and stores that are gone.

Shown each time: nothing is passed over in silence, nothing else is held up, and work goes on by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Processor, Reason, Worker
from shoal.core.aside import origin_of
from shoal.core.errors import (
    CheckpointMisuse,
    HubClosed,
    InvalidInput,
    LeaseLost,
    NotFound,
    ProcessorFailed,
    StoreUnavailable,
)
from shoal.core.limits import HEADERS_MAX, RECORD_BYTES_MAX
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints, save_now
from shoal.testing.reading import read_shard
from shoal.testing.server import Server

STREAM, GROUP = "orders", "billing"
QUICK = FailureRules(backoff=Backoff(first_s=0.01, max_s=0.05))

Make = Callable[..., Worker]


@pytest.fixture
def work(hub: Hub) -> Iterator[Make]:
    """Makes workers on a stream of two shards with five records each."""
    hub.create_stream(STREAM, shards=2)
    for shard in (0, 1):
        append_numbers(hub, STREAM, shard, range(5))
    with ExitStack() as made:

        def make(processor: object, name: str = "anna", **options: Any) -> Worker:
            options = {"timeout": 5.0, "failure": QUICK, **options}
            worker = Worker(hub, STREAM, GROUP, processor, name=name, **options)
            made.callback(_end, worker)
            return worker

        yield make


def _end(worker: Worker) -> None:
    if worker.is_running:
        worker.stop(timeout=0.5)


# --- User code that raises, hangs, or returns nonsense. ----------------------------------------------


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


# --- Checkpoints as they must not be. ----------------------------------------------------------------


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


# --- The log, the group, the hub. --------------------------------------------------------------------


def test_records_that_retention_removed_stop_a_shard_or_are_jumped_as_the_user_says(
    hub: Hub, work: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hub.create_group(STREAM, GROUP)
    hub.set_retention(STREAM, retention_bytes=1)
    append_numbers(hub, STREAM, 0, range(5, 8))
    hub.enforce_retention(STREAM)
    assert hub.describe_stream(STREAM).shards[0].first_offset == 5
    diary = Diary()
    standing = work(diary.processor()).start()
    eventually(lambda: standing.stats.fetch_errors >= 2, "it stands still and says so")
    eventually(lambda: diary.offsets(1) == list(range(5)), "the other shard goes on")
    assert diary.offsets(0) == []
    eventually(lambda: _blocked(hub, 0).startswith("OffsetExpired: "), "whoever looks at the group sees it")
    assert _blocked(hub, 1) == ""
    assert "offset=0" in caplog.text
    standing.stop()
    jumping = work(diary.processor(), on_expired="jump").start()
    eventually(lambda: diary.offsets(0) == [5, 6, 7], "it goes on behind what is gone")
    assert jumping.stats.skipped == 5
    eventually(lambda: _blocked(hub, 0) == "", "nothing holds it up any more")
    assert "retention removed 5 records" in caplog.text
    jumping.stop()
    assert checkpoints(hub, STREAM, GROUP)[0] == 8


def _blocked(hub: Hub, shard: int) -> str:
    blocked = hub.describe_group(STREAM, GROUP).shards[shard].blocked
    return "" if blocked is None else blocked.error


def test_going_back_to_what_retention_removed_jumps_too(hub: Hub, work: Make) -> None:
    hub.set_retention(STREAM, retention_bytes=1)
    diary = Diary()

    def back(batch: Batch, checkpointer: Checkpointer) -> int | None:
        if batch.shard == 0 and len(diary.offsets(0)) == 5:
            append_numbers(hub, STREAM, 0, range(5, 8))
            hub.enforce_retention(STREAM)
            return 0
        checkpointer.save(persist=False)
        return None

    work(diary.processor(work=back), on_expired="jump").start()
    eventually(lambda: diary.offsets(0) == [0, 1, 2, 3, 4, 5, 6, 7], "it goes on")


@pytest.mark.parametrize("gone", ["stream", "group", "hub"])
def test_a_worker_whose_stream_group_or_hub_is_gone_ends_with_the_reason(
    hub: Hub, work: Make, sqlite_url: str, gone: str
) -> None:
    diary = Diary()
    own = shoal.connect(sqlite_url)
    worker = Worker(own, STREAM, GROUP, diary.processor(), timeout=1.0)
    if gone == "stream":
        hub.create_stream("short-lived", shards=1)
        worker = Worker(own, "short-lived", GROUP, diary.processor(), timeout=1.0)
    worker.start()
    eventually(lambda: bool(worker.shards), "it works")
    if gone == "stream":
        hub.delete_stream("short-lived")
    elif gone == "group":
        hub.delete_group(STREAM, GROUP, force=True)
    else:
        own.close()
    assert worker.wait(20), "it ends by itself"
    assert isinstance(worker.error, HubClosed if gone == "hub" else NotFound)
    own.close()


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
@pytest.mark.timeout(120)
def test_a_worker_resumes_by_itself_when_the_database_was_away(
    postgres_server: Server, kind: str, coordination: str
) -> None:
    url = postgres_server.fresh_database()
    diary = Diary()
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=2)
        for shard in (0, 1):
            append_numbers(hub, STREAM, shard, range(5))
        rules = FailureRules(policy=Policy.BEST_TRIED, backoff=Backoff(first_s=0.05, max_s=0.2))
        with Worker(
            hub,
            STREAM,
            GROUP,
            diary.processor(work=save_now),
            timeout=1.0,
            coordination=coordination,
            failure=rules,
        ) as worker:
            diary.wait_for(10)
            postgres_server.stop("immediate")
            eventually(lambda: worker.stats.fetch_errors > 0 or not worker.is_running, "it is noticed")
            threading.Event().wait(2.0)  # Longer than the group's timeout: deadlines pass meanwhile.
            postgres_server.start()
            eventually(lambda: _append(hub, 0) and _append(hub, 1), "the store is back")
            eventually(lambda: {len(set(diary.offsets(s))) for s in (0, 1)} == {6}, "it goes on")
            eventually(lambda: hub.describe_group(STREAM, GROUP).lag == 0, "and saves")
            assert worker.is_running
            assert worker.stats.retries == worker.stats.dead == 0, "no record was to blame"
    for shard in (0, 1):
        assert diary.offsets(shard)[:5] == list(range(5))
    postgres_server.drop_database(url)


def _append(hub: Hub, shard: int) -> bool:
    if hub.describe_stream(STREAM).shards[shard].next_offset > 5:
        return True
    try:
        append_numbers(hub, STREAM, shard, [5])
    except StoreUnavailable:
        return False
    return True


def test_a_store_that_is_away_when_user_code_saves_is_no_fault_of_a_record(work: Make) -> None:
    tries: list[int] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and len(tries) < 8:
            tries.append(len(batch))
            raise StoreUnavailable("as a save would raise it")
        checkpointer.save()

    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK.backoff, delays_s=(0.01,))
    worker = work(process, failure=rules).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert (worker.stats.retries, worker.stats.dead) == (0, 0)
    assert tries == [5] * 8


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


def test_rules_that_name_no_policy_have_the_groups(hub: Hub, work: Make) -> None:
    hub.create_group(STREAM, GROUP, failure="best_tried")

    def fail(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0:
            raise ValueError("odd")

    worker = work(fail, failure=FailureRules(max_attempts=1, outage_after=10)).start()
    eventually(lambda: worker.stats.dead == 5, "all of them are set aside")


# --- What users bring along. -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "headers"), [(RECORD_BYTES_MAX - 1, 0), (5, HEADERS_MAX), (RECORD_BYTES_MAX - 1000, HEADERS_MAX)]
)
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


def test_a_failed_part_ends_the_whole_worker(hub: Hub, work: Make) -> None:
    """With `stop` in one part (here: the retry stream is gone), the other does not go on alone."""
    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.01,))
    worker = work(save_now, failure=rules, timeout=1.0).start()
    eventually(lambda: worker.stats.records == 10, "it works")
    hub.delete_stream(f"{STREAM}.{GROUP}.retry")
    assert worker.wait(20)
    with pytest.raises(NotFound):
        worker.stop()


def test_a_worker_that_failed_raises_when_its_block_is_left(work: Make) -> None:
    def fail(batch: Batch, checkpointer: Checkpointer) -> None:
        raise ValueError("odd")

    with pytest.raises(ProcessorFailed), work(fail, failure=FailureRules(policy=Policy.STOP)) as worker:
        assert worker.wait(20)
