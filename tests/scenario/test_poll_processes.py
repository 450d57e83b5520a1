"""Consumers that poll through joins, leaves, splits, merges and kill -9, by each of the recipes.

Defends invariants 3, 4 and 5 for user code that polls: at least once loses nothing, at most once repeats
nothing, exactly once does neither; and keys stay in order.
"""

import signal
import sqlite3
from collections import Counter, defaultdict
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path

import pytest

import shoal
from shoal.testing.members import eventually
from shoal.testing.workers import Worker
from tests.scenario.poll_process import GROUP, STREAM, poll_until_told, prepare

pytestmark = pytest.mark.alone

PATIENCE_S = 60.0
KEYS = [b"key-%d" % number for number in range(16)]


class Story:
    """Consumers that come and go, and what they have done."""

    def __init__(self, hub: shoal.Hub, url: str, path: Path, how: tuple[str, str]) -> None:
        self._hub, self._url, self._path, self._how = hub, url, path, how
        self._names = count()
        self._running: list[Worker] = []
        self.stack = ExitStack()
        self.sent = 0
        prepare(path)

    def join(self) -> Worker:
        name = f"consumer-{next(self._names)}"
        worker = self.stack.enter_context(Worker(poll_until_told, self._url, name, self._path, self._how))
        worker.wait_for_reports(1, PATIENCE_S)
        return worker

    def send(self, producer: shoal.Producer, records: int) -> None:
        for _ in range(records):
            producer.send(b"%d" % self.sent, key=KEYS[self.sent % len(KEYS)])
            self.sent += 1
        producer.flush()

    def done(self) -> list[tuple[bytes, int]]:
        """Key and number, in the order of time."""
        with closing(sqlite3.connect(self._path, timeout=30)) as database:
            rows = database.execute("SELECT key, value FROM done ORDER BY number").fetchall()
        return [(bytes(key), int(value)) for key, value in rows]

    def wait_for(self, part: float) -> None:
        """So much of what was sent has been done, or is passed over for good."""
        wanted = int(self.sent * part)
        eventually(
            lambda: len(set(self.done())) >= wanted or (part == 1 and self.lag() == 0),
            "it is done",
            PATIENCE_S,
        )

    def lag(self) -> int:
        return self._hub.describe_group(STREAM, GROUP).lag


def leave(worker: Worker) -> None:
    worker.send_signal(signal.SIGTERM)
    worker.join(PATIENCE_S)


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
@pytest.mark.parametrize("how", ["at_most_once", "at_least_once", "commit_after", "exactly_once"])
def test_consumers_that_come_go_and_are_killed(
    hub: shoal.Hub, sqlite_url: str, tmp_path: Path, how: str, coordination: str
) -> None:
    hub.create_stream(STREAM, shards=2)
    story = Story(hub, sqlite_url, tmp_path / "sink.db", (how, coordination))
    with story.stack, hub.producer(STREAM, linger_s=0.002) as producer:
        first = story.join()
        story.send(producer, 400)
        second = story.join()
        story.send(producer, 400)
        story.wait_for(0.3)
        first.kill()
        story.send(producer, 400)
        third = story.join()
        hub.split_shard(STREAM, 0)
        story.send(producer, 400)
        leave(second)
        hub.merge_shards(STREAM, 2, 3)
        story.send(producer, 400)
        third.kill()
        fourth = story.join()
        eventually(lambda: story.lag() == 0, "all of it is consumed", PATIENCE_S)
        leave(fourth)
    _check(how, story.done(), story.sent)


def _check(how: str, done: list[tuple[bytes, int]], sent: int) -> None:
    times = Counter(number for _, number in done)
    if how != "at_most_once":
        assert set(times) == set(range(sent)), "nothing is lost"
    if how in ("at_most_once", "exactly_once"):
        assert set(times.values()) == {1}, "nothing comes twice"
    if how == "at_most_once":
        assert len(times) > sent // 2
    firsts = defaultdict(list)
    seen: set[int] = set()
    for key, number in done:
        if number not in seen:
            seen.add(number)
            firsts[key].append(number)
    for key, numbers in firsts.items():
        assert numbers == sorted(numbers), f"{key!r} is out of order"
