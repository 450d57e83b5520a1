"""A crew: all shards in the hands of one member, each with its tenure, and what they have to do with another.

A shell shows it the leases, the stream's lineage and the time, again and again, and tells it how everything
went that it was asked to do. It says what to do next (`orders`): what to open, run, fetch, let go of, and
when it is over. It knows nothing of threads: whoever polls, awaits or simulates asks the same questions.

Invariants: a shard begins once under an epoch, and not while an ancestor or an earlier tenure of it is still
being finished here, unless that was given up; what is lost, or was let go of, begins nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

from shoal.core.budget import Budget
from shoal.core.delivery import Tenure
from shoal.core.describing import Block
from shoal.core.draining import Drained
from shoal.core.errors import Fenced, NotOwner, OffsetExpired, ProcessorFailed, ShoalError
from shoal.core.holding import Lease
from shoal.core.lineage import ancestors
from shoal.core.model import Shard, ShardId
from shoal.core.orders import (
    Asked,
    AskIfDrained,
    Fail,
    LetGo,
    Open,
    Order,
    PersistAll,
    Read,
    ReadFailed,
    Retire,
    Run,
    Show,
    Skipped,
    Stuck,
    Tell,
    What,
)
from shoal.core.retry import FailureRules
from shoal.core.tasks import Action, Failure, Fetch, Phase, Piece, Reason, Release, StopWorker, Task

_SHOWN_MS: Final = 5000
"""How often the number of attempts is shown anew while a shard is held up."""
_TICK_MS: Final = 500
"""The longest that nobody looks at the timers."""
_REFETCH_MS: Final = 200
"""After a read that failed because the store was away."""
_DRAINED_MS: Final = 200
"""How often the hub is asked whether the others have come to the end too."""
_RENEWAL_MS: Final = 50
_RENEWAL_MS_MAX: Final = 500
"""After a batch found no valid deadline: at once, and when the store has been away for long."""
_HUNG_MAX: Final = 4
"""Calls of user code that never return, for one shard, before it stands still here and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewRules:
    """How a crew works. Times are in milliseconds."""

    failure: FailureRules
    budget: Budget
    lanes: int = 1
    is_on_demand: bool = False
    """User code comes for what it is to process; see Tenure."""
    persist_interval_ms: int = 60_000
    """How often what was declared done, and not persisted, reaches the hub."""
    stop_timeout_ms: int = 30_000
    """How long a stop by itself waits for user code."""
    process_timeout_ms: int | None = None
    """After this a call of user code is stuck."""
    is_stuck_released: bool = False
    is_expired_skipped: bool = False
    """What retention has removed is skipped, and counted; otherwise it is waited for."""
    fetch_interval_ms: int | None = None
    """A shard of which all was read is read again after so long at the earliest."""
    idle_ms: int | None = None
    """User code is told when there was nothing new for so long."""
    limits: Mapping[ShardId, int] | None = None
    """Where each shard is to stop, others at once; None: nowhere."""
    shown: Mapping[ShardId, str] = field(default_factory=dict)
    """What people see to hold shards up already: it was said before, under the same epochs."""


class Crew:
    """All tenures of one member. Writer: whoever decides, one call at a time; see `Tenure` for savers.

    Times are all of one clock, which goes on in suspend.
    """

    def __init__(self, rules: CrewRules, now_ms: int) -> None:
        self.held: dict[ShardId, Tenure] = {}
        """What is held, and not yet released."""
        self.is_stopping = False
        self._rules = rules
        self._old: list[Tenure] = []
        """Lost or given up while user code still ran: they end before the shard begins again here."""
        self._letting: list[Tenure] = []
        """Being released at this moment."""
        self._epochs: dict[ShardId, int] = {}
        """Of the last tenure of each shard here: none begins twice."""
        self._stop_by_ms: int | None = None
        self._persist_at_ms = now_ms + rules.persist_interval_ms
        self._drained_at_ms: int | None = now_ms
        """When to ask next whether all is drained; None while that is being asked."""

    # --- What it shows. ------------------------------------------------------------------------------

    @property
    def is_drained(self) -> bool:
        """All that is held has come to its limit."""
        return all(tenure.is_drained for tenure in list(self.held.values()))

    @property
    def is_finished(self) -> bool:
        """It has stopped: nothing is held any more, and nobody is waited for."""
        if not self.is_stopping or self.held or self._letting:
            return False
        return self._stop_by_ms is None or not self._old

    def rest_ms(self, now_ms: int) -> int:
        """How long nothing will be due, unless something happens."""
        if self._rules.limits is not None and self._drained_at_ms is not None and self.is_drained:
            return _DRAINED_MS
        longest_ms = min(_TICK_MS, self._rules.idle_ms or _TICK_MS)
        rest_ms = self.rest_of(self._all(), now_ms)
        return longest_ms if rest_ms is None else min(longest_ms, rest_ms)

    def rest_of(self, tenures: Iterable[Tenure], now_ms: int) -> int | None:
        """How long nothing will be due with these; None: nothing ever will."""
        due = [due for tenure in tenures if (due := tenure.due_ms()) is not None]
        return max(0, min(due) - now_ms) if due else None

    def wants_lineage(self, leases: Mapping[ShardId, Lease], shards: Sequence[Shard]) -> bool:
        """Whether the stream must be looked at: what is gone may have ended, or a shard is not known yet."""
        is_new = any(shard >= len(shards) for shard in leases)
        return is_new or any(_is_gone(tenure, leases) for tenure in self.held.values())

    def _all(self) -> list[Tenure]:
        return [*self._at_work(), *(tenure for tenure in self._letting if not tenure.is_given_up)]

    def _at_work(self) -> list[Tenure]:
        """Those that others wait for come first."""
        return [*self._old, *self.held.values()]

    # --- Time passes. --------------------------------------------------------------------------------

    def advance(self, now_ms: int, leases: Mapping[ShardId, Lease], shards: Sequence[Shard]) -> list[Order]:
        """All that can begin now. `shards`: the stream's, as last seen."""
        orders = self._follow(leases, shards)
        orders += self._look_at_timers(now_ms)
        releases: list[tuple[Tenure, Release]] = self._give_up_late(now_ms, orders)
        for tenure in self._at_work():
            if tenure.phase is Phase.WAITING and not self._is_preceded(tenure, shards):
                tenure.begin()
            for action in tenure.advance(now_ms):
                self._obey(tenure, action, now_ms, orders, releases)
            orders += self._reading(tenure)
        orders += self._shown(self.held.values(), now_ms)
        return orders + self._released(releases)

    def go_on(self, tenures: Iterable[Tenure], now_ms: int) -> list[Order]:
        """What can begin now with these, if something happened to them alone; all else is for `advance`."""
        orders: list[Order] = []
        releases: list[tuple[Tenure, Release]] = []
        for tenure in tenures:
            for action in tenure.advance(now_ms):
                self._obey(tenure, action, now_ms, orders, releases)
            orders += self._reading(tenure)
        orders += self._shown([tenure for tenure in tenures if self.held.get(tenure.shard) is tenure], now_ms)
        return orders + self._released(releases)

    def _obey(
        self,
        tenure: Tenure,
        action: Action,
        now_ms: int,
        orders: list[Order],
        releases: list[tuple[Tenure, Release]],
    ) -> None:
        match action:
            case Release():
                self._leave(tenure)
                if action.is_due:
                    self._letting.append(tenure)
                releases.append((tenure, action))
            case StopWorker(failure=failure):
                orders += self._stopped_by(tenure, failure, now_ms)
            case _:
                orders.append(Run(tenure=tenure, task=action))

    # --- Shards come and go. -------------------------------------------------------------------------

    def _follow(self, leases: Mapping[ShardId, Lease], shards: Sequence[Shard]) -> list[Order]:
        orders: list[Order] = []
        for shard, tenure in list(self.held.items()):
            lease = leases.get(shard)
            if _is_gone(tenure, leases):
                orders += self._lose(tenure, _end_of(shard, shards))
            elif lease is not None and not lease.is_wanted and tenure.reason is None:
                tenure.ask(Reason.MOVED)
                orders.append(Asked(tenure=tenure))
        for shard, lease in leases.items():
            if shard not in self.held and lease.epoch > self._epochs.get(shard, -1):
                orders += self._open(lease)
        return orders

    def _open(self, lease: Lease) -> list[Order]:
        shard, limits = lease.shard, self._rules.limits
        tenure = Tenure(
            shard,
            lease.epoch,
            lease.checkpoint,
            self._rules.failure,
            lanes=self._rules.lanes,
            limit=None if limits is None else limits.get(shard, 0),
            is_on_demand=self._rules.is_on_demand,
        )
        tenure.shown = self._rules.shown.get(shard)
        tenure.is_shown_before = tenure.shown is not None
        if self.is_stopping:
            tenure.ask(Reason.STOPPED)
        self.held[shard] = tenure
        self._epochs[shard] = lease.epoch
        return [Open(tenure=tenure), Tell(what=What.OPENED, tenure=tenure)]

    def _lose(self, tenure: Tenure, end: int | None) -> list[Order]:
        del self.held[tenure.shard]
        self._old.append(tenure)
        tenure.lose(end)
        return [Tell(what=What.LOST, tenure=tenure)] if tenure.reason is Reason.LOST else []

    def _is_preceded(self, tenure: Tenure, shards: Sequence[Shard]) -> bool:
        """Whether an ancestor, or an earlier tenure of the same shard, is still being finished here."""
        if tenure.shard >= len(shards):
            return True  # Nobody knows yet; see `wants_lineage`.
        before = {*ancestors(shards, tenure.shard), tenure.shard}
        others = [other for other in self._all() if other is not tenure and other.shard in before]
        hung = [other for other in others if other.is_given_up]
        # Who was given up is not waited for: it may never return. But not too many may hang here at once.
        return len(others) > len(hung) or len(hung) >= _HUNG_MAX

    def _leave(self, tenure: Tenure) -> None:
        """It is not at work any more. The shard's next tenure may be held already."""
        if self.held.get(tenure.shard) is tenure:
            del self.held[tenure.shard]
        self._old = [other for other in self._old if other is not tenure]

    def _released(self, releases: Sequence[tuple[Tenure, Release]]) -> list[Order]:
        orders: list[Order] = [Tell(what=_ending(*one), tenure=one[0]) for one in releases]
        due = [(tenure, release.checkpoint) for tenure, release in releases if release.is_due]
        return [*orders, LetGo(due=due)] if due else orders

    def let_go_of(self, tenures: Sequence[Tenure]) -> None:
        """Their release was sent. One that was not heard is the membership's to repeat."""
        self._letting = [tenure for tenure in self._letting if tenure not in tenures]

    # --- Records. ------------------------------------------------------------------------------------

    def _reading(self, tenure: Tenure) -> list[Order]:
        wanted = tenure.wanted
        if wanted is None:
            return []
        budget, shards = self._rules.budget, len(self.held)
        if wanted.lane is None:
            allowed = budget.allowance(tenure.queued_bytes, shards)
        else:
            allowed = budget.again(shards)
        if not allowed:
            return []
        tenure.fetching()
        return [Read(tenure=tenure, wanted=wanted, bytes_max=allowed)]

    def found(
        self,
        tenure: Tenure,
        wanted: Fetch,
        pieces: Sequence[Sequence[Piece]],
        *,
        next_offset: int,
        is_end: bool,
        is_tail: bool,
        now_ms: int,
    ) -> None:
        """Records came, for each lane its pieces, up to `next_offset`; `is_end`: where the shard ends.

        `is_tail`: there was nothing more at that time, and what comes will be told by `moved`.
        """
        if tenure.is_of_no_use():
            return
        if wanted.lane is not None:
            tenure.got_again(wanted.lane, pieces[wanted.lane], next_offset)
            return
        if is_tail and not is_end:
            tenure.came_to_tail(now_ms, self._rules.fetch_interval_ms)
        tenure.got(pieces, next_offset, is_end=is_end)

    def not_found(
        self, tenure: Tenure, wanted: Fetch, error: ShoalError, now_ms: int, end: int | None = None
    ) -> list[Order]:
        """A read failed. The store may be away, or the lease moves: then it is simply tried again.

        `end`: where to go on if it has expired, and the user wants to skip all that is there.
        """
        if tenure.is_of_no_use():
            return []
        if isinstance(error, OffsetExpired) and self._rules.is_expired_skipped:
            to = error.first_offset if end is None else end
            skipped = tenure.jump(to, wanted.lane)
            return [Skipped(tenure=tenure, records=skipped, offset=to)]
        is_standing = isinstance(error, OffsetExpired)
        failure = Failure(kind=type(error).__name__, text=str(error)) if is_standing else None
        tenure.fetch_failed(now_ms + _REFETCH_MS, failure)
        if error.retriable or isinstance(error, NotOwner | Fenced | OffsetExpired):
            return [ReadFailed(tenure=tenure, error=error)]
        return [Fail(error=error), *self.stop(now_ms)]

    def not_read(self, tenure: Tenure, now_ms: int) -> None:
        """There was no valid deadline to read under."""
        tenure.fetch_failed(now_ms + _REFETCH_MS)

    def moved(self, shard: ShardId) -> Tenure | None:
        """There is something new in it; whose it is here."""
        tenure = self.held.get(shard)
        if tenure is not None:
            tenure.moved()
        return tenure

    # --- User code. ----------------------------------------------------------------------------------

    def postponed(self, tenure: Tenure, task: Task, now_ms: int, late_ms: int = 0) -> None:
        """There was no valid deadline: it is begun anew in a moment, if there is one then.

        `late_ms`: for how long there has been none. The longer, the less often it is looked for.
        """
        tenure.postponed(task.lane, now_ms + max(_RENEWAL_MS, min(_RENEWAL_MS_MAX, late_ms // 4)))

    def bereft(self, tenure: Tenure, lane: int) -> None:
        """See Tenure."""
        tenure.bereft(lane)

    def returned(self, tenure: Tenure, task: Task, back_to: int | None = None) -> None:
        """See Tenure."""
        tenure.returned(task.lane, back_to)

    def raised(self, tenure: Tenure, task: Task, failure: Failure, now_ms: int, dice: float) -> list[Order]:
        """See Tenure."""
        orders: list[Order] = []
        for action in tenure.raised(task.lane, failure, now_ms, dice):
            self._obey(tenure, action, now_ms, orders, [])
        return orders

    @staticmethod
    def _shown(tenures: Iterable[Tenure], now_ms: int) -> list[Order]:
        """What holds a shard up, and that nothing does any more; not with every attempt."""
        orders: list[Order] = []
        for tenure in tenures:
            blocked = tenure.blocked
            error = None if blocked is None else f"{blocked.failure.kind}: {blocked.failure.text}"
            is_due = error is not None and now_ms - tenure.shown_ms >= _SHOWN_MS
            if error is None and tenure.is_shown_before and not tenure.has_returned:
                continue  # Whether it goes on now, is not known yet.
            if error != tenure.shown or is_due:
                tenure.shown, tenure.shown_ms, tenure.is_shown_before = error, now_ms, False
                block = None
                if blocked is not None and error is not None:
                    block = Block(epoch=tenure.epoch, attempts=blocked.attempts, error=error)
                orders.append(Show(shard=tenure.shard, block=block))
        return orders

    # --- Timers. -------------------------------------------------------------------------------------

    def _look_at_timers(self, now_ms: int) -> list[Order]:
        orders: list[Order] = []
        is_asked = self._rules.limits is None or self.is_stopping or self._drained_at_ms is None
        if not is_asked and now_ms >= (self._drained_at_ms or 0) and self.is_drained:
            self._drained_at_ms = None
            orders.append(AskIfDrained(here=list(self.held)))
        if now_ms >= self._persist_at_ms:
            self._persist_at_ms = now_ms + self._rules.persist_interval_ms
            orders.append(PersistAll())
        return orders + self._called_when_idle(now_ms)

    def _called_when_idle(self, now_ms: int) -> list[Order]:
        if self._rules.idle_ms is None:
            return []
        orders: list[Order] = []
        for tenure in self.held.values():
            if tenure.is_idle and now_ms - tenure.idle_ms >= self._rules.idle_ms:
                tenure.idle_ms = now_ms
                orders += [Run(tenure=tenure, task=task) for task in tenure.call_idle(now_ms)]
        return orders

    def _give_up_late(self, now_ms: int, orders: list[Order]) -> list[tuple[Tenure, Release]]:
        """Let go of shards whose user code does not come back."""
        late: list[Tenure] = []
        if self._stop_by_ms is not None and now_ms >= self._stop_by_ms:
            self._stop_by_ms = None
            late = list(self.held.values())
        elif self._rules.process_timeout_ms is not None:
            timeout_ms = self._rules.process_timeout_ms
            stuck = [tenure for tenure in self.held.values() if tenure.stuck(now_ms, timeout_ms)]
            orders += [Stuck(tenure=tenure) for tenure in stuck]
            late = stuck if self._rules.is_stuck_released else []
        for tenure in late:
            del self.held[tenure.shard]
            self._old.append(tenure)
            self._letting.append(tenure)
        return [(tenure, tenure.give_up()) for tenure in late]

    def heard_if_drained(self, drained: Drained, now_ms: int) -> list[Order]:
        """The answer to `AskIfDrained`.

        Who has not declared all of it done, and may do so at its end, is who others wait for: if it waited
        for them, and they for it, nobody would ever stop.
        """
        self._drained_at_ms = now_ms + _DRAINED_MS
        is_waited_for = any(tenure.is_owing for tenure in self.held.values())
        is_due = drained is Drained.ALL or (drained is Drained.NOT_BY_OTHERS and is_waited_for)
        return self.stop(now_ms) if is_due and self.is_drained else []

    # --- The end. ------------------------------------------------------------------------------------

    def stop(self, now_ms: int, timeout_ms: int | None = None) -> list[Order]:
        """Hand everything over; what user code has not come back from by then is given up.

        Asked for again, the earlier time counts.
        """
        bound_ms = self._rules.stop_timeout_ms if timeout_ms is None else timeout_ms
        stop_by_ms = now_ms + bound_ms
        if self.is_stopping:
            if self._stop_by_ms is not None:
                self._stop_by_ms = min(self._stop_by_ms, stop_by_ms)
            return []
        self.is_stopping, self._stop_by_ms = True, stop_by_ms
        orders: list[Order] = [Asked(tenure=tenure) for tenure in self.held.values()]
        for tenure in self.held.values():
            tenure.ask(Reason.STOPPED)
        return [*orders, Retire()]

    def _stopped_by(self, tenure: Tenure, failure: Failure, now_ms: int) -> list[Order]:
        error = ProcessorFailed(shard=tenure.shard, kind=failure.kind, text=failure.text)
        return [Fail(error=error), *self.stop(now_ms)]


def _is_gone(tenure: Tenure, leases: Mapping[ShardId, Lease]) -> bool:
    """It is not held any more under its epoch; but while a save is on its way, it may only have ended."""
    lease = leases.get(tenure.shard)
    return not tenure.saving and (lease is None or lease.epoch != tenure.epoch)


def _end_of(shard: ShardId, shards: Sequence[Shard]) -> int | None:
    """Where a shard ends, if it is known to be closed."""
    if shard >= len(shards) or shards[shard].is_open:
        return None
    return shards[shard].next_offset


def _ending(tenure: Tenure, release: Release) -> What:
    match tenure.reason:
        case Reason.ENDED:
            return What.ENDED
        case Reason.LOST:  # Ours: given up, while user code still runs, or in doubt.
            return What.LOST if release.is_due else What.GONE
        case Reason.MOVED:
            return What.MOVED
        case Reason.STOPPED:
            return What.STOPPED
        case None:
            raise AssertionError("it is released for a reason")
        case _:
            assert_never(tenure.reason)
