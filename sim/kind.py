"""What differs between worlds of coordinated and of leased groups: who is there, and how a call is made.

Everything else, from the nemesis to the checkers, is the same for both and asks a `Kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shoal.core.group import GroupSettings
from shoal.core.model import ShardId
from sim.loop import Process, Steps
from sim.rows import Rows
from sim.seat import Seat


class Kind(Protocol):
    """One world's kind of group."""

    cleans_up: bool
    """Whether rows of shards that are done go away."""
    generation_ms: int
    """How long it may take to follow a lineage that nobody has looked at by a generation; 0: all at once."""

    def begin(self) -> None:
        """Start whoever is there besides the consumers."""

    def made(self, settings: GroupSettings, *, start_at_end: bool) -> Rows:
        """The rows of a new group. Epochs go on from the store's one sequence; starts are resolved here."""

    def dropped(self, rows: Rows) -> None:
        """The group was deleted."""

    def seat(self, process: Process, name: str) -> Seat:
        """A place for a consumer of this name in this process."""

    def update(self, group: int, settings: GroupSettings) -> Steps[None]:
        """Somebody changes the group's settings."""

    def rewind(self, group: int, positions: Mapping[ShardId, int], why: str) -> Steps[None]:
        """Somebody forces checkpoints."""

    def servers(self) -> list[Process]:
        """Processes that serve consumers; none where every consumer reaches the store by itself."""

    def restart_server(self, process: Process, after_us: int) -> None:
        """This one has crashed: another of its release takes its place after a while."""

    def others(self) -> list[Process]:
        """All processes but the consumers' and the one that makes calls."""
