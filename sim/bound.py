"""How large a small world is, how far to go in it, and what was found there. See `explorer`."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.core.group import Coordination


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How large the world is and how far to go."""

    kind: Coordination = Coordination.COORDINATED
    consumers: int = 2
    names: int = 9
    """Fewer than consumers: some processes share a name."""
    shards: int = 2
    watchers: int = 1
    """Of a coordinated group. In a leased one every consumer watches."""
    crashes: int = 1
    splits: int = 1
    rewinds: int = 0
    """Of a coordinated group."""
    faults: int = 2
    """Messages that may be late or lost. A pause, which needs no message, is not counted."""
    lives: int = 9
    """Incarnations of one name, at most: without a bound a world in which members expire has no end."""
    is_impatient: bool = False
    """Of a leased group: a living owner that does not let go within an interval is forced."""
    depth: int = 30
    states: int = 10**9

    def __str__(self) -> str:
        names = "" if self.names >= self.consumers else f" of {self.names} name"
        parts = [f"{self.kind.value}: {self.consumers} consumers{names}", f"{self.shards} shards"]
        for number, what in (
            (self.splits, "split"),
            (self.crashes, "crash"),
            (self.rewinds, "reset"),
            (self.faults, "faults"),
        ):
            parts.append(f"{number} {what}")
        return ", ".join(parts) + (", forced hand-overs" if self.is_impatient else "")


@dataclass(slots=True, kw_only=True)
class Explored:
    """What was found."""

    states: int = 0
    depth: int = 0
    is_complete: bool = False
    """Every state within the depth was seen."""
    violation: str | None = None
    path: list[str] = field(default_factory=list)
