"""Lanes as processes: the same promises as lanes in threads, and what happens when a process dies.

Defends invariants 1, 3, 4 and 5: order by key, nothing lost through kill -9 of a lane in the midst of a
batch, nothing repeated by a planned move, and nothing handed out by a lane whose worker stands still.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

import shoal
from shoal import Hub, Worker
from shoal.consumer.lane_pool import LanePool
from shoal.consumer.processor import factory_of
from shoal.core.errors import InvalidInput
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import append_numbers, checkpoints
from shoal.testing.reading import read_shard, values_by_key
from tests.scenario import lane_processors as lanes

pytestmark = pytest.mark.alone

STREAM, GROUP = "orders", "billing"
KEYS = 17
PATIENCE_S = 60.0
QUICK = FailureRules(backoff=Backoff(first_s=0.02, max_s=0.1))

Make = Callable[..., Worker]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processors write, in whichever process."""
    found = tmp_path / "notes"
    found.mkdir()
    monkeypatch.setenv(lanes.FOLDER, str(found))
    return found


@pytest.fixture(params=["coordinated", "leased"])
def coordination(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def work(hub: Hub) -> Iterator[Make]:
    with ExitStack() as made:

        def make(processor: object, name: str = "anna", **options: Any) -> Worker:
            options = {"timeout": 5.0, "failure": QUICK, "lanes": "processes", "parallelism": 2, **options}
            worker = Worker(hub, STREAM, GROUP, processor, name=name, **options)
            made.callback(_end, worker)
            return worker

        yield make


def _end(worker: Worker) -> None:
    if worker.is_running:
        worker.stop(timeout=1.0)
    assert worker.lane_pids == []


def send(hub: Hub, numbers: range, keys: int = KEYS) -> None:
    with hub.producer(STREAM, linger_s=0) as producer:
        for number in numbers:
            producer.send(b"%d" % number, key=f"key-{number % keys}")


def wait_for(values: int) -> None:
    """Until so many different records were given."""
    eventually(
        lambda: len({value for given in lanes.given().values() for value in given}) >= values,
        f"{values} records, of which came {sum(map(len, lanes.given().values()))}",
        PATIENCE_S,
        every_s=0.05,
    )


def firsts(values: list[int]) -> list[int]:
    """Each when it came for the first time."""
    return list(dict.fromkeys(values))


# --- The same promises. ------------------------------------------------------------------------------


def test_keys_stay_in_order_and_a_planned_move_repeats_nothing(
    hub: Hub, work: Make, coordination: str
) -> None:
    hub.create_stream(STREAM, shards=3)
    send(hub, range(300))
    anna = work(lanes.Noting, coordination=coordination, parallelism=3, batch_records=20).start()
    wait_for(300)
    pids = anna.lane_pids
    assert len(pids) == 3, "three shards with three lanes each are three processes"
    assert os.getpid() not in {one.pid for one in lanes.notes()}
    assert {one.pid for one in lanes.notes()} == set(pids)
    bert = work(lanes.Noting, "bert", coordination=coordination, parallelism=3, batch_records=20).start()
    eventually(lambda: len(bert.shards) == 1, "one moves", PATIENCE_S)
    send(hub, range(300, 600))
    wait_for(600)
    bert.stop()
    hub.split_shard(STREAM, 0)
    send(hub, range(600, 900))
    wait_for(900)
    eventually(
        lambda: any(one.facts[1] == "ended" for one in lanes.notes("shutdown")), "the parent ends", PATIENCE_S
    )
    anna.stop()
    for key, values in lanes.given().items():
        assert values == sorted(set(values)), key
    told = {one.facts[1:] for one in lanes.notes("shutdown")}
    assert told == {("moved", "True"), ("stopped", "True"), ("ended", "True")}
    assert hub.describe_group(STREAM, GROUP).lag == 0
    for pid in pids:
        assert not psutil.pid_exists(pid)


def test_a_checkpoint_is_saved_by_a_transaction_of_a_lane_once_however_its_process_dies(
    hub: Hub, sqlite_url: str, work: Make, coordination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANE_HUB", sqlite_url)
    hub.create_stream(STREAM, shards=2)
    hub.create_stream("bills", shards=2)
    send(hub, range(300))
    anna = work(lanes.Billing, coordination=coordination, timeout=10.0, batch_records=10).start()
    eventually(lambda: hub.stats("bills").appended >= 300, "all are billed", PATIENCE_S)
    eventually(lambda: hub.describe_group(STREAM, GROUP).lag == 0, "and saved", PATIENCE_S)
    anna.stop()
    assert all(lanes.is_set(flag) for flag in ("refused", "killed-before", "killed-after"))
    assert values_by_key(hub, "bills") == {
        b"key-%d" % key: [b"%d" % number for number in range(key, 300, KEYS)] for key in range(KEYS)
    }


def test_a_lane_whose_shard_is_lost_ends_in_the_midst_of_its_batch_and_can_save_nothing_more(
    hub: Hub, work: Make
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(500))
    worker = work(lanes.Slow, parallelism=1).start()
    eventually(lambda: len(lanes.notes("given")) > 3, "it has begun", PATIENCE_S)
    newer = work(lanes.Noting, parallelism=1).start()
    eventually(lambda: bool(lanes.notes("shutdown")), "it is told", PATIENCE_S)
    assert lanes.notes("shutdown")[0].facts == ("0", "lost", "False")
    assert len([one for one in lanes.notes("given") if one.pid in worker.lane_pids]) < 500
    assert worker.wait(PATIENCE_S), "its name was taken"
    assert worker.stats.fenced >= 1
    eventually(lambda: newer.stats.records == 500, "the other has all", PATIENCE_S)


def test_a_checkpointer_answers_as_it_does_in_threads(hub: Hub, work: Make) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(5))
    worker = work(lanes.Asking, parallelism=1).start()
    eventually(lambda: worker.stats.records == 5, "all is processed", PATIENCE_S)
    said = [" ".join(one.facts) for one in lanes.notes("said")]
    assert said == ["CheckpointMisuse offset", "CheckpointMisuse persist", "2", "2"]
    assert checkpoints(hub, STREAM, GROUP) == {0: 5}
    (epoch,) = lanes.notes("epoch")
    assert int(epoch.facts[0]) == hub.describe_group(STREAM, GROUP).shards[0].epoch


def test_an_outage_is_known_by_its_class_and_logged_with_the_place_where_it_was_raised(
    hub: Hub, work: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(8))
    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK.backoff)
    worker = work(lanes.Failing, failure=rules, parallelism=1).start()
    eventually(lambda: worker.stats.failures >= 3, "it is tried again", PATIENCE_S)
    assert worker.stats.retries == 0, "no record is to blame"
    assert worker.stats.records == 5, "what was saved before it raised is counted"
    assert "raised ConnectionResetError: the sink is out" in caplog.text
    assert "lane_processors.py" in caplog.text
    block = hub.describe_group(STREAM, GROUP).shards[0].blocked
    assert block is not None
    assert block.error == "ConnectionResetError: the sink is out"
    lanes.set_flag("mended")
    eventually(lambda: worker.stats.records == 8, "and goes on", PATIENCE_S)
    assert lanes.given() == {"-": [*range(8)]}


def test_process_may_go_back(hub: Hub, work: Make) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(10))
    work(lanes.Returning, parallelism=1, batch_records=4).start()
    eventually(lambda: lanes.given()["-"] == [*range(10), *range(3, 10)], "again from 3 on", PATIENCE_S)


@pytest.mark.parametrize(
    ("processor", "kind"),
    [
        (lanes.function, "function"),
        (lanes.decorated, "decorated"),
        (partial(lanes.Noting), "initialize"),
    ],
)
def test_whatever_can_be_imported_by_name_is_a_processor(
    hub: Hub, work: Make, processor: object, kind: str
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(10))
    work(processor, until="now").run()
    assert lanes.notes(kind)
    assert checkpoints(hub, STREAM, GROUP) == {0: 10}


def test_what_cannot_be_imported_by_name_is_refused_with_what_to_do(work: Make) -> None:
    class Local(shoal.Processor):
        def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None: ...

    def function(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        pass

    for wrong in (Local, function, lambda: Local()):  # noqa: PLW0108 - a factory that is a lambda
        with pytest.raises(InvalidInput, match="top level of a module") as caught:
            work(wrong)
        assert caught.value.field == "processor"
    for options in ({"lanes": "fibres"}, {"lane_processes": 0}, {"lanes": "threads", "lane_processes": 2}):
        with pytest.raises(InvalidInput):
            work(lanes.Noting, **options)


def test_fewer_processes_than_lanes_and_shards_over_more_than_lanes(hub: Hub, work: Make) -> None:
    hub.create_stream(STREAM, shards=4)
    for shard in range(4):
        append_numbers(hub, STREAM, shard, range(20))
    one = work(lanes.Noting, parallelism=4, lane_processes=1).start()
    eventually(lambda: one.stats.records == 80, "all is processed", PATIENCE_S)
    assert len(one.lane_pids) == 1
    assert len(lanes.notes("initialize")) == 16
    one.stop()
    append_numbers(hub, STREAM, 0, range(20))
    two = work(lanes.Noting, "bert", parallelism=1, lane_processes=2).start()
    eventually(lambda: two.stats.records == 20, "all is processed", PATIENCE_S)
    eventually(lambda: len(two.lane_pids) == 2, "shards are spread", PATIENCE_S)


# --- Processes that die. -----------------------------------------------------------------------------


def test_a_lane_that_is_killed_in_the_midst_of_a_batch_loses_nothing_and_keeps_every_key_in_order(
    hub: Hub, work: Make, coordination: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub.create_stream(STREAM, shards=2)
    send(hub, range(200))
    worker = work(lanes.Dying, coordination=coordination, parallelism=3, batch_records=10).start()
    wait_for(200)
    eventually(lambda: worker.stats.records == 200, "all is processed", PATIENCE_S)
    worker.stop()
    assert worker.stats.lane_deaths == 1
    assert "raised LaneProcessDied" in caplog.text
    assert "SIGKILL" in caplog.text
    (died,) = lanes.notes("dies")
    assert died.pid not in {one.pid for one in lanes.notes() if one.at_ns > died.at_ns}
    by_key = lanes.given()
    for number in range(KEYS):
        assert firsts(by_key[f"key-{number}"]) == list(range(number, 200, KEYS))
    repeated = sum(map(len, by_key.values())) - 200
    assert 0 < repeated <= 10, "the batch that was under way, and no more"
    assert hub.describe_group(STREAM, GROUP).lag == 0


def test_what_a_dead_lane_had_not_declared_done_comes_again_though_nothing_new_does(
    hub: Hub, work: Make
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(20))
    worker = work(lanes.Hoarding, parallelism=1, batch_records=5).start()
    eventually(lambda: worker.stats.records == 20, "all was given, nothing saved", PATIENCE_S)
    (pid,) = worker.lane_pids
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: lanes.given()["-"] == [*range(20)] * 2, "all comes again", PATIENCE_S)
    assert checkpoints(hub, STREAM, GROUP) == {0: 0}
    assert worker.stats.failures == 0, "no call failed"
    worker.stop()
    assert checkpoints(hub, STREAM, GROUP) == {0: 20}


def test_a_record_that_ends_its_process_is_set_aside_and_its_neighbours_go_on(hub: Hub, work: Make) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(12))
    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK.backoff, max_attempts=1)
    worker = work(lanes.Poisoned, failure=rules, parallelism=1, until="now").start()
    assert worker.wait(PATIENCE_S)
    assert worker.error is None
    assert worker.stats.lane_deaths == 2, "once among its neighbours, once alone"
    (buried,) = read_shard(hub, f"{STREAM}.{GROUP}.dead", 0)
    assert buried.value == b"7"
    assert firsts(lanes.given()["-"]) == [n for n in range(12) if n != 7]
    assert checkpoints(hub, STREAM, GROUP) == {0: 12}


def test_a_lane_that_hangs_is_ended_with_its_worker(hub: Hub, work: Make) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(3))
    worker = work(lanes.Hanging, parallelism=1).start()
    eventually(lambda: bool(lanes.notes("given")), "it hangs", PATIENCE_S)
    (pid,) = worker.lane_pids
    began_s = time.monotonic()
    worker.stop(timeout=0.3)
    assert time.monotonic() - began_s < 15
    assert not psutil.pid_exists(pid)
    assert not worker.is_running


def test_a_store_that_is_away_is_known_as_such_in_a_lane(
    hub: Hub, work: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(3))
    save = hub.service.groups.save
    refused: list[int] = []

    def save_later(*arguments: Any) -> None:
        if len(refused) < 2:
            refused.append(1)
            raise shoal.errors.StoreUnavailable("away")
        save(*arguments)

    monkeypatch.setattr(hub.service.groups, "save", save_later)
    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK.backoff)
    worker = work(lanes.function, failure=rules, parallelism=1).start()
    eventually(lambda: worker.stats.failures == 1, "it is told", PATIENCE_S)
    worker.stop()
    assert checkpoints(hub, STREAM, GROUP) == {0: 3}, "nothing is lost"
    assert worker.stats.retries == 0, "no record is to blame"
    assert "raised StoreUnavailable: the store cannot be reached: away" in caplog.text


# --- The worker's own process. -----------------------------------------------------------------------

Begin = Callable[..., tuple["subprocess.Popen[str]", list[int]]]


@pytest.fixture
def begin(sqlite_url: str) -> Iterator[Begin]:
    started: list[subprocess.Popen[str]] = []

    def start(processor: str, timeout_s: float = 30.0) -> tuple[subprocess.Popen[str], list[int]]:
        root = Path(__file__).parents[2]
        process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("lane_program.py")),
                sqlite_url,
                processor,
                str(timeout_s),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])},
        )
        started.append(process)
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2, process.communicate(timeout=PATIENCE_S)
        return process, pids

    yield start
    for process in started:
        process.kill()
        process.communicate()


def gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


@pytest.mark.parametrize("processor", ["Noting", "Hanging"])
def test_lanes_end_within_seconds_when_their_worker_is_killed(hub: Hub, begin: Begin, processor: str) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(4))
    process, pids = begin(processor)
    eventually(lambda: bool(lanes.notes("given")), "they work", PATIENCE_S)
    process.kill()
    assert eventually(lambda: gone(pids), "they are gone", PATIENCE_S) < 10


def test_a_lane_hands_out_nothing_past_the_deadline_of_a_worker_that_stands_still(
    hub: Hub, begin: Begin
) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(2000))
    timeout_s = 1.0
    process, pids = begin("Slow", timeout_s)
    eventually(lambda: len(lanes.notes("given")) > 200, "they work, past the first deadline", PATIENCE_S)
    os.kill(process.pid, signal.SIGSTOP)
    stopped_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    time.sleep(timeout_s * 2)
    last_ns = lanes.notes("given")[-1].at_ns
    assert last_ns - stopped_ns <= timeout_s * 1e9, "nothing after the deadline that it had"
    os.kill(process.pid, signal.SIGCONT)
    lanes.set_flag("hurry")
    eventually(lambda: lanes.notes("given")[-1].at_ns > stopped_ns + 2e9, "and then it goes on", PATIENCE_S)
    assert not gone(pids)


@pytest.mark.parametrize("to", ["group", "all"])
def test_ctrl_c_and_a_signal_for_all_processes_let_the_batch_finish(hub: Hub, begin: Begin, to: str) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(100))
    process, pids = begin("Slow")
    eventually(lambda: len(lanes.notes("given")) > 3, "they work", PATIENCE_S)
    if to == "group":
        os.killpg(process.pid, signal.SIGINT)
    else:
        for pid in (*pids, process.pid):
            os.kill(pid, signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "over\n"), err
    assert "LaneProcessDied" not in err
    assert gone(pids)
    assert checkpoints(hub, STREAM, GROUP) == {0: 100}
    assert hub.describe_group(STREAM, GROUP).members == ()
    assert len(lanes.notes("given")) == 100


def test_a_processor_of_the_program_itself_is_found(hub: Hub, begin: Begin) -> None:
    hub.create_stream(STREAM, shards=1)
    append_numbers(hub, STREAM, 0, range(4))
    process, _ = begin("InMain")
    eventually(lambda: len(lanes.notes("given")) == 4, "it works", PATIENCE_S)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=PATIENCE_S)[0] == "over\n"


def test_the_log_names_a_process_that_died(hub: Hub, work: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    hub.create_stream(STREAM, shards=1)
    worker = work(lanes.Noting, parallelism=1).start()
    eventually(lambda: bool(lanes.notes("initialize")), "it is there", PATIENCE_S)
    (pid,) = worker.lane_pids
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: f"process {pid} of its lanes ended: SIGKILL" in caplog.text, "it is told", PATIENCE_S)
    append_numbers(hub, STREAM, 0, range(4))
    eventually(lambda: len(lanes.notes("given")) == 4, "a new one goes on", PATIENCE_S)
    assert len(lanes.notes("initialize")) == 2


def test_a_program_that_starts_its_worker_wherever_it_is_imported_is_told_so(
    hub: Hub, sqlite_url: str, tmp_path: Path
) -> None:
    hub.create_stream(STREAM, shards=1)
    program = tmp_path / "unguarded.py"
    program.write_text(
        "import sys\n"
        "import shoal\n"
        "class Mine(shoal.Processor):\n"
        "    def process(self, batch, checkpointer): ...\n"
        "hub = shoal.connect(sys.argv[1])\n"
        "stop = shoal.FailureRules(policy=shoal.Policy.STOP)\n"
        "shoal.Worker(hub, 'orders', 'billing', Mine, lanes='processes', failure=stop).run()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program), sqlite_url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    assert ended.returncode == 1
    assert "ProcessorFailed: shard=0: the processor raised InvalidInput" in ended.stderr
    assert 'start the worker under `if __name__ == "__main__":`' in ended.stderr


def starve_the_pool() -> None:
    """Try to start a lane's process with no, one, two and three descriptors left, and count them after."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    pool = LanePool(factory_of(lanes.Noting), (), 1, "anna")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    gaps = [os.open(os.devnull, os.O_RDONLY)]
    while gaps[-1] <= highest:  # the limit is on the number of a descriptor: those below must all be taken
        gaps.append(os.open(os.devnull, os.O_RDONLY))
    before = count()
    for room in range(4):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (gaps[-1] + 1 + room, hard))
            with pytest.raises(OSError, match="Too many open files"):
                pool.process(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert count() == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted in /proc")
def test_a_process_that_cannot_be_started_leaves_no_descriptor_behind() -> None:
    """Or the next attempt would have even fewer. In a process where nobody else opens or closes any."""
    starving = get_context("spawn").Process(target=starve_the_pool)
    starving.start()
    starving.join(PATIENCE_S)
    assert starving.exitcode == 0
