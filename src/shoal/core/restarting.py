"""When a worker's process that ended is started again, how long that waits, and when it is left alone.

One `Place` is one of the processes that the user asked for: it goes on when the process in it dies and
another takes over. Dry: a supervisor starts, listens, kills, and tells; what follows is said here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from shoal.core.retry import Backoff


class Ending(StrEnum):
    """How a process ended, as far as it could say."""

    DRAINED = "drained"
    """It had nothing left to do."""
    STOPPED = "stopped"
    """Someone asked it to stop, and it left its group."""
    FAILED = "failed"
    """Of an error that a new process would meet again."""
    DIED = "died"
    """Of anything else: a signal, a crash, a store that was away."""

    @property
    def is_clean(self) -> bool:
        """It has left its group. Otherwise who knows that it is gone may leave in its place."""
        return self in (Ending.DRAINED, Ending.STOPPED)


class Stage(StrEnum):
    """Where a place is. The last five are for good."""

    WAITING = "waiting"
    """No process is there; one is started when it is due."""
    STARTING = "starting"
    """There is a process, and nothing was heard of it yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    DRAINED = "drained"
    STOPPED = "stopped"
    KILLED = "killed"
    """It was asked to stop, and did not in time."""
    FAILED = "failed"
    GIVEN_UP = "given_up"
    """It died too often in a row."""


_OVER: Final = frozenset({Stage.DRAINED, Stage.STOPPED, Stage.KILLED, Stage.FAILED, Stage.GIVEN_UP})
_CLEAN: Final = frozenset({Stage.DRAINED, Stage.STOPPED})


_BACKOFF: Final = Backoff(first_s=0.5, factor=2.0, max_s=30.0, jitter=0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRules:
    """How patient a supervisor is."""

    backoff: Backoff = _BACKOFF
    steady_s: float = 60.0
    """Who lived for so long did not die of its start: the next death counts as the first."""
    deaths_max: int = 10
    """In a row. With the delays above that is two and a half minutes of trying."""
    linger_s: float = 3.0
    """How long a process may take to be gone after its last word; user code that hangs would keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One of the processes, whichever is in it."""

    stage: Stage = Stage.WAITING
    start_at_ms: int = 0
    """When the next process is due, while it is waited for."""
    kill_at_ms: int | None = None
    """When the process has to be gone."""
    is_killed: bool = False
    started_ms: int = 0
    starts: int = 0
    deaths: int = 0
    """In a row."""

    @property
    def is_over(self) -> bool:
        """Nothing will be started here any more."""
        return self.stage in _OVER

    @property
    def is_clean(self) -> bool:
        """It is over, and left nothing behind."""
        return self.stage in _CLEAN

    def is_due(self, now_ms: int) -> bool:
        """Whether a process is to be started now."""
        return self.stage is Stage.WAITING and now_ms >= self.start_at_ms

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the process has to be killed now."""
        return self.kill_at_ms is not None and not self.is_killed and now_ms >= self.kill_at_ms


def started(place: Place, now_ms: int) -> Place:
    """A process was started."""
    assert place.stage is Stage.WAITING, place
    return replace(
        place,
        stage=Stage.STARTING,
        started_ms=now_ms,
        starts=place.starts + 1,
        kill_at_ms=None,
        is_killed=False,
    )


def heard(place: Place) -> Place:
    """The process told of itself."""
    return replace(place, stage=Stage.RUNNING) if place.stage is Stage.STARTING else place


def asked_to_stop(place: Place, now_ms: int, within_s: float) -> Place:
    """The supervisor stops: who runs has so long, who waits is never started."""
    match place.stage:
        case Stage.WAITING:
            return replace(place, stage=Stage.STOPPED)
        case Stage.STARTING | Stage.RUNNING:
            return replace(place, stage=Stage.STOPPING, kill_at_ms=now_ms + round(within_s * 1000))
        case _:
            return place


def said_last(place: Place, now_ms: int, rules: RestartRules) -> Place:
    """The process said how it ended; what is left of it has to go."""
    limit_ms = now_ms + round(rules.linger_s * 1000)
    return replace(
        place, kill_at_ms=limit_ms if place.kill_at_ms is None else min(place.kill_at_ms, limit_ms)
    )


def killed(place: Place) -> Place:
    """The supervisor killed the process."""
    return replace(place, is_killed=True)


def ended(place: Place, ending: Ending, now_ms: int, dice: float, rules: RestartRules) -> Place:
    """The process is gone. `dice` is random, from 0 to 1."""
    assert place.stage in (Stage.STARTING, Stage.RUNNING, Stage.STOPPING), place
    gone = replace(place, kill_at_ms=None)
    if place.stage is Stage.STOPPING:
        if place.is_killed:
            return replace(gone, stage=Stage.KILLED)
        # Nobody asked why one dies that is to die: it may have been too young to know the signal.
        is_failed = ending is Ending.FAILED
        return replace(gone, stage=Stage.FAILED if is_failed else Stage.STOPPED)
    match ending:
        case Ending.DRAINED:
            return replace(gone, stage=Stage.DRAINED)
        case Ending.FAILED:
            return replace(gone, stage=Stage.FAILED)
        case Ending.STOPPED | Ending.DIED:
            return _died(gone, now_ms, dice, rules)


def _died(place: Place, now_ms: int, dice: float, rules: RestartRules) -> Place:
    is_steady = now_ms - place.started_ms >= rules.steady_s * 1000
    deaths = 1 if is_steady else place.deaths + 1
    if deaths > rules.deaths_max:
        return replace(place, stage=Stage.GIVEN_UP, deaths=deaths)
    due_ms = now_ms + rules.backoff.delay_ms(deaths, dice)
    return replace(place, stage=Stage.WAITING, deaths=deaths, start_at_ms=due_ms)
