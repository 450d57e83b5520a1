"""Starts the processes of a fleet, listens to them, starts dead ones again, and stops them all.

One thread, which never waits for a store or for a process for longer than a tick. What is to be done is said
by `core.restarting`; this room does it, and tells an audience.

Invariant: when `run` has returned, none of its processes runs.
"""

from __future__ import annotations

import random
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final, Protocol

from shoal.core.restarting import (
    Ending,
    Place,
    RestartRules,
    Stage,
    asked_to_stop,
    ended,
    heard,
    killed,
    said_last,
    started,
)
from shoal.fleet.child import LEAVE_S
from shoal.fleet.messages import REPORTED, Farewell, Job, Report
from shoal.fleet.process import Output, Process
from shoal.fleet.tally import Tally

_TICK_S: Final = 0.1
"""How late a death or a signal is noticed, at most."""
_SILENT_MS: Final = 5000
"""A process that runs and has told nothing for so long is shown as silent: stopped, or starved."""
_REAP_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One place as people want to see it."""

    name: str
    pid: int | None
    stage: Stage
    silent_ms: int
    """How long nothing has been heard of a process that runs, if that is long."""
    start_in_ms: int
    """Until the next process, while one is waited for."""
    shards: Mapping[int, str]
    records: int
    rate: float
    failures: int
    retries: int
    dead: int
    lost: int
    restarts: int
    error: str
    """The last error that a process here ended with."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """All that a worker counts, of all processes that were here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something to tell."""

    what: str
    """started, running, died, drained, stopped, killed, failed, given_up, stopping, killing"""
    name: str = ""
    pid: int | None = None
    detail: str = ""
    restart_in_ms: int | None = None


class Audience(Protocol):
    """Is told what happens, and shown how things stand."""

    def happened(self, happening: Happening) -> None: ...
    def printed(self, name: str, line: str) -> None: ...
    def show(self, standings: Sequence[Standing]) -> None: ...


@dataclass(slots=True)
class _Seat:
    """A place, the process in it, and what is known of both."""

    job: Job
    place: Place = field(default_factory=Place)
    process: Process | None = None
    tally: Tally = field(default_factory=Tally)
    farewell: Farewell | None = None
    error: Farewell | None = None


class Fleet:
    """Processes with a worker each. `run` once."""

    def __init__(
        self,
        jobs: Sequence[Job],
        audience: Audience,
        *,
        output: Output,
        stop_timeout_s: float,
        every_s: float,
        rules: RestartRules | None = None,
        expel: Callable[[Sequence[tuple[int, str]]], None] = lambda _: None,
    ) -> None:
        """`expel` is told what a process held in its groups that is certainly dead and did not leave them."""
        self._seats = [_Seat(job) for job in jobs]
        self._audience = audience
        self._output = output
        self._within_s = stop_timeout_s + LEAVE_S
        self._every_ms = round(every_s * 1000)
        self._rules = rules or RestartRules()
        self._expel = expel
        self._selector = selectors.DefaultSelector()
        self._asked = 0
        """Writer: the signal handler."""
        self._obeyed = 0

    @property
    def is_interrupted(self) -> bool:
        """Someone asked twice, and everything was ended at once."""
        return self._obeyed > 1

    @property
    def is_clean(self) -> bool:
        """Every process drained its share or stopped as it was asked to."""
        return all(seat.place.is_clean for seat in self._seats)

    @property
    def errors(self) -> list[Farewell]:
        """Of the places that failed."""
        return [seat.error for seat in self._seats if seat.place.stage is Stage.FAILED and seat.error]

    def run(self) -> None:
        """Until every place is over: drained, failed, given up, or stopped by SIGTERM or Ctrl-C."""
        shown_ms = -self._every_ms
        try:
            with _signals(self._ask):
                while not all(seat.place.is_over for seat in self._seats):
                    self._obey()
                    self._act(_now_ms())
                    if _now_ms() - shown_ms >= self._every_ms:
                        shown_ms = _now_ms()
                        self._audience.show(self.standings())
                    self._listen()
        finally:
            self._end_all()

    def standings(self) -> list[Standing]:
        """How things stand now."""
        return [_standing(seat, _now_ms()) for seat in self._seats]

    # --- What is asked of it. ------------------------------------------------------------------------

    def _ask(self, _: int, __: FrameType | None) -> None:
        self._asked += 1

    def _obey(self) -> None:
        """The first signal stops in order, the second at once."""
        asked = min(self._asked, 2)
        if asked > self._obeyed == 0:
            self._obeyed = 1
            self._audience.happened(Happening(what="stopping", detail="a second Ctrl-C stops at once"))
            for seat in self._seats:
                before = seat.place
                seat.place = asked_to_stop(before, _now_ms(), self._within_s)
                if seat.process is not None and seat.place != before:
                    seat.process.stop()
        if asked > self._obeyed == 1:
            self._obeyed = 2
            for seat in self._seats:
                self._kill(seat, "asked twice")

    # --- What happens. -------------------------------------------------------------------------------

    def _act(self, now_ms: int) -> None:
        for seat in self._seats:
            if seat.process is not None and (code := seat.process.poll()) is not None:
                self._ended(seat, code, now_ms)
            if seat.place.is_overdue(now_ms):
                self._kill(seat, "it did not end in time")
            if seat.place.is_due(now_ms):
                self._start(seat, now_ms)

    def _listen(self) -> None:
        for key, _ in self._selector.select(_TICK_S):
            key.data()

    def _start(self, seat: _Seat, now_ms: int) -> None:
        seat.farewell = None
        seat.tally.began(now_ms)
        seat.place = started(seat.place, now_ms)
        try:
            seat.process = Process(
                seat.job,
                self._selector,
                output=self._output,
                on_message=lambda message: self._heard(seat, message),
                on_line=lambda line: self._audience.printed(seat.job.name, line),
            )
        except OSError as error:  # No memory, no descriptors: that passes, or is told again.
            self._over(seat, Farewell(ending=Ending.DIED, text=f"it cannot be started: {error}"), now_ms)
        else:
            self._tell(seat, "started")

    def _heard(self, seat: _Seat, message: Report | Farewell) -> None:
        match message:
            case Farewell():
                seat.farewell = message
                seat.place = said_last(seat.place, _now_ms(), self._rules)
            case Report():
                seat.tally.heard(message, _now_ms())
                before, seat.place = seat.place, heard(seat.place)
                if before != seat.place:
                    self._tell(seat, "running")

    def _ended(self, seat: _Seat, code: int, now_ms: int) -> None:
        """It has been waited for: nothing of it runs any more."""
        last = seat.tally.last
        if last is not None and last.seats and not (seat.farewell and seat.farewell.ending.is_clean):
            self._expel(last.seats)
        self._over(seat, seat.farewell or Farewell(ending=Ending.DIED, text=_code_text(code)), now_ms)

    def _over(self, seat: _Seat, farewell: Farewell, now_ms: int) -> None:
        if farewell.text:
            seat.error = farewell
        seat.place = ended(seat.place, farewell.ending, now_ms, random.random(), self._rules)
        what = "died" if seat.place.stage is Stage.WAITING else seat.place.stage.value
        self._tell(seat, what, detail=_farewell_text(farewell, seat.place))
        seat.process = None

    def _kill(self, seat: _Seat, why: str) -> None:
        if seat.process is not None and not seat.place.is_killed:
            seat.place = killed(seat.place)
            seat.process.kill()
            self._tell(seat, "killing", detail=why)

    def _end_all(self) -> None:
        """Whatever went wrong here, nobody stays behind. After a `run` that went well, nobody is there."""
        left = [seat.process for seat in self._seats if seat.process is not None]
        for process in left:
            process.stop()
        until_s = time.monotonic() + _REAP_S
        for process in left:
            process.wait(max(0.0, until_s - time.monotonic()))
            process.kill()
            process.wait(_REAP_S)
            process.poll()
        self._selector.close()

    def _tell(self, seat: _Seat, what: str, detail: str = "") -> None:
        place = seat.place
        waits = place.start_at_ms - _now_ms() if place.stage is Stage.WAITING else None
        pid = None if seat.process is None else seat.process.pid
        self._audience.happened(
            Happening(what=what, name=seat.job.name, pid=pid, detail=detail, restart_in_ms=waits)
        )


def _standing(seat: _Seat, now_ms: int) -> Standing:
    place, tally = seat.place, seat.tally
    silent_ms = now_ms - tally.last_ms if place.stage is Stage.RUNNING else 0
    return Standing(
        name=seat.job.name,
        pid=None if seat.process is None else seat.process.pid,
        stage=place.stage,
        silent_ms=silent_ms if silent_ms >= _SILENT_MS else 0,
        start_in_ms=max(0, place.start_at_ms - now_ms) if place.stage is Stage.WAITING else 0,
        shards=tally.last.shards if tally.last is not None and seat.process is not None else {},
        records=tally.total("records"),
        rate=tally.rate if seat.process is not None else 0.0,
        failures=tally.total("failures"),
        retries=tally.total("retries"),
        dead=tally.total("dead"),
        lost=tally.total("lost"),
        restarts=max(0, place.starts - 1),
        error="" if seat.error is None else seat.error.text,
        counters={name: tally.total(name) for name in REPORTED},
    )


def _farewell_text(farewell: Farewell, place: Place) -> str:
    if farewell.ending is Ending.STOPPED and place.stage is Stage.WAITING:
        return "it was stopped by a signal that was not the supervisor's"
    return farewell.text


def _code_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


@contextmanager
def _signals(ask: Handler) -> Iterator[None]:
    """SIGINT, SIGTERM and the end of a terminal ask. One that is ignored stays so: nohup."""
    wanted = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, ask) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Handler(Protocol):
    """Of signals."""

    def __call__(self, number: int, frame: FrameType | None, /) -> None: ...


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
