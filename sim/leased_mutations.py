"""Mutations of the rules of leased groups: what is put in the place of functions of `shoal.core`.

Each is made anew when it is planted, from the function that is there, and changes one thing in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.core import lease, lease_reset, leasing, renewing, sharing, succession, taking
from shoal.core.group import RULES
from shoal.core.lease import Change, InstanceRow, LeaseRow, SequenceRow
from shoal.core.leasing import LeasedConsumer
from shoal.core.model import Shard, ShardId
from shoal.core.renewing import Held
from shoal.core.succession import Standing
from shoal.core.taking import Looked, Taker, View
from sim import leased
from sim.bug import Replacement


def no_margin() -> Replacement:
    return lease, "CLOCK_MARGIN", 0.0


def same_epoch() -> Replacement:
    right = lease.numbered

    def numbered(change: Change, number: int) -> Change:
        assert isinstance(change.new, LeaseRow)
        epoch = change.new.epoch
        after = right(change, number)
        if change.old is None or not epoch:
            return after
        assert isinstance(after.new, LeaseRow)
        return replace(after, new=replace(after.new, epoch=epoch, owner_epoch=epoch))

    return leased, "numbered", numbered


def uncapped_watch() -> Replacement:
    right = taking._Work.elapsed

    def elapsed(work: Any, key: Any, value: Any, interval_ms: int, step_ms: int) -> int:
        del interval_ms
        return right(work, key, value, 10**9, step_ms)

    return taking._Work, "elapsed", elapsed


def watch_by_wall_clocks() -> Replacement:
    """Silence is the difference between one's own clock and the time that the writer's clock left."""
    right = taking.look

    def look(taker: Taker, view: View, *, now_ms: int, watch_ms: int) -> Looked:
        rows = [
            row
            if row.consumer_owner in {None, taker.me.incarnation}
            else replace(row, stood_ms=max(0, now_ms - row.update_time_ms))
            for row in view.rows
        ]
        return right(taker, replace(view, rows=rows), now_ms=now_ms, watch_ms=watch_ms)

    return leasing, "look", look


def watch_without_the_counter() -> Replacement:
    """What was seen first counts on, whatever the counter has done since."""
    right = taking._Work.elapsed

    def elapsed(work: Any, key: Any, value: Any, interval_ms: int, step_ms: int) -> int:
        del value
        return right(work, key, (), interval_ms, step_ms)

    return taking._Work, "elapsed", elapsed


def same_lease_id() -> Replacement:
    right = lease.renewed

    def renewed(row: LeaseRow, timeout_ms: int, interval_ms: int) -> LeaseRow:
        return replace(right(row, timeout_ms, interval_ms), lease_id=row.lease_id)

    return renewing, "renewed", renewed


def silence_is_kept() -> Replacement:
    right = lease.renewed

    def renewed(row: LeaseRow, timeout_ms: int, interval_ms: int) -> LeaseRow:
        return replace(right(row, timeout_ms, interval_ms), stood_ms=row.stood_ms)

    return renewing, "renewed", renewed


def inherit_at_once() -> Replacement:
    right = taking._claimed_from_former

    def claimed(work: Any, row: LeaseRow) -> LeaseRow:
        if row.consumer_owner in work.me.former:
            return replace(row, lease_owner=None, consumer_owner=None)
        return right(work, row)

    return taking, "_claimed_from_former", claimed


def adopt_by_name() -> Replacement:
    right = LeasedConsumer._returning

    def returning(member: LeasedConsumer, view: View, now_ms: int) -> Iterator[Change]:
        name = member.me.name
        rows = [
            replace(row, consumer_owner=member.me.incarnation, lease_owner=member.me.incarnation)
            if (row.consumer_owner or "").startswith(f"{name}.")
            else row
            for row in view.rows
        ]
        return right(member, replace(view, rows=rows), now_ms)

    return LeasedConsumer, "_returning", returning


def names_are_free() -> Replacement:
    def check_free(member: LeasedConsumer, instances: Sequence[InstanceRow]) -> None:
        """Whoever has the name by now is barred by one that is older."""

    return LeasedConsumer, "check_free", check_free


def take_back_at_once() -> Replacement:
    """A steal is a take: the owner is not waited for."""

    def is_available(row: LeaseRow) -> bool:
        is_silent = row.consumer_owner is None or row.stood_ms >= row.timeout_ms
        return is_silent or row.is_lapsed or row.is_stolen

    return LeaseRow, "is_available", property(is_available)


def lapse_at_once() -> Replacement:
    return LeaseRow, "is_lapsed", property(lambda row: row.lapse_ms > 0)


def extend_frozen() -> Replacement:
    return LeaseRow, "is_extended", property(lambda row: not row.is_fenced)


def extend_fenced() -> Replacement:
    return LeaseRow, "is_extended", property(lambda row: not row.lapse_ms)


def fenced_ones_save() -> Replacement:
    def fenced(row: LeaseRow | None, shard: ShardId, holder: str, epoch: int) -> LeaseRow:
        del shard, holder, epoch
        assert row is not None
        return row

    return lease, "fenced", fenced


def reset_unfenced() -> Replacement:
    right = lease.rewound

    def rewound(row: LeaseRow, shard: Shard, offset: int, number: int) -> LeaseRow:
        return replace(right(row, shard, offset, number), epoch=row.epoch)

    return lease_reset, "rewound", rewound


def reset_frees() -> Replacement:
    right = lease.rewound

    def rewound(row: LeaseRow, shard: Shard, offset: int, number: int) -> LeaseRow:
        after = right(row, shard, offset, number)
        return replace(after, lease_owner=None, consumer_owner=None, owner_epoch=0)

    return lease_reset, "rewound", rewound


def children_first() -> Replacement:
    return Standing, "is_waiting", lambda *_, **__: False


def late_born_at_the_end() -> Replacement:
    right = lease.created

    def created(group: str, shard: Shard, checkpoint: int, **how: Any) -> LeaseRow:
        return right(group, shard, max(checkpoint, shard.next_offset if shard.parents else 0), **how)

    return taking, "created", created


def empty_is_not_over() -> list[Replacement]:
    def is_at_end(shard: Shard, checkpoint: int) -> bool:
        return not shard.is_open and shard.next_offset > 0 and checkpoint >= shard.next_offset

    return [(lease, "is_at_end", is_at_end), (succession, "is_at_end", is_at_end)]


def rows_before_parents() -> Replacement:
    def is_missing(shard: Shard, rows: Mapping[ShardId, LeaseRow], with_heirs: set[ShardId]) -> bool:
        del with_heirs
        return shard.id not in rows

    return succession, "_is_missing", is_missing


def made_again_counts() -> Replacement:
    return succession, "_is_void", lambda *_: False


def clean_up_early() -> Replacement:
    """What is over is removed, whether or not it has children that say so."""

    def is_done(row: LeaseRow, children: object, rows: object, over: set[ShardId]) -> bool:
        del children, rows
        return row.shard in over and row.is_available

    return succession, "_is_done", is_done


def makes_rows_unknown() -> Replacement:
    return LeasedConsumer, "_is_known", lambda *_: True


def count_by_the_groups() -> list[Replacement]:
    """The deadline counts by the group's timeout, and the row states the one it had before."""
    renew, land = lease.renewed, renewing.landed
    counted: dict[tuple[int, int], int] = {}

    def renewed(row: LeaseRow, timeout_ms: int, interval_ms: int) -> LeaseRow:
        after = renew(row, row.timeout_ms, interval_ms)
        counted[after.born, after.revision] = timeout_ms
        return after

    def landed(held: Held, change: Change, *, is_last: bool) -> Held:
        row = change.new
        assert isinstance(row, LeaseRow)
        after = land(held, change, is_last=is_last)
        if after.lease.deadline_ms == held.lease.deadline_ms:
            return after
        deadline_ms = change.asked_ms + lease.usable_ms(counted[row.born, row.revision])
        return replace(after, lease=replace(after.lease, deadline_ms=deadline_ms))

    return [(renewing, "renewed", renewed), (renewing, "landed", landed)]


def shorten_late() -> Replacement:
    return renewing, "shortened", lambda held, _: held


def mistaken_for_the_one_before() -> Replacement:
    return leasing, "_counts_time", lambda _: False


def never_settles() -> Replacement:
    """`ceil` alone: whoever is below it steals from whoever has more than it has."""
    right = sharing.levelled

    def levelled(counts: Mapping[str, int]) -> list[sharing.Theft]:
        thefts = right(counts)
        target = -(-sum(counts.values()) // max(1, len(counts)))
        fullest = max(counts, key=lambda name: (counts[name], name), default="")
        emptiest = min(counts, key=lambda name: (counts[name], name), default="")
        if not thefts and counts and counts[emptiest] < target and counts[fullest] > counts[emptiest]:
            thefts = [sharing.Theft(fullest, emptiest, 1)]
        return thefts

    return taking, "levelled", levelled


def unknown_rules_decide() -> Replacement:
    right = taking.look

    def look(taker: Taker, view: View, *, now_ms: int, watch_ms: int) -> Looked:
        settings = replace(taker.settings, rules=RULES)
        me = replace(taker.me, is_taking=True)
        return right(replace(taker, settings=settings, me=me), view, now_ms=now_ms, watch_ms=watch_ms)

    return leasing, "look", look


def no_wait_after_forgetting() -> Replacement:
    right = lease.distrusted

    def distrusted(row: SequenceRow, seen: int, longest_ms: int) -> SequenceRow:
        del longest_ms
        return right(row, seen, 0)

    return taking, "distrusted", distrusted


def forgotten_rows_are_kept() -> Replacement:
    return renewing, "is_forgotten", lambda *_: False


def doubtful_epochs_go_on() -> Replacement:
    right = LeasedConsumer._keep

    def keep(member: LeasedConsumer, held: Held, told: leasing.Told) -> None:
        doubted, member._distrusted = member._distrusted, 0
        right(member, held, told)
        member._distrusted = doubted

    return LeasedConsumer, "_keep", keep
