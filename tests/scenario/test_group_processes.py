"""Real consumers in processes of their own: killed, stopped, added, leaving, over shards that are split.

Defends invariants 1 and 6: at every moment at most one is entitled to act on a shard, and in the end
everything is owned, evenly, and nothing moves. The clock of the logs is the machine's, the same for all.
"""

import signal
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import shoal
from shoal.testing.members import eventually
from shoal.testing.workers import Worker
from tests.scenario.group_consumer import GROUP, STREAM, consume_until_told

pytestmark = pytest.mark.alone

SHARDS = 100
TIMEOUT_S = 2.0
LOOK_S = 0.1
"""Between two looks at the group: it is the consumers that are to have the machine."""


class Consumers:
    """Processes by name, and their logs."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self._url, self._folder, self._stack = url, folder, stack
        self._workers: dict[str, Worker] = {}

    def start(self, names: Iterable[str]) -> None:
        started = {
            name: Worker(consume_until_told, self._url, name, self._folder / f"{name}.log") for name in names
        }
        for name, worker in started.items():
            self._workers[name] = self._stack.enter_context(worker)
        for worker in started.values():
            worker.wait_for_reports(1, 60)

    def signal(self, name: str, number: signal.Signals) -> None:
        self._workers[name].send_signal(number)

    def stop_between_transactions(self, name: str) -> None:
        """SIGSTOP. On SQLite a process that is stopped while it writes holds the file's one lock, and all
        others wait for it, whatever our rules are; so it is stopped again until it does not. A thread that is
        taking the lock when the signal comes has it before it stops."""
        tasks = Path(f"/proc/{self._workers[name].pid}/task")
        for _ in range(50):
            self.signal(name, signal.SIGSTOP)
            eventually(lambda: all(_is_stopped(task) for task in tasks.iterdir()), f"{name} stands still")
            if self._is_writable():
                return
            self.signal(name, signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError(f"{name} always holds the lock")

    def _is_writable(self) -> bool:
        if not self._url.startswith("sqlite"):
            return True
        path = self._url.removeprefix("sqlite:///")
        try:
            with closing(sqlite3.connect(path, timeout=2.0, isolation_level=None)) as probe:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        return True

    def acts(self) -> list[tuple[int, str, int, int]]:
        """(time, who, shard, epoch) of all processes, in the order of time."""
        found = []
        for log in self._folder.glob("*.log"):
            # The last line of one that was killed may be torn.
            for line in log.read_text().split("\n")[:-1]:
                for act in line.split(" "):
                    at, shard, epoch = act.split(":")
                    found.append((int(at), log.stem, int(shard), int(epoch)))
        return sorted(found)


def _is_stopped(task: Path) -> bool:
    """Whether a thread stands still, or is gone."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shoal.db'}"
    found: str = request.getfixturevalue("postgres_server").fresh_database()
    return found


@pytest.fixture
def consumers(url: str, tmp_path: Path) -> Iterator[Consumers]:
    (tmp_path / "logs").mkdir()
    with ExitStack() as stack:
        yield Consumers(url, tmp_path / "logs", stack)


@pytest.fixture(params=["coordinated", "leased"])
def coordination(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def settle(hub: shoal.Hub, consumers: int) -> float:
    """Wait until everyone is there, holds an even share, and nothing moves; seconds it took."""

    def is_even() -> bool:
        info = hub.describe_group(STREAM, GROUP)
        counts = [member.shards for member in info.members]
        return info.state == "stable" and len(counts) == consumers and max(counts) - min(counts) <= 1

    try:
        return eventually(is_even, f"{consumers} consumers settle", 60, every_s=LOOK_S)
    except AssertionError as error:
        told = [f"{at:%S.%f} {note}" for at, note in hub.group_history(STREAM, GROUP, 60)]
        raise AssertionError(
            f"{error}: {hub.describe_group(STREAM, GROUP).members}\n" + "\n".join(told)
        ) from error


def test_one_owner_at_every_moment_and_an_even_end_through_kills_stops_joins_splits_and_leaves(
    url: str, coordination: str, consumers: Consumers
) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=SHARDS)
        for shard in range(SHARDS):
            hub.append(STREAM, shard, [b"record"] * 3)
        hub.create_group(STREAM, GROUP, timeout=TIMEOUT_S, coordination=coordination)
        marks: dict[str, int] = {}

        def begin(what: str) -> None:
            marks[what] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

        begin("start")
        consumers.start(f"c{i}" for i in range(10))
        settle(hub, 10)

        begin("kill")
        for name in ("c0", "c1", "c2"):
            consumers.signal(name, signal.SIGKILL)
        settle(hub, 7)

        begin("stop")
        consumers.stop_between_transactions("c3")
        settle(hub, 6)
        consumers.signal("c3", signal.SIGCONT)
        settle(hub, 7)

        begin("add")
        consumers.start(f"c{i}" for i in range(10, 15))
        settle(hub, 12)

        begin("split")
        for shard in range(0, 100, 10):
            hub.split_shard(STREAM, shard)
        eventually(lambda: len(_owned(hub)) == SHARDS + 10, "all open shards are owned", every_s=LOOK_S)
        settle(hub, 12)

        begin("leave")
        for name in ("c4", "c5"):
            consumers.signal(name, signal.SIGTERM)
        settle(hub, 10)

        begin("rest")
        before = _hands(hub)
        time.sleep(TIMEOUT_S)
        assert _hands(hub) == before, [note for _, note in hub.group_history(STREAM, GROUP, 20)]
        assert hub.describe_group(STREAM, GROUP).lag == 0
        owned = _owned(hub)
        assert len(owned) == SHARDS + 10

    acts = consumers.acts()
    assert {shard for _, _, shard, _ in acts} == set(range(SHARDS + 20)), "every shard was acted on"
    assert {shard for at, _, shard, _ in acts if at > marks["leave"]} >= owned, "and is, to the end"
    _check_one_owner(acts)
    _print_pauses(acts, marks)


def _owned(hub: shoal.Hub) -> set[int]:
    info = hub.describe_group(STREAM, GROUP)
    return {shard.id for shard in info.shards if shard.state == "already_alloc"}


def _hands(hub: shoal.Hub) -> list[tuple[int, str | None, str | None, int]]:
    """Who has each shard, or is to have it, and under which epoch: all that moving would change."""
    shards = hub.describe_group(STREAM, GROUP).shards
    return [(shard.id, shard.owner, shard.next, shard.epoch) for shard in shards]


def _check_one_owner(acts: list[tuple[int, str, int, int]]) -> None:
    """Nobody acts under an epoch after someone acted under a later one; an epoch has one holder."""
    highest: dict[int, int] = {}
    holder: dict[tuple[int, int], str] = {}
    for at, who, shard, epoch in acts:
        assert epoch >= highest.get(shard, 0), f"{who} acted on shard {shard} under {epoch} at {at}, too late"
        highest[shard] = epoch
        assert holder.setdefault((shard, epoch), who) == who


def _print_pauses(acts: list[tuple[int, str, int, int]], marks: dict[str, int]) -> None:
    """The longest time that each shard stood still, by what happened meanwhile."""
    edges = [*sorted(marks.values()), 2**63]
    names = sorted(marks, key=lambda what: marks[what])
    longest: dict[str, dict[int, int]] = {name: {} for name in names}
    last: dict[int, int] = {}
    for at, _, shard, _ in acts:
        if shard in last:
            phase = next(i for i in range(len(names)) if edges[i] <= last[shard] < edges[i + 1])
            gaps = longest[names[phase]]
            gaps[shard] = max(gaps.get(shard, 0), at - last[shard])
        last[shard] = at
    for place, name in enumerate(names):
        gaps_ms = sorted(gap / 1e6 for gap in longest[name].values())
        took = (
            f", settled in {(edges[place + 1] - edges[place]) / 1e9:.1f} s" if place + 1 < len(names) else ""
        )
        if gaps_ms:
            middle = gaps_ms[len(gaps_ms) // 2]
            print(  # noqa: T201 - asked for
                f"{name}: longest pause of a shard, median {middle:.0f} ms, worst {gaps_ms[-1]:.0f} ms{took}"
            )
