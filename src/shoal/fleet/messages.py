"""What a supervisor and its processes say to each other: one JSON object a line.

A job goes down the standard input, which also keeps it from other eyes: a command line, with the password of
a database in it, can be seen by everyone. Reports, and one farewell, come up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from shoal.core.errors import ShoalError
from shoal.core.restarting import Ending
from shoal.core.retry import FailureRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do."""

    processor: str
    hub: str
    leases: str | None
    stream: str
    group: str
    name: str
    options: Mapping[str, Any]
    """Fields of WorkerOptions."""
    report_s: float

    def to_line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self) | {"options": _plain(self.options)}).encode() + b"\n"

    @staticmethod
    def of_line(line: bytes) -> Job:
        """As it is received."""
        said = json.loads(line)
        return Job(**said | {"options": _restored(said["options"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a worker holds and has done since its process began."""

    shards: Mapping[int, str]
    """Each with its phase."""
    seats: Sequence[tuple[int, str]] = ()
    """See Worker.seats."""
    records: int = 0
    batches: int = 0
    processing_ns: int = 0
    failures: int = 0
    retries: int = 0
    dead: int = 0
    postponed: int = 0
    lost: int = 0
    stuck: int = 0
    skipped: int = 0
    fetch_errors: int = 0
    fenced: int = 0
    lane_deaths: int = 0
    hand_overs: int = 0
    hand_over_total_ns: int = 0

    def to_line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """The last word of a process."""

    ending: Ending
    kind: str = ""
    """The class of the error, if it was one."""
    text: str = ""

    def to_line(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"


def parse(line: bytes) -> Report | Farewell:
    """What came up."""
    said = json.loads(line)
    if "ending" in said:
        return Farewell(**said | {"ending": Ending(said["ending"])})
    shards = {int(shard): phase for shard, phase in said["shards"].items()}
    seats = tuple((int(group), str(incarnation)) for group, incarnation in said["seats"])
    return Report(**said | {"shards": shards, "seats": seats})


def farewell_of(error: BaseException) -> Farewell:
    """What an error means for who would start the process again."""
    is_lasting = isinstance(error, ShoalError) and not error.retriable
    return Farewell(
        ending=Ending.FAILED if is_lasting else Ending.DIED,
        kind=type(error).__name__,
        text=" ".join(str(error).split())[:_TEXT_MAX],
    )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(options)
    match plain.get("start"):
        case datetime() as time:
            plain["start"] = {"time": time.astimezone(UTC).isoformat()}
        case Mapping() as offsets:
            plain["start"] = {"offsets": list(offsets.items())}
    match plain.get("failure"):
        case FailureRules() as rules:
            plain["failure"] = {"policy": rules.policy, "max_attempts": rules.max_attempts}
    return plain


def _restored(plain: dict[str, Any]) -> dict[str, Any]:
    options = dict(plain)
    match plain.get("start"):
        case {"time": time}:
            options["start"] = datetime.fromisoformat(time)
        case {"offsets": offsets}:
            options["start"] = dict(offsets)
    if failure := plain.get("failure"):
        options["failure"] = FailureRules(**failure)
    return options


_TEXT_MAX = 2000
REPORTED = tuple(field.name for field in fields(Report) if field.name not in ("shards", "seats"))
"""The figures of a report: fields of WorkerStats."""
