"""Processors for tests of workers: they write down what they were given and told."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shoal import Batch, Checkpointer, Hub, Processor, Reason
from shoal.core.errors import LeaseLost
from shoal.testing.members import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A batch that a processor was given."""

    who: str
    stream: str
    shard: int
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes]


Work = Callable[[Batch, Checkpointer], int | None]


@dataclass
class Diary:
    """Of all processors of a test, in the order of time. Writer: user code of any thread, under `lock`."""

    batches: list[Given] = field(default_factory=list)
    opened: list[tuple[str, int]] = field(default_factory=list)
    endings: list[tuple[str, int, Reason, bool]] = field(default_factory=list)
    """Who, which shard, why, and whether it could still save."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def processor(self, who: str = "", work: Work | None = None) -> Callable[[], Processor]:
        """A factory of processors that write here. `work` comes after that; without it all is saved."""
        return lambda: _Writing(self, who, work or save_for_later)

    def values(self, stream: str | None = None) -> list[bytes]:
        """All that was given, in order."""
        with self.lock:
            return [value for one in self.batches if stream in (None, one.stream) for value in one.values]

    def offsets(self, shard: int) -> list[int]:
        """All that was given of a shard, in order."""
        with self.lock:
            return [offset for one in self.batches if one.shard == shard for offset in one.offsets]

    def by_key(self) -> dict[bytes | None, list[bytes]]:
        """Values by key, in order."""
        found: dict[bytes | None, list[bytes]] = defaultdict(list)
        with self.lock:
            for one in self.batches:
                for key, value in zip(one.keys, one.values, strict=True):
                    found[key].append(value)
        return found

    def reasons(self, who: str | None = None, shard: int | None = None) -> list[Reason]:
        """Why shards were shut down, in order."""
        with self.lock:
            return [r for name, s, r, _ in self.endings if who in (None, name) and shard in (None, s)]

    def wait_for(self, count: int) -> None:
        """Wait until so many records were given in all."""
        eventually(
            lambda: len(self.values()) >= count, f"{count} records, of which came {len(self.values())}"
        )


def save_for_later(_: Batch, checkpointer: Checkpointer) -> None:
    """Declare done what was given; the hub hears of it when the shard is handed over."""
    checkpointer.save(persist=False)


def save_now(_: Batch, checkpointer: Checkpointer) -> None:
    """Declare done what was given, and wait until the hub has it."""
    checkpointer.save()


def save_nothing(_: Batch, __: Checkpointer) -> None:
    """Declare nothing done."""


class _Writing(Processor):
    def __init__(self, diary: Diary, who: str, work: Work) -> None:
        self._diary, self._who, self._work = diary, who, work

    def initialize(self, shard: int) -> None:
        with self._diary.lock:
            self._diary.opened.append((self._who, shard))

    def process(self, batch: Batch, checkpointer: Checkpointer) -> int | None:
        records = list(batch)
        with self._diary.lock:
            self._diary.batches.append(
                Given(
                    who=self._who,
                    stream=batch.stream,
                    shard=batch.shard,
                    offsets=[record.offset for record in records],
                    keys=[record.key for record in records],
                    values=[record.value for record in records],
                )
            )
        return self._work(batch, checkpointer)

    def shutdown(self, checkpointer: Checkpointer, reason: Reason) -> None:
        try:
            checkpointer.save(persist=False)
            may_save = True
        except LeaseLost:
            may_save = False
        with self._diary.lock:
            self._diary.endings.append((self._who, checkpointer.shard, reason, may_save))


def checkpoints(hub: Hub, stream: str, group: str) -> dict[int, int]:
    """What the hub has, by shard."""
    return {shard.id: shard.checkpoint for shard in hub.describe_group(stream, group).shards}


def append_numbers(hub: Hub, stream: str, shard: int, numbers: Iterable[int]) -> None:
    """Records whose values are these numbers."""
    hub.append(stream, shard, [b"%d" % number for number in numbers])
