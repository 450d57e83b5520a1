"""A machine that sleeps, and a wall clock that jumps.

From outside, a sleep is all processes of `shoal work` stopped at once, supervisor and children, while another
machine's worker takes over. Inside, the clock that deadlines go by, CLOCK_BOOTTIME, leaps ahead of the one
that watches go by. Nothing short of a suspended machine does that, and nobody may set the hour of the machine
that tests run on; so these two clocks, and no others, are moved under a worker's feet.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.consumer import held, user_code
from shoal.core.errors import LeaseLost
from shoal.core.retry import FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints
from shoal.testing.server import Server
from tests.scenario.programs import Start, finish

pytestmark = pytest.mark.alone

STREAM, GROUP = "orders", "billing"
TIMEOUT_S: Final = 1.0
PROCESSOR: Final = f"{Path(__file__).parent / 'sleepy_processor.py'}:Sleepy"
SHARDS, RECORDS = 2, 200


@pytest.fixture(params=["coordinated", "leased"])
def coordination(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


# --- All processes of a machine stand still. ---------------------------------------------------------


@dataclass(frozen=True, order=True)
class Line:
    at_ns: int
    kind: str
    pid: int
    shard: int
    epoch: int
    rest: str


def lines_of(log: Path) -> list[Line]:
    found = []
    for text in log.read_text().split("\n")[:-1] if log.exists() else ():  # The last may be half a line yet.
        kind, at, pid, shard, epoch, rest = text.split(" ")
        found.append(Line(int(at), kind, int(pid), int(shard), int(epoch), rest))
    return sorted(found)


class Machine:
    """`shoal work` and all that it started."""

    def __init__(self, program: subprocess.Popen[bytes]) -> None:
        self._program = program
        self.pids: set[int] = set()
        assert program.stdout is not None
        for line in map(json.loads, program.stdout):
            if line["type"] == "status" and all(one["shards"] for one in line["processes"]):
                self.pids = {one["pid"] for one in line["processes"]}
                break
        assert len(self.pids) == 2

    def sleep(self) -> None:
        parent = psutil.Process(self._program.pid)
        # The supervisor first: it must not see that the others stand still.
        self._asleep = [parent, *parent.children(recursive=True)]
        for process in self._asleep:
            process.send_signal(signal.SIGSTOP)
        assert self.pids <= {process.pid for process in self._asleep}

    def wake(self) -> None:
        for process in reversed(self._asleep):
            process.send_signal(signal.SIGCONT)


@pytest.fixture
def url(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Not SQLite: a process that is stopped while it writes has its file's one lock (see docs/stores.md)."""
    made = postgres_server.fresh_database()
    monkeypatch.setenv("SHOAL_HUB", made)
    yield made
    postgres_server.drop_database(made)


def test_a_machine_that_slept_past_its_deadlines_does_no_harm_when_it_wakes_and_works_again(
    url: str, coordination: str, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "acts"
    monkeypatch.setenv("SLEEPY_LOG", str(log))
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=SHARDS)
        hub.create_group(STREAM, GROUP, coordination=coordination, timeout=TIMEOUT_S)
        program = start(
            "work", PROCESSOR, "-s", STREAM, "-g", GROUP, "-n", "2", "--name", "sleeper",
            "--every", "200ms", "--json",
        )  # fmt: skip
        machine = Machine(program)
        for shard in range(SHARDS):
            append_numbers(hub, STREAM, shard, range(RECORDS))
        eventually(lambda: {line.shard for line in lines_of(log)} == {0, 1}, "it is in the midst of both")
        time.sleep(0.1)
        machine.sleep()
        slept_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        before = checkpoints(hub, STREAM, GROUP)

        diary = Diary()
        with Worker(hub, STREAM, GROUP, diary.processor("waking"), name="waking"):
            for shard in range(SHARDS):
                wanted = list(range(before[shard], RECORDS))
                eventually(lambda s=shard, w=wanted: diary.offsets(s) == w, "the other has it all")  # type: ignore[misc]
            woke_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            machine.wake()
            eventually(lambda: _told(log, woke_ns) == {(0, "lost"), (1, "lost")}, "it is told")
        # The other has left, with what it saved: the machine works again, from there on.
        for shard in range(SHARDS):
            append_numbers(hub, STREAM, shard, range(5))
        eventually(lambda: hub.describe_group(STREAM, GROUP).lag == 0, "and works again", every_s=0.1)
        program.send_signal(signal.SIGTERM)
        code, _, err = finish(program)
        assert (code, err) == (0, b"")

    assert woke_ns - slept_ns > TIMEOUT_S * 1e9
    lines = lines_of(log)
    assert not [line for line in lines if slept_ns + 1e8 < line.at_ns < woke_ns], "it slept"
    old = {line.epoch for line in lines if line.at_ns < slept_ns}
    late = [line for line in lines if line.kind == "R" and line.at_ns > woke_ns and line.epoch in old]
    # What user code was at, it may have said after it woke: the record was handed over before.
    assert len(late) <= SHARDS, f"records that were another's by then: {late}"
    again = [line for line in lines if line.kind == "R" and line.epoch not in old]
    for shard in range(SHARDS):
        offsets = [int(line.rest) for line in again if line.shard == shard]
        assert offsets == list(range(RECORDS, RECORDS + 5)), "what another did meanwhile counts"
    assert {line.pid for line in lines} <= machine.pids, "nobody was taken for dead"


def _told(log: Path, after_ns: int) -> set[tuple[int, str]]:
    return {(line.shard, line.rest) for line in lines_of(log) if line.kind == "E" and line.at_ns > after_ns}


# --- Clocks that leap. -------------------------------------------------------------------------------


class Clocks:
    """What a machine shows that slept, or whose hour was set. CLOCK_MONOTONIC stays as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_ns = {time.CLOCK_BOOTTIME: 0, time.CLOCK_REALTIME: 0}
        real_ns = time.clock_gettime_ns

        def clock_gettime_ns(clock: int) -> int:
            return real_ns(clock) + self._ahead_ns.get(clock, 0)

        def wall_ns() -> int:
            return clock_gettime_ns(time.CLOCK_REALTIME)

        monkeypatch.setattr(time, "clock_gettime_ns", clock_gettime_ns)
        monkeypatch.setattr(time, "time_ns", wall_ns)
        monkeypatch.setattr(time, "time", lambda: wall_ns() / 1e9)
        for room in (user_code, held):  # They have the clock at hand: it is looked at before every record.
            monkeypatch.setattr(room, "clock_ns", partial(clock_gettime_ns, time.CLOCK_BOOTTIME))

    def sleep(self, seconds: float) -> None:
        """What the machine slept through, its wall clock shows too."""
        for clock in self._ahead_ns:
            self._ahead_ns[clock] += int(seconds * 1e9)

    def set_forward(self, seconds: float) -> None:
        self._ahead_ns[time.CLOCK_REALTIME] += int(seconds * 1e9)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_an_hour_of_sleep_ends_the_batch_under_way_and_counts_against_nobody(
    hub: Hub, coordination: str, clocks: Clocks
) -> None:
    hub.create_stream(STREAM, shards=2)
    hub.create_group(STREAM, GROUP, coordination=coordination, timeout=4.0)
    given: list[int] = []
    ended: list[LeaseLost] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        try:
            for record in batch:
                if batch.shard == 0:
                    given.append(record.offset)
                    if record.offset == 2 and not ended:
                        clocks.sleep(3600)
        except LeaseLost as error:
            ended.append(error)
            raise
        checkpointer.save()

    with (
        Worker(hub, STREAM, GROUP, process, name="anna") as anna,
        Worker(hub, STREAM, GROUP, process, name="bert") as bert,
    ):
        eventually(lambda: {len(anna.shards), len(bert.shards)} == {1}, "each has one")
        for shard in (0, 1):
            append_numbers(hub, STREAM, shard, range(5))
        # The next heartbeat, or renewal, makes deadlines valid again: nobody has watched meanwhile.
        eventually(lambda: anna.stats.records == bert.stats.records == 5, "both go on")
        assert given == [0, 1, 2, 0, 1, 2, 3, 4], "from what was saved"
        assert len(ended) == 1, "it ended with the next record"
        assert anna.stats.failures == bert.stats.failures == 0
        assert anna.stats.lost == bert.stats.lost == 0
        assert len(hub.describe_group(STREAM, GROUP).members) == 2
    assert not [note for _, note in hub.group_history(STREAM, GROUP) if note.kind == "expired"]


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_day_by_which_the_wall_clock_jumps_is_not_noticed_and_no_delay_gets_longer(
    hub: Hub, coordination: str, clocks: Clocks, jump_s: float
) -> None:
    hub.create_stream(STREAM, shards=2)
    hub.create_group(STREAM, GROUP, coordination=coordination, timeout=4.0)
    failed_s: list[float] = []
    done: dict[bytes, float] = {}

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        for record in batch:
            if record.value == b"3" and batch.stream == STREAM:
                if not failed_s:
                    clocks.set_forward(jump_s)  # Before it is set aside; and back, while it waits there.
                failed_s.append(time.monotonic())
                raise ValueError("not here")
            done[record.value] = time.monotonic()
            checkpointer.save(persist=False)

    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.5,))
    with (
        Worker(hub, STREAM, GROUP, process, name="anna", failure=rules) as anna,
        Worker(hub, STREAM, GROUP, process, name="bert", failure=rules) as bert,
    ):
        eventually(lambda: {len(anna.shards), len(bert.shards)} == {1}, "each has one")
        append_numbers(hub, STREAM, 0, range(5))
        eventually(lambda: anna.stats.retries + bert.stats.retries == 1, "it is set aside")
        clocks.set_forward(-2 * jump_s)
        append_numbers(hub, STREAM, 1, range(5, 10))
        eventually(lambda: set(done) == {b"%d" % number for number in range(10)}, "all is processed")
        assert anna.stats.lost + bert.stats.lost == anna.stats.dead + bert.stats.dead == 0
    assert done[b"3"] - failed_s[-1] < 10, "it waited for half a second, and not for a day"
    assert not [note for _, note in hub.group_history(STREAM, GROUP) if note.kind == "expired"]
