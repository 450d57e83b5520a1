"""What a worker has done, in figures. Counters only rise."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Self

from shoal.core.errors import Fenced, NotOwner, ShoalError

_KEPT = 1024


@dataclass(slots=True)
class WorkerStats:
    """Writer: one deciding thread; of `fenced`, savers too, under its lock."""

    records: int = 0
    batches: int = 0
    processing_ns: int = 0
    failures: int = 0
    """Times that user code raised."""
    retries: int = 0
    """Records that were set aside for another attempt."""
    dead: int = 0
    """Records that went to the dead stream."""
    postponed: int = 0
    """Batches that found no valid deadline, and waited for one."""
    lost: int = 0
    """Shards that were lost, not handed over."""
    stuck: int = 0
    skipped: int = 0
    """Records that retention removed before they were read, and that the user said to skip."""
    fetch_errors: int = 0
    fenced: int = 0
    """Reads, saves and releases that were refused: the shard was another's by then."""
    lane_deaths: int = 0
    """Processes of lanes that died."""
    hand_overs: int = 0
    hand_over_ns: deque[int] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """How long the last ones took, from the request to the release."""

    @classmethod
    def sum(cls, parts: Iterable[WorkerStats]) -> Self:
        """All of them together."""
        whole = cls()
        for part in parts:
            whole.hand_over_ns.extend(part.hand_over_ns)
            for counter in fields(cls):
                if counter.name != "hand_over_ns":
                    setattr(whole, counter.name, getattr(whole, counter.name) + getattr(part, counter.name))
        return whole

    def processed(self, records: int, took_ns: int) -> None:
        """A batch was processed."""
        self.records += records
        self.batches += 1
        self.processing_ns += took_ns

    def raised(self, done: int, took_ns: int) -> None:
        """User code raised, after it had declared so many records of its batch done."""
        self.failures += 1
        self.records += done
        self.processing_ns += took_ns

    def fetch_failed(self, error: ShoalError) -> None:
        """A read brought nothing."""
        self.fetch_errors += 1
        self.refused(error)

    def refused(self, error: ShoalError) -> None:
        """The hub said no; if it was because the shard is another's, that is counted."""
        if isinstance(error, NotOwner | Fenced):
            self.fenced += 1

    def set_aside(self, *, is_dead: bool) -> None:
        """A record went to the retry stream, or to the dead one."""
        if is_dead:
            self.dead += 1
        else:
            self.retries += 1

    def handed_over(self, took_ns: int) -> None:
        """A shard was handed over as planned."""
        self.hand_overs += 1
        self.hand_over_ns.append(took_ns)
