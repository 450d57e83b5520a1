"""What can happen to a coordinated group: the events that `ownership.step` applies. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.group import GroupSettings, Timers
from shoal.core.model import ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A consumer's new incarnation becomes a member."""

    name: str
    incarnation: str
    timeout_ms: int
    interval_ms: int
    is_again: bool = False
    """The consumer was a member before, and was expired. It takes nobody's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """A member is about to leave: it drains what it holds, and is given nothing more."""

    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Letting:
    """One shard that its holder lets go of, with the last checkpoint (None: as it was saved)."""

    shard: ShardId
    epoch: int
    checkpoint: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A member has drained these shards, and acts no more under these epochs."""

    incarnation: str
    lettings: Sequence[Letting]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member acts no more under any epoch."""

    incarnation: str
    lettings: Sequence[Letting] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """The watch of a member has run out, while its counter stood at `beat`."""

    incarnation: str
    beat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Forced checkpoints: by a reset, or for single shards."""

    positions: Mapping[ShardId, int]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """New settings."""

    settings: GroupSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """An observer saw these timers `elapsed_ms` of its own time ago: where they stand, time has passed."""

    elapsed_ms: int
    seen: Timers


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Someone has seen a later version than the store has: the store forgot commits."""

    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Look at the stream's shards: some were born, closed or consumed to their end."""


Event = Join | Retire | Release | Leave | Expire | Rewind | Update | Watched | Forgotten | Sync
