"""Where facts are reported: one method for each, which writes it down and shows it to the checkers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from shoal.core.checkpoint import is_same
from shoal.core.group import RULES, Claim, GroupSettings, Member
from shoal.core.lease import Change, ChangeKind
from sim.checks_deadline import DeadlineChecks
from sim.checks_delivery import DeliveryChecks
from sim.checks_holding import OWNERS_CALLS, HoldingChecks
from sim.checks_records import Hand, RecordChecks
from sim.history import History, Violation
from sim.loop import Loop
from sim.rows import Rows
from sim.store import Store
from sim.stream import Stream

DECISIONS: Final = frozenset({ChangeKind.TAKE, ChangeKind.FORCE, ChangeKind.STEAL, ChangeKind.CREATE})


class Facts:
    """The world's witness. Reported to by the shell, at the very instant at which something is so."""

    def __init__(self, loop: Loop, store: Store, history: History, *, of_records: bool = False) -> None:
        """`of_records`: there are whole workers, and every record is followed."""
        self._loop, self._store, self.history = loop, store, history
        self.holding = HoldingChecks(store, lambda: loop.now)
        self.deadlines = DeadlineChecks(lambda: loop.now)
        self.records = RecordChecks()
        self.delivery: DeliveryChecks = self.records if of_records else DeliveryChecks()
        self.moved_at = 0
        """When a shard last changed hands."""

    def group_made(self, rows: Rows, stream: Stream, starts: list[int]) -> None:
        self.history.say("store", f"group {rows.id} on stream {stream.id}: {rows.settings}")
        self.holding.group_made()
        self.delivery.group_made(rows.id, stream, rows.settings, starts)

    def updated(self, settings: GroupSettings) -> None:
        self.delivery.updated(settings)

    # --- Consumers. ----------------------------------------------------------------------------------

    def handed(self, group: int, incarnation: str, shard: int, epoch: int, batch: tuple[int, int]) -> None:
        first, end = batch
        self.history.counts["hand-outs"] += 1
        if self.history.is_traced:
            self.history.say(incarnation, f"hands out shard {shard} at {epoch}: [{first}, {end})")
        self.holding.handed(group, incarnation, shard, epoch)
        if not self.holding.is_lenient:
            self.deadlines.handed(incarnation, shard, epoch)
        self.delivery.is_lenient = self.holding.is_lenient or self.holding.is_doubtful(epoch)
        self.delivery.handed(group, incarnation, shard, epoch, batch)

    def reached(self, hand: Hand, lane: int, offsets: Sequence[int]) -> None:
        """Records reach user code of a worker."""
        self.history.counts["records"] += len(offsets)
        if self.history.is_traced:
            self.history.say(hand.incarnation, f"gives shard {hand.shard} at {hand.epoch}: {list(offsets)}")
        if not self.records.is_repeat(hand, offsets):
            self.holding.handed(hand.group, hand.incarnation, hand.shard, hand.epoch)
        self.deadlines.handed(hand.incarnation, hand.shard, hand.epoch)
        self.records.reached(hand, lane, offsets)

    def declared(self, group: int, incarnation: str, shard: int, epoch: int, offset: int) -> None:
        if self.history.is_traced:
            self.history.say(incarnation, f"is done with shard {shard} at {epoch} up to {offset}")
        self.delivery.declared(group, shard, epoch, offset)

    def wrote(self, group: int, incarnation: str, shard: int, epoch: int) -> None:
        if not self.holding.wrote(group, incarnation, shard, epoch):
            self.history.counts["refused by a sink"] += 1

    def release_sent(self, incarnation: str, shard: int, epoch: int) -> None:
        if self.history.is_traced:
            self.history.say(incarnation, f"sends the release of shard {shard} at {epoch}")
        self.holding.release_sent(incarnation, shard, epoch)

    def decided(self, incarnation: str, changes: Sequence[Change], rules: int) -> None:
        """6: who was told of rules that it does not know beats and watches, and decides nothing."""
        if rules != RULES and any(change.kind in DECISIONS for change in changes):
            raise Violation("6", f"{incarnation} decides by rules {rules}, which it does not know")

    # --- Rows. ---------------------------------------------------------------------------------------

    def claim_written(
        self, before: Claim | None, after: Claim, by: str, who: str | None = None, epoch: int = 0
    ) -> None:
        """A claim's row was committed by this call, which showed this incarnation and epoch."""
        if self.history.is_traced:
            self.history.say("store", f"{by}: {_shown(before, after)}")
        self.holding.claim_written(before, after, by, who, epoch)
        self.deadlines.written(after)
        if by in OWNERS_CALLS and before is not None and not is_same(before.checkpoint, after.checkpoint):
            self.delivery.written(before, after, epoch)
        owner = (after.owner, after.owner_epoch)
        if before is not None and before.owner is not None and owner != (before.owner, before.owner_epoch):
            is_planned = by in {"release", "leave"} and who == before.owner
            # What is let go of because the store forgot is not handed over.
            is_certain = not self.holding.is_lenient and not self.holding.is_doubtful(before.owner_epoch)
            self.delivery.let_go(before, is_planned=is_planned and is_certain)
            # One that has nothing left to hand out may think what it likes.
            if not is_planned and not self._is_done(before) and not self.holding.is_lenient:
                self.deadlines.taken(before, by)
        if before is None or owner != (before.owner, before.owner_epoch):
            self.moved_at = self._loop.now
            if after.owner is not None:
                self.history.counts["moves"] += 1

    def claim_cleaned(self, before: Claim) -> None:
        """The row of a shard that is done was removed."""
        self.history.say("store", f"cleaned: shard {before.shard}")
        self.delivery.cleaned(before)
        if before.owner is not None:
            self.claim_written(before, replace(before, owner=None, owner_epoch=0, next=None), "clean")

    def _is_done(self, before: Claim) -> bool:
        stream = self._store.stream
        row = None if stream is None else stream.shards[before.shard]
        return row is not None and not row.is_open and before.checkpoint >= row.next_offset

    def forced(self, before: Claim | None, after: Claim, offset: int, since: int, reset: int = 0) -> None:
        """A checkpoint was forced, when `since` was the last epoch that the group had given."""
        self.holding.forced(before, after, offset)
        self.delivery.forced(after.shard, since, offset, reset, is_made=before is None)

    def joined(self, member: Member) -> None:
        self.history.say(member.incarnation, f"is a member: {member.timeout_ms} / {member.interval_ms} ms")
        self.holding.joined(member.incarnation)

    def haunted(self, member: Member) -> None:
        """A join came in long after it was given up: a row that nobody may beat for."""
        self.history.counts["ghosts"] += 1
        self.holding.heard(member.incarnation)

    def beaten(self, before: Member, number: int, timeout_ms: int) -> None:
        if self.history.is_traced:
            self.history.say(before.incarnation, f"beats {number} at the store, counting by {timeout_ms} ms")
        self.holding.beaten(before, number)
        self.deadlines.counted(before.incarnation, number, timeout_ms)

    def went(self, member: Member, *, is_expired: bool) -> None:
        self.history.counts["expired" if is_expired else "gone"] += 1
        self.history.say(member.incarnation, "was expired" if is_expired else "is gone")
        self.holding.went(member, is_expired=is_expired)

    def forgot(self) -> None:
        self.holding.forgot()
        self.delivery.forgot()


def _shown(before: Claim | None, after: Claim) -> str:
    text = f"shard {after.shard} {after.state} of {after.owner} at {after.owner_epoch}/{after.epoch}"
    text += f", checkpoint {after.checkpoint}"
    if after.next is not None:
        text += f", next {after.next}"
    if after.restart is not None:
        text += f", restart {after.restart}"
    if after.lapse_ms:
        text += f", lapse {after.lapse_ms}"
    return text if before is not None else f"born: {text}"
