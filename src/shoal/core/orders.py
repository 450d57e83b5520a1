"""What a crew wants done, as values. Each is carried out by a shell, in the order in which it comes.

What takes time runs apart, and its outcome is told to the crew: see `crew`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal.core.delivery import Tenure
from shoal.core.describing import Block
from shoal.core.errors import ShoalError
from shoal.core.model import ShardId
from shoal.core.tasks import Fetch, Task


class What(StrEnum):
    """What became of a shard here, in the words of those who listen."""

    OPENED = "opened"
    MOVED = "moved"
    """Handed over, since it was asked for."""
    STOPPED = "stopped"
    """Handed over, since the worker stops."""
    ENDED = "ended"
    LOST = "lost"
    """Another's by now, or given up; user code may still run."""
    GONE = "gone"
    """Lost, and user code has come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A shard is ours, and a tenure has begun."""

    tenure: Tenure


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """It is to be handed over from here on."""

    tenure: Tenure


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Carry out a task; `returned`, `raised` or `postponed` says how it went."""

    tenure: Tenure
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Fetch records; `found` or `not_found` says what came."""

    tenure: Tenure
    wanted: Fetch
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Release all of these together, each with its checkpoint, if they still are ours; then `let_go_of`.

    None: with what was saved.
    """

    due: Sequence[tuple[Tenure, int | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """For those who listen."""

    what: What
    tenure: Tenure


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Let people see what holds a shard up, or that nothing does any more."""

    shard: ShardId
    block: Block | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """User code has been running for too long; told once of a call."""

    tenure: Tenure


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Retention was faster, and the user said to go on behind it."""

    tenure: Tenure
    records: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed:
    """It is tried again later."""

    tenure: Tenure
    error: ShoalError


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistAll:
    """See that the hub has what was declared done, of all that is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskIfDrained:
    """All that is held has come to its limit, and the others? `heard_if_drained` says so."""

    here: Sequence[ShardId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Announce that this member will leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """Why the crew stops by itself; the first one counts."""

    error: ShoalError


Errand = LetGo | PersistAll | AskIfDrained | Show | Retire
"""What is said to the hub, apart from reads."""
Order = Open | Asked | Run | Read | Tell | Stuck | Skipped | ReadFailed | Fail | Errand
