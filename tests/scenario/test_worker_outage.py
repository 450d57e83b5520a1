"""A real database that is away for ten seconds, which is ten times the groups' timeout; or for as long as
SHOAL_OUTAGE_S says: `make soak` takes ten minutes.

Shown for workers of both kinds of group: nobody acts without a valid deadline, though there is plenty to do;
waiting costs next to nothing, in the processor and in the log; everything goes on by itself, nothing is lost,
and nothing is repeated but what was not saved. Prints the figures.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

import shoal
from shoal.testing.members import eventually
from shoal.testing.processing import append_numbers
from shoal.testing.server import Server
from shoal.testing.workers import Worker
from tests.scenario.outage_worker import STREAM, TIMEOUT_S, work_through_an_outage

pytestmark = pytest.mark.alone

OUTAGE_S: Final = float(os.environ.get("SHOAL_OUTAGE_S", "10"))
GROUPS: Final = ("coordinated", "leased")
SHARDS, RECORDS, LATER = 4, 4000, 10
"""Of each shard before the outage: more than can be done in it at the pace of the workers; and after it."""
SHARE_MAX: Final = 0.1
"""Of a core, of each process, while it waits."""
LINES_MAX: Final = 60
"""In the log of each process, however long it takes."""


@dataclass(frozen=True, order=True)
class Act:
    """A batch that was handed to user code (P), or that its save came back for (S)."""

    at_ns: int
    kind: str
    group: str
    shard: int
    epoch: int
    first: int
    next: int


class Crew:
    """Two processes for each kind of group, and what they wrote down."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._slow = folder / "slow"
        self._slow.touch()
        self.workers = {
            name: stack.enter_context(Worker(work_through_an_outage, url, group, name, folder))
            for group in GROUPS
            for name in (f"{group}-1", f"{group}-2")
        }
        for worker in self.workers.values():
            worker.wait_for_reports(1, 60)

    def acts(self) -> list[Act]:
        found = []
        for path in self._folder.glob("*.acts"):
            for text in path.read_text().split("\n")[:-1]:  # The last may be half a line yet.
                kind, *numbers = text.split(" ")
                found.append(Act(int(numbers[0]), kind, path.stem[:-2], *map(int, numbers[1:])))
        return sorted(found)

    def has_reached(self, offset: int) -> bool:
        """Whether every shard of both groups has come so far."""
        ends = {(act.group, act.shard) for act in self.acts() if act.next == offset}
        return len(ends) == len(GROUPS) * SHARDS

    def hurry(self) -> None:
        self._slow.unlink()

    def used_s(self) -> dict[str, float]:
        """Processor time of each process so far."""
        times = {name: psutil.Process(worker.pid).cpu_times() for name, worker in self.workers.items()}
        return {name: one.user + one.system for name, one in times.items()}

    def lines(self) -> dict[str, list[str]]:
        """The log of each process so far: what was said, however many lines it took."""
        logs = {name: (self._folder / f"{name}.log").read_text() for name in self.workers}
        return {
            name: [one for one in log.splitlines() if one.startswith("said ")] for name, log in logs.items()
        }

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers.values():
            worker.join(60)


@pytest.fixture
def url(postgres_server: Server) -> Iterator[str]:
    made = postgres_server.fresh_database()
    yield made
    if not postgres_server.is_running:
        postgres_server.start()
    postgres_server.drop_database(made)


@pytest.mark.timeout(OUTAGE_S + 240)
def test_workers_wait_for_a_database_that_is_long_away_and_go_on_where_they_were(
    postgres_server: Server, url: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        hub = stack.enter_context(shoal.connect(url))
        hub.create_stream(STREAM, shards=SHARDS)
        for shard in range(SHARDS):
            append_numbers(hub, STREAM, shard, range(RECORDS))
        for group in GROUPS:
            hub.create_group(STREAM, group, coordination=group, timeout=TIMEOUT_S)
        crew = Crew(url, tmp_path, stack)
        eventually(lambda: _are_even(hub), "each worker has its share, and works", 60, every_s=0.1)

        gone_ns, used_s, lines = _now_ns(), crew.used_s(), crew.lines()
        postgres_server.stop("immediate")
        time.sleep(OUTAGE_S)
        used_s = {name: after - used_s[name] for name, after in crew.used_s().items()}
        lines = {name: after[len(lines[name]) :] for name, after in crew.lines().items()}
        back_ns = _now_ns()
        postgres_server.start()

        first = {group: _next_act(crew, group, back_ns) for group in GROUPS}
        crew.hurry()
        eventually(lambda: crew.has_reached(RECORDS), "all is consumed", 120, every_s=0.2)
        for shard in range(SHARDS):
            append_numbers(hub, STREAM, shard, range(LATER))
        eventually(lambda: crew.has_reached(RECORDS + LATER), "and what came later", every_s=0.1)
        crew.stop()
        assert [hub.describe_group(STREAM, group).lag for group in GROUPS] == [0, 0]
        acts = crew.acts()
        moved = [
            note for group in GROUPS for _, note in hub.group_history(STREAM, group) if note.kind == "expired"
        ]

    for group in GROUPS:
        mine = [act for act in acts if act.group == group]
        late = [act for act in mine if act.kind == "P" and _is_late(act, gone_ns, back_ns)]
        assert not late, f"{group}: acted without a deadline: {late[:3]}"
        repeated, allowed = _check_deliveries(mine)
        name = f"{group}, away {OUTAGE_S:g} s"
        _tell(f"{name}: first batch {(first[group] - back_ns) / 1e9:.2f} s after the start of the server")
        _tell(f"{name}: {repeated} records repeated, {allowed} of them not saved; {len(moved)} expired")
    for worker, share in used_s.items():
        _tell(f"{worker}: {share / OUTAGE_S:.2%} of a core, {len(lines[worker])} lines of log")
    assert max(used_s.values()) / OUTAGE_S < SHARE_MAX, used_s
    for worker, told in lines.items():
        assert 0 < len(told) <= LINES_MAX, f"{worker}: {told[:LINES_MAX]}"


def _is_late(act: Act, gone_ns: int, back_ns: int) -> bool:
    """After the last deadline that anyone can have got before the database went, and before it came back."""
    return gone_ns + TIMEOUT_S * 1e9 < act.at_ns < back_ns


def _are_even(hub: shoal.Hub) -> bool:
    infos = [hub.describe_group(STREAM, group) for group in GROUPS]
    return all(
        info.state == "stable"
        and [member.shards for member in info.members] == [2, 2]
        and all(shard.checkpoint > 0 for shard in info.shards if shard.id % 2 == 0)
        for info in infos
    )


def _next_act(crew: Crew, group: str, after_ns: int) -> int:
    """When the group's user code was given a batch again."""

    def found() -> list[int]:
        return [act.at_ns for act in crew.acts() if act.group == group and act.at_ns > after_ns]

    eventually(lambda: bool(found()), f"{group} goes on", 60, every_s=0.1)
    return min(found())


def _check_deliveries(acts: list[Act]) -> tuple[int, int]:
    """Every record is delivered, in order; how many came again, and how many of them were not saved.

    What was saved at once never comes again. What was saved for later comes again only from a later owner.
    """
    repeated = unsaved = 0
    for shard in range(SHARDS):
        mine = [act for act in acts if act.shard == shard]
        reached = saved = epoch = 0
        for act in mine:
            if act.kind == "S":
                saved = act.next if shard % 2 == 0 or act.epoch == epoch else saved
                continue
            assert act.first <= reached, f"shard {shard}: {reached} to {act.first} were passed over"
            is_new_owner, epoch = act.epoch != epoch, act.epoch
            again = reached - act.first
            if again:
                assert act.first >= saved or (shard % 2 and is_new_owner), f"{act} after {saved}"
                repeated += again
                unsaved += max(0, reached - max(saved, act.first))
            reached = max(reached, act.next)
        assert reached == RECORDS + LATER
    return repeated, unsaved


def _now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _tell(figures: str) -> None:
    print(figures)  # noqa: T201 - asked for; seen with -s
