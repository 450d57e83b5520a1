"""The simulated table of a leased group: compare-and-set on one row at a time, over the simulated store.

Each process has its own way to it. Several changes may share a commit, and none depends on another. A change
whose answer did not come may be in, or not, or come in later; the store may also carry one out twice. What
was changed is reported at the instant of the commit, in the words that checkers know. Only what creates a
row is carried out once: a number is given once, so that no row comes again under the number that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from shoal.core.errors import StoreBusy, StoreUnavailable
from shoal.core.lease import Change, ChangeKind, InstanceRow, LeaseRow, Row, SequenceRow, drawn
from shoal.core.leasing import Outcome
from shoal.core.limits import STEP_TRIES_MAX
from sim.loop import MS, Process, Steps
from sim.rows import LeasedRows, claim_of, member_of
from sim.stage import Stage

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")

LATE_US: Final = 1500 * MS
"""How long after it was given up a change may still come in, at most."""

CALLS: Final = {ChangeKind.SAVE: "save", ChangeKind.RELEASE: "release"}
"""What a change is to a checker, where that is not its own name."""

RENEWING: Final = frozenset({ChangeKind.TAKE, ChangeKind.FORCE, ChangeKind.RENEW})

FORCED: Final = "forces a checkpoint"
RESET: Final = "resets what comes after"
"""Who changes a row in a reset: nobody who holds it."""


class LeaseTable:
    """One process's way to a group's rows. They are there under their key even after the group is gone."""

    def __init__(self, stage: Stage, process: Process, rows: LeasedRows) -> None:
        self._stage, self._store, self._process = stage, stage.store, process
        self.rows = rows
        self.asked_at: dict[int, int] = {}
        """Times of the consumer's own, to when in the world they were read: for the checkers."""
        self.reset = 0
        """The reset that changes rows by this, as the checkers count them."""
        self._is_late = False
        """What is carried out at this instant was given up long ago."""

    def read(self, body: Callable[[LeasedRows], T]) -> Steps[T]:
        """What the rows say, as of one instant."""
        return (yield from self._store.read(self._process, lambda: body(self.rows)))

    def draw(self, count: int) -> Steps[range]:
        """Numbers from the sequence. Those whose answer was lost are given to nobody."""
        for _ in range(STEP_TRIES_MAX):
            row = yield from self.read(lambda rows: rows.sequence)
            drawing = Change(kind=ChangeKind.WATCH, old=row, new=drawn(row, count))
            (outcome,) = yield from self.attempt("", [drawing])
            if outcome is Outcome.UNKNOWN:
                raise StoreUnavailable("no answer: numbers may have been drawn")
            if outcome is Outcome.DONE:
                return range(row.number + 1, row.number + count + 1)
        raise StoreBusy("others draw numbers faster", 0.0)

    def found_instead(self, change: Change) -> Steps[Row | None]:
        """The row that a refused change was about, as it is now."""
        row = change.old or change.new
        assert row is not None
        return (yield from self.read(lambda rows: _stored(rows, row)))

    def attempt(self, who: str, changes: Sequence[Change], since: int | None = None) -> Steps[list[Outcome]]:
        """Each change by itself, all in one commit; what became of each, as far as `who` learns it.

        What was decided on a look does not outlive a fail-over `since` then; see `Nemesis._forget`.
        """
        stage, unknown = self._stage, [Outcome.UNKNOWN] * len(changes)
        failovers = self._store.failovers if since is None else since

        def body() -> list[Outcome]:
            if self._store.failovers != failovers:
                raise StoreUnavailable("the connection was lost")
            return [Outcome.DONE if self._is_done(change, who) else Outcome.REFUSED for change in changes]

        def once_more() -> None:
            for change in changes:
                if change.old is not None:
                    self._is_done(change, who)

        if stage.is_so("drop"):
            stage.history.fault("drop", self._process.name)
            yield 100 * MS
            return unknown
        is_forced_birth = who == FORCED and changes[0].old is None
        if not is_forced_birth and stage.is_so("late"):
            stage.history.fault("late", self._process.name)
            self._store.land(self._late(body), stage.rng.randrange(LATE_US))
            yield 100 * MS
            return unknown
        try:
            outcomes = yield from self._store.write(self._process, body)
        except StoreUnavailable:
            return unknown
        if stage.is_so("duplicate"):
            stage.history.fault("duplicate", self._process.name)
            self._store.land(once_more, stage.rng.randrange(LATE_US))
        return outcomes

    def _late(self, body: Callable[[], object]) -> Callable[[], None]:
        def commit() -> None:
            self._is_late = True
            with suppress(StoreUnavailable):
                body()
            self._is_late = False

        return commit

    # --- One change. ---------------------------------------------------------------------------------

    def _is_done(self, change: Change, who: str) -> bool:
        """The instant of a commit: whether the row was what the change takes it for, and is changed."""
        about = change.old or change.new
        assert about is not None
        before = _stored(self.rows, about)
        if not _is_same(before, change.old):
            if not self._overrules(change, before):
                return False
            change = replace(change, new=_forced_on(before, change))
        match about:
            case LeaseRow():
                assert change.new is None or isinstance(change.new, LeaseRow)
                # A wall clock, for people to read: nobody's is right.
                stamped = change.new and replace(change.new, update_time_ms=self._process.boot_ms())
                _put(self.rows.leases, about.shard, stamped)
            case InstanceRow():
                assert change.new is None or isinstance(change.new, InstanceRow)
                _put(self.rows.instances, about.name, change.new)
            case SequenceRow():
                assert isinstance(change.new, SequenceRow)
                self.rows.sequence = change.new
        self._report_renewal(change)
        if self._store.group is self.rows:
            self._report(change, who)
        return True

    def _overrules(self, change: Change, before: Row | None) -> bool:
        """Planted bugs: changes that do not look at the row they change."""
        if before is None or change.old is None or change.new is None:
            return False
        if change.kind is ChangeKind.WATCH:
            return "watch without compare-and-set" in self._stage.switches
        return "changes without compare-and-set" in self._stage.switches

    # --- What checkers hear. -------------------------------------------------------------------------

    def _report(self, change: Change, who: str) -> None:
        old, new = change.old, change.new
        match old or new:
            case LeaseRow():
                assert old is None or isinstance(old, LeaseRow)
                assert new is None or isinstance(new, LeaseRow)
                self._report_lease(change, old, new, who)
            case InstanceRow():
                assert old is None or isinstance(old, InstanceRow)
                assert new is None or isinstance(new, InstanceRow)
                self._report_instance(change, old, new)
            case SequenceRow():
                assert isinstance(new, SequenceRow)
                self._store.sequence = max(self._store.sequence, new.number)
                if change.kind is ChangeKind.DISTRUST:
                    # What was drawn before this is still on its way: those numbers may come again.
                    self._stage.facts.holding.evident(new.number)
                self._stage.facts.holding.distrust(new.distrust_ms)
            case None:
                raise AssertionError("a change is about a row")

    def _report_renewal(self, change: Change) -> None:
        """Of a group that is gone, too: who has not heard of that may act there, and within its deadline."""
        row = change.new
        if change.kind not in RENEWING or not isinstance(row, LeaseRow):
            return
        assert row.consumer_owner is not None
        key = (row.consumer_owner, row.shard, row.owner_epoch)
        asked_us = self.asked_at.get(change.asked_ms, self._stage.loop.now)
        deadlines = self._stage.facts.deadlines
        is_extended = not row.lapse_ms and row.owner_epoch == row.epoch
        (deadlines.renewed if is_extended else deadlines.shortened)(key, asked_us, row.timeout_ms)

    def _report_lease(self, change: Change, old: LeaseRow | None, new: LeaseRow | None, who: str) -> None:
        facts = self._stage.facts
        if old is not None and old.consumer_owner is not None and change.kind is ChangeKind.TAKE:
            facts.holding.expired(_named(old), old.timeout_ms, old.interval_ms)
        if new is not None and (old is None or new.lease_id != old.lease_id):
            facts.holding.heard(_named(new))
        if new is not None:
            before = None if old is None else claim_of(old)
            by = CALLS.get(change.kind, change.kind.value)
            if old is None:
                facts.delivery.reset_begins_again(self.reset)
            if who in {FORCED, RESET}:
                by = "rewind"
                if change.kind is ChangeKind.REWIND:
                    facts.delivery.begun_anew(new.shard, new.epoch, self.reset)
            if who == FORCED:
                since = max(new.epoch, new.born) - 1
                facts.forced(before, claim_of(new), new.checkpoint, since, self.reset)
            facts.claim_written(before, claim_of(new), by, who, 0 if old is None else old.owner_epoch)
        elif old is not None:
            facts.claim_cleaned(claim_of(old))
        if old is None or new is None or _hands(old) != _hands(new):
            self._tell_others(who)

    def _report_instance(self, change: Change, old: InstanceRow | None, new: InstanceRow | None) -> None:
        facts = self._stage.facts
        is_same = old is not None and new is not None and old.incarnation == new.incarnation
        if is_same:
            assert old is not None
            assert new is not None
            if change.kind is ChangeKind.BEAT:
                facts.beaten(member_of(old), new.counter, new.timeout_ms)
            if old.is_taking != new.is_taking:
                self._tell_others(new.incarnation)
            return
        if old is not None and new is not None:
            facts.holding.barred(old.incarnation, new.incarnation)
        if old is not None:
            facts.went(member_of(old), is_expired=change.kind is ChangeKind.BURY)
        if new is not None and self._is_late:
            facts.haunted(member_of(new))
        elif new is not None:
            facts.joined(member_of(new))
        self._tell_others("" if new is None else new.incarnation)

    def _tell_others(self, but: str) -> None:
        for row in list(self.rows.instances.values()):
            if row.incarnation != but:
                self._stage.wake(row.incarnation)


def _stored(rows: LeasedRows, like: Row) -> Row | None:
    """The row with the key of this one."""
    match like:
        case LeaseRow():
            return rows.leases.get(like.shard)
        case InstanceRow():
            return rows.instances.get(like.name)
        case SequenceRow():
            return rows.sequence


def _is_same(stored: Row | None, expected: Row | None) -> bool:
    """A table may compare no more than this: see `shoal.lease_port`."""
    match stored, expected:
        case LeaseRow(), LeaseRow():
            return _state(stored) == _state(expected)
        case InstanceRow(), InstanceRow():
            return (stored.incarnation, stored.revision) == (expected.incarnation, expected.revision)
        case SequenceRow(), SequenceRow():
            return stored.revision == expected.revision
        case _:
            return stored is None and expected is None


def _state(row: LeaseRow) -> tuple[int, int, int]:
    return (row.born, row.revision, row.epoch)


def _forced_on(before: Row | None, change: Change) -> Row | None:
    """What a change without compare-and-set makes of the row it meets: a watch adds, the rest overwrites."""
    old, new = change.old, change.new
    if change.kind is ChangeKind.WATCH:
        match before, old, new:
            case (LeaseRow(), LeaseRow(), LeaseRow()) if before.lease_id == old.lease_id:
                return replace(before, stood_ms=before.stood_ms + new.stood_ms - old.stood_ms)
            case (InstanceRow(), InstanceRow(), InstanceRow()) if before.counter == old.counter:
                return replace(before, stood_ms=before.stood_ms + new.stood_ms - old.stood_ms)
            case _:
                return before
    return new


def _put(table: dict[K, R], key: K, row: R | None) -> None:
    if row is None:
        del table[key]
    else:
        table[key] = row


def _named(row: LeaseRow) -> str:
    return f"shard {row.shard} at {row.owner_epoch}"


def _hands(row: LeaseRow) -> tuple[str | None, str | None, int, bool]:
    """What others wait for: who has it, who is to have it."""
    return (row.lease_owner, row.consumer_owner, row.epoch, row.is_over)
