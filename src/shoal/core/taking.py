"""The taker of a leased group: from one look at the table, the changes that one consumer should try.

A look is: time passes for what stands still; rows are made, ended and cleaned up; steals whose thief is gone
are undone, those that take too long are frozen; what is available is dealt; then the fullest are levelled.
Each change is one compare-and-set on a row as it was read, so a look at old rows does no harm.

No clock is compared with another. A `Mark` keeps when, in the observer's own time, it first saw the values
that stand still; a row keeps how long they have. An observer adds its own time only if they are the same
still, so that spans added by different observers never overlap.

Invariant: a row is taken only when it is available, and from then on under a new epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.balance import SPREAD, in_turn, quotas
from shoal.core.group import RULES, GroupSettings
from shoal.core.lease import (
    PATIENCE,
    Change,
    ChangeKind,
    InstanceRow,
    LeaseRow,
    SequenceRow,
    created,
    distrusted,
    ended,
    frozen,
    stolen,
    taken,
    vacated,
    watched,
)
from shoal.core.model import Shard, ShardId
from shoal.core.sharing import dealt, dealt_to, evened, levelled
from shoal.core.succession import Standing, standing, starting_over

STEPS_PER_INTERVAL = 4
"""A row that has missed a renewal is watched in steps of this part of its interval: finer ones only write
more, coarser ones find a death later."""

Value = tuple[int | str | None, ...]
"""What stands still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One look: the rows first, then the rest, so that every thief is known, and every row's shard."""

    rows: Sequence[LeaseRow]
    instances: Sequence[InstanceRow]
    sequence: SequenceRow
    shards: Sequence[Shard]
    """The stream's; the place of a shard is its id."""
    starts: Mapping[ShardId, int] = field(default_factory=dict)
    """Where the group begins in shards that were there when it was made; in others, at their first offset."""
    unbound: Collection[ShardId] = ()
    """Shards that wait for no ancestor: see `claims.unbound`."""
    stream_id: int = 0
    """Of several streams with a group of one name, each has another order of the members (`in_turn`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """When an observer first saw a value."""

    value: Value
    since_ms: int


Marks = Mapping[tuple[str, int | str], Mark]
"""By what is watched: ("stood", shard), ("waited", shard), ("instance", name) or ("distrust", "")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What to try, in this order, and what to remember of this look."""

    changes: Sequence[Change]
    marks: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """Who looks, and what it knows besides the table."""

    me: InstanceRow
    settings: GroupSettings
    seen: int = 0
    """The highest number that it has ever seen."""
    marks: Marks = field(default_factory=dict)
    is_parting: bool = False
    """Its last look: it adds what it has watched, however little."""


def look(taker: Taker, view: View, *, now_ms: int, watch_ms: int) -> Looked:
    """`watch_ms`: of the clock that stops in suspend, stamped after the rows were read. `now_ms`: of the
    clock that goes on, for deadlines; anything up to the moment when the changes are sent."""
    work = _Work(taker=taker, view=view, now_ms=now_ms, watch_ms=watch_ms)
    _watch_instances(work)
    _watch_sequence(work)
    _watch_rows(work)
    if taker.settings.rules != RULES:
        return work.finished()  # Whoever does not know the group's rules beats and watches; others decide.
    _follow_stream(work)
    _settle_steals(work)
    if work.may_grant and taker.me.is_taking:
        _take_and_steal(work)
    return work.finished()


def kept_marks(marks: Marks, change: Change) -> Marks:
    """After the observer's own addition is in: it goes on from where it counted up to.

    The row did not change between the read and the write, so that this span is nobody else's.
    """
    old, new = change.old, change.new
    after = dict(marks)
    if isinstance(old, LeaseRow) and isinstance(new, LeaseRow):
        for key, before, value in (
            (("stood", old.shard), _stood(old), _stood(new)),
            (("waited", old.shard), _waited(old), _waited(new)),
        ):
            if before != value:
                after[key] = Mark(value=value, since_ms=change.watched_ms)
    elif isinstance(old, InstanceRow) and isinstance(new, InstanceRow):
        after["instance", new.name] = Mark(value=_silence(new), since_ms=change.watched_ms)
    elif isinstance(old, SequenceRow) and isinstance(new, SequenceRow):
        after["distrust", ""] = Mark(value=_distrust(new), since_ms=change.watched_ms)
    return after


@dataclass(slots=True, kw_only=True)
class _Work:
    """A look under way: rows as they would be after the changes so far, each against the row as read."""

    taker: Taker
    view: View
    now_ms: int
    watch_ms: int
    standing: Standing = field(init=False)
    rows: dict[ShardId, LeaseRow] = field(init=False)
    kinds: dict[ShardId, ChangeKind] = field(default_factory=dict)
    instances: dict[str, InstanceRow] = field(init=False)
    """By incarnation: those that live."""
    candidates: dict[str, InstanceRow] = field(default_factory=dict)
    """Those of them that take shards."""
    marks: dict[tuple[str, int | str], Mark] = field(default_factory=dict)
    others: list[Change] = field(default_factory=list)
    may_grant: bool = True

    def __post_init__(self) -> None:
        self.standing = standing(self.view.rows, self.view.shards, self.view.unbound)
        self.rows = dict(self.standing.rows)
        self.instances = {self.me.incarnation: self.me}

    @property
    def me(self) -> InstanceRow:
        return self.taker.me

    def is_eligible(self, row: LeaseRow) -> bool:
        return self.standing.is_eligible(row, in_order=self.taker.settings.in_order)

    def put(self, row: LeaseRow, kind: ChangeKind) -> None:
        self.rows[row.shard] = row
        self.kinds[row.shard] = kind

    def elapsed(self, key: tuple[str, int | str], value: Value, interval_ms: int, step_ms: int) -> int:
        """The observer's own time with this value before it, if it is long enough to be worth a write."""
        before = self.taker.marks.get(key)
        since = before.since_ms if before is not None and before.value == value else self.watch_ms
        self.marks[key] = Mark(value=value, since_ms=since)
        elapsed = self.watch_ms - since
        return min(elapsed, interval_ms) if elapsed >= (1 if self.taker.is_parting else step_ms) else 0

    def finished(self) -> Looked:
        changes = list(self.others)
        for shard, kind in self.kinds.items():
            is_granted = kind in {ChangeKind.TAKE, ChangeKind.FORCE}
            changes.append(
                Change(
                    kind=kind,
                    old=self.standing.rows[shard],
                    new=self.rows[shard],
                    wants_number=is_granted,
                    asked_ms=self.now_ms,
                    watched_ms=self.watch_ms,
                )
            )
        return Looked(changes=changes, marks=self.marks)


# --- Time passes. -----------------------------------------------------------------------------------


def _stood(row: LeaseRow) -> Value:
    return (row.born, row.lease_id, row.stood_ms)


def _waited(row: LeaseRow) -> Value:
    return (row.born, row.epoch, row.lease_owner, row.lapse_ms, row.waited_ms)


def _silence(instance: InstanceRow) -> Value:
    return (instance.incarnation, instance.counter, instance.stood_ms)


def _distrust(sequence: SequenceRow) -> Value:
    return (sequence.distrusted, sequence.distrust_ms)


def _step_ms(interval_ms: int, *, is_late: bool) -> int:
    """What is renewed nearly in time is never written to: the first step is longer than an interval."""
    step_ms = max(1, interval_ms // STEPS_PER_INTERVAL)
    return step_ms if is_late else interval_ms + step_ms


def _watch_instances(work: _Work) -> None:
    for row in work.view.instances:
        if row.name == work.me.name:
            continue
        step_ms = _step_ms(row.interval_ms, is_late=row.stood_ms > 0)
        added = work.elapsed(("instance", row.name), _silence(row), row.interval_ms, step_ms)
        after = replace(row, revision=row.revision + 1, stood_ms=row.stood_ms + added) if added else row
        if not after.is_dead:
            work.instances[row.incarnation] = after
        new = None if after.is_dead else after
        if new is not row:
            kind = ChangeKind.BURY if after.is_dead else ChangeKind.WATCH
            work.others.append(Change(kind=kind, old=row, new=new, watched_ms=work.watch_ms))
    work.candidates = {key: instance for key, instance in work.instances.items() if instance.is_taking}


def _watch_sequence(work: _Work) -> None:
    row = work.view.sequence
    if row.number < work.taker.seen:
        timeouts = [work.taker.settings.timeout_ms, *(row.timeout_ms for row in work.view.rows)]
        after = distrusted(row, work.taker.seen, max(timeouts))
        work.others.append(Change(kind=ChangeKind.DISTRUST, old=row, new=after))
    elif row.distrust_ms:
        interval_ms = work.me.interval_ms
        step_ms = _step_ms(interval_ms, is_late=True)
        added = work.elapsed(("distrust", ""), _distrust(row), interval_ms, step_ms)
        after = replace(row, revision=row.revision + 1, distrust_ms=max(0, row.distrust_ms - added))
        if added:
            work.others.append(Change(kind=ChangeKind.WATCH, old=row, new=after, watched_ms=work.watch_ms))
    work.may_grant = row.number >= work.taker.seen and not row.distrust_ms


def _watch_rows(work: _Work) -> None:
    bound_ms = work.taker.settings.handover_timeout_ms
    for row in list(work.rows.values()):
        is_mine = row.consumer_owner == work.me.incarnation
        stood_ms = waited_ms = 0
        if (work.is_eligible(row) or row.consumer_owner is not None) and not is_mine:
            is_late = row.stood_ms > 0 or row.consumer_owner is None
            step_ms = _step_ms(row.interval_ms, is_late=is_late)
            elapsed_ms = work.elapsed(("stood", row.shard), _stood(row), row.interval_ms, step_ms)
            stood_ms = elapsed_ms if row.stood_ms < PATIENCE * row.timeout_ms else 0
        if row.is_stolen and not row.is_available and (row.lapse_ms or not row.is_over):
            is_late = row.lapse_ms > 0 or bound_ms is not None
            step_ms = _step_ms(row.interval_ms, is_late=is_late)
            waited_ms = work.elapsed(("waited", row.shard), _waited(row), row.interval_ms, step_ms)
        if stood_ms or waited_ms:
            work.put(watched(row, stood_ms, waited_ms), ChangeKind.WATCH)


# --- Rows come and go. ------------------------------------------------------------------------------


def _follow_stream(work: _Work) -> None:
    for shard in work.standing.missing:
        row = created(
            work.me.group,
            shard,
            work.view.starts.get(shard.id, 0),
            owner=work.me,
            parents_born=tuple(
                work.rows[parent].born if parent in work.rows else 0 for parent in shard.parents
            ),
            bound=work.taker.settings.in_order,
        )
        work.others.append(Change(kind=ChangeKind.CREATE, old=None, new=row, wants_number=True))
    for row in starting_over(work.rows, work.view.shards):
        work.put(ended(row), ChangeKind.END)
    for row in list(work.rows.values()):
        if row.is_over and row.consumer_owner is not None and _may_take(work, row):
            work.put(vacated(row), ChangeKind.END)
    for row in [*work.standing.void, *work.standing.done]:
        work.kinds.pop(row.shard, None)
        work.others.append(Change(kind=ChangeKind.CLEAN, old=row, new=None))


# --- Steals under way, and rows to take. ------------------------------------------------------------


def _settle_steals(work: _Work) -> None:
    """Undo those whose thief is gone; bound the others, if the user has set a bound."""
    bound_ms = work.taker.settings.handover_timeout_ms
    for row in list(work.rows.values()):
        if not row.is_stolen or row.is_over or row.is_available or row.lapse_ms:
            continue
        assert row.consumer_owner is not None
        if row.lease_owner not in work.candidates:
            work.put(stolen(row, row.consumer_owner), ChangeKind.RETURN)
        elif bound_ms is not None and row.waited_ms >= bound_ms:
            work.put(frozen(row), ChangeKind.FREEZE)


def _take_and_steal(work: _Work) -> None:
    candidates = work.candidates
    counts = {instance.name: 0 for instance in candidates.values()}
    held: dict[str, list[LeaseRow]] = {name: [] for name in counts}
    free: list[LeaseRow] = []
    for shard in sorted(work.rows):
        row = work.rows[shard]
        if not work.is_eligible(row):
            continue
        row = _claimed_from_former(work, row)
        if _may_take(work, row):
            if (reserved := _reserved_for(row, candidates)) is None:
                free.append(row)
                continue
            counts[reserved.name] += 1
            if reserved.incarnation == work.me.incarnation or row.is_neglected:
                _take(work, row)
        elif (intended := candidates.get(row.lease_owner or "")) is not None:
            counts[intended.name] += 1
            held[intended.name].append(row)
    quota: Mapping[str, int] | None = None
    if work.taker.settings.strategy == SPREAD:
        ranked = in_turn(sorted(counts), work.view.stream_id)
        quota = quotas(ranked, sum(counts.values()) + len(free))
    takers = dealt(counts, len(free)) if quota is None else dealt_to(quota, counts, len(free))
    for row, name in zip(free, takers, strict=True):
        counts[name] += 1
        if name == work.me.name or row.is_neglected:
            _take(work, row)
    for theft in levelled(counts) if quota is None else evened(quota, counts):
        loot = _loot(held[theft.victim], theft.shards, candidates, theft.thief)
        for row in loot:
            held[theft.victim].remove(row)
            if theft.thief == work.me.name:
                is_kept = row.consumer_owner == work.me.incarnation
                after = stolen(row, work.me.incarnation)
                work.put(after, ChangeKind.RETURN if is_kept else ChangeKind.STEAL)


def _may_take(work: _Work, row: LeaseRow) -> bool:
    """What is ours and stood still is not taken anew, but renewed."""
    return row.is_lapsed or (row.is_available and row.consumer_owner != work.me.incarnation)


def _reserved_for(row: LeaseRow, candidates: Mapping[str, InstanceRow]) -> InstanceRow | None:
    """Of an available row: the thief that it was let go for, if it still takes shards."""
    return candidates.get(row.lease_owner or "") if row.lease_owner != row.consumer_owner else None


def _claimed_from_former(work: _Work, row: LeaseRow) -> LeaseRow:
    """What this consumer held before it was restarted is meant for it again, once it is let go of."""
    if (
        row.consumer_owner in work.me.former
        and row.lease_owner == row.consumer_owner
        and not row.is_available
    ):
        row = stolen(row, work.me.incarnation)
        work.put(row, ChangeKind.STEAL)
    return row


def _take(work: _Work, row: LeaseRow) -> None:
    is_forced = not (row.consumer_owner is None or row.stood_ms >= row.timeout_ms)
    work.put(taken(row, work.me), ChangeKind.FORCE if is_forced else ChangeKind.TAKE)


def _loot(
    rows: Sequence[LeaseRow], count: int, candidates: Mapping[str, InstanceRow], thief: str
) -> list[LeaseRow]:
    """Which shards to steal: first those that are on their way to the victim and cost nobody a drain, then
    the youngest, which have the least behind them. A deadline that is no longer extended stays its owner's
    to lose: the owner cannot have it back."""

    def may_go(row: LeaseRow) -> bool:
        owner = candidates.get(row.consumer_owner or "")
        return not (row.lapse_ms and owner is not None and owner.name == thief)

    fitting = sorted((row for row in rows if may_go(row)), key=lambda row: (not row.is_stolen, -row.shard))
    return fitting[:count]
