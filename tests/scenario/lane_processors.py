"""Processors for lanes in processes: importable by name, they write down what they are given in files.

Their folder is in the environment, which every process of a test inherits. A line is written at once: what
was written before a process was killed is there.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shoal
from shoal.core.errors import CheckpointMisuse, LeaseLost
from shoal.ports import Pledge

FOLDER = "LANE_PROCESSORS"


def folder() -> Path:
    return Path(os.environ[FOLDER])


def note(kind: str, *facts: object) -> None:
    """A line in the file of this process."""
    line = f"{time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {kind} {' '.join(map(str, facts))}\n"
    descriptor = os.open(folder() / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def is_set(name: str) -> bool:
    return (folder() / name).exists()


def set_flag(name: str) -> None:
    (folder() / name).touch()


def only_once(name: str) -> bool:
    """True for the first who asks, in all processes."""
    try:
        os.close(os.open(folder() / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True, order=True)
class Note:
    at_ns: int
    pid: int
    kind: str
    facts: tuple[str, ...]


def notes(kind: str | None = None) -> list[Note]:
    """Of all processes, in the order of time."""
    found = []
    for log in folder().glob("*.log"):
        for line in log.read_text().split("\n")[:-1]:
            at_ns, what, *facts = line.split(" ")
            if kind in (None, what):
                found.append(Note(int(at_ns), int(log.stem), what, tuple(facts)))
    return sorted(found)


def given() -> dict[str, list[int]]:
    """Values that were given, by key, in order."""
    found = defaultdict(list)
    for one in notes("given"):
        _, _, key, value = one.facts
        found[key].append(int(value))
    return found


class Noting(shoal.Processor):
    """Notes everything, and saves."""

    persist = False

    def initialize(self, shard: int) -> None:
        note("initialize", shard)

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        assert batch.shard == checkpointer.shard
        for record in batch:
            self.take(record, batch, checkpointer)
        checkpointer.save(persist=self.persist)
        return None

    def take(self, record: shoal.Record, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        key = (record.key or b"-").decode()
        note("given", batch.shard, record.offset, key, record.value.decode())

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        try:
            checkpointer.save(persist=False)
            may_save = True
        except LeaseLost:
            may_save = False
        note("shutdown", checkpointer.shard, reason.value, may_save)


class Dying(Noting):
    """Kills its own process, once, in the midst of a batch; nothing of that batch was saved."""

    def take(self, record: shoal.Record, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        super().take(record, batch, checkpointer)
        if record.value == b"60" and only_once("died"):
            note("dies")
            os.kill(os.getpid(), signal.SIGKILL)


class Poisoned(Noting):
    """One record ends the process whenever it comes. Nothing is saved but at the end."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            if record.value == b"7":
                os._exit(3)
            self.take(record, batch, checkpointer)
        return None


class Hoarding(Noting):
    """Saves nothing until it is told to, or shut down."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            self.take(record, batch, checkpointer)
        return None


class Asking(Noting):
    """Tries what a checkpointer refuses, and notes what it says."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        calls: list[Callable[[], int]] = [
            lambda: checkpointer.save(offset=10**6),
            lambda: checkpointer.save(3),  # type: ignore[arg-type]
            lambda: checkpointer.save(offset=2),
            checkpointer.position,
        ]
        for call in calls:
            try:
                note("said", call())
            except CheckpointMisuse as error:
                note("said", type(error).__name__, error.field)
        checkpointer.save()
        note("epoch", checkpointer.epoch)
        return None


class Slow(Noting):
    """Takes its time over every record, until it is told to hurry."""

    def take(self, record: shoal.Record, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        super().take(record, batch, checkpointer)
        if not is_set("hurry"):
            time.sleep(0.02)


class Hanging(Noting):
    def take(self, record: shoal.Record, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        super().take(record, batch, checkpointer)
        time.sleep(600)


class Failing(Noting):
    """Raises at a record until it is told not to."""

    def take(self, record: shoal.Record, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        if record.value == b"5" and not is_set("mended"):
            raise ConnectionResetError("the sink is out")
        super().take(record, batch, checkpointer)
        checkpointer.save(persist=False)


class Returning(Noting):
    """Goes back once."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        super().process(batch, checkpointer)
        return 3 if batch.next_offset == 10 and only_once("back") else None


def function(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
    note("function", len(batch))
    checkpointer.save()


@shoal.processor
def decorated(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
    note("decorated", len(batch))
    checkpointer.save()


class Billing(shoal.Processor):
    """Consume, transform, produce, in a lane's process; some of which are killed before or after a commit."""

    def initialize(self, shard: int) -> None:
        del shard
        self._hub = shoal.connect(os.environ["LANE_HUB"])
        self._producer = self._hub.producer("bills")

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
        with self._producer.transaction() as transaction:
            for record in batch:
                transaction.send(record.value, key=record.key)
            transaction.checkpoint(_Deadly(checkpointer))
            if only_once("refused"):
                raise OSError("after half of the work")
            if batch.next_offset > 40 and only_once("killed-before"):
                os.kill(os.getpid(), signal.SIGKILL)

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        del checkpointer, reason
        self._producer.close()
        self._hub.close()


class _Deadly:
    """A checkpointer in a process that dies once the log has the transaction, and before the worker hears."""

    def __init__(self, checkpointer: shoal.Checkpointer) -> None:
        self._checkpointer = checkpointer

    def pledge(self, offset: int | None = None) -> Pledge:
        pledged = self._checkpointer.pledge(offset)

        def redeem(commit: Callable[[Any], None]) -> None:
            def commit_and_die(saves: Any) -> None:
                commit(saves)
                if is_set("killed-before") and only_once("killed-after"):
                    os.kill(os.getpid(), signal.SIGKILL)

            pledged.redeem(commit_and_die)

        return pledged._replace(redeem=redeem)
