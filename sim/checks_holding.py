"""Checkers of who holds what: invariants 1 and 2 of the design, and what defends them.

They see committed rows and what processes did, nothing of the rules: each check is written from the
promise, not from the code that keeps it. A check that would also have failed in a world where nothing is
wrong (the store forgot what it had promised) says when it looks away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shoal.core.group import Claim, Member
from sim.history import Violation
from sim.store import Store

ALLOWANCE: Final = 0.024
"""By how much a watcher's clock may run fast, as the worlds make them."""

OWNERS_CALLS: Final = frozenset({"save", "release", "leave"})
"""Calls by which an owner moves a checkpoint; each shows its epoch."""


class HoldingChecks:
    """One world's facts about holders, epochs, checkpoints and watches."""

    def __init__(self, store: Store, now_us: Callable[[], int]) -> None:
        self._store, self._now_us = store, now_us
        self._handed: dict[tuple[int, int], int] = {}
        """(group, shard) to the highest epoch under which a batch was handed out."""
        self._epochs: dict[int, int] = {}
        """Shard to the highest epoch ever given, over all groups of that name."""
        self._gone: set[str] = set()
        self._forgotten: set[str] = set()
        """Gone, and the store has forgotten that they ever were there: a late join of one is a join."""
        self._beaten: set[str] = set()
        self._members: set[str] = set()
        """Processes that have been members of this group."""
        self._sent: set[tuple[str, int, int]] = set()
        self._forced: dict[int, list[int]] = {}
        """Shard to the offsets that were forced on it and may still have to take effect."""
        self._heard_at: dict[str, int] = {}
        """When a counter that is watched last rose: a member's, or a lease's."""
        self._sink: dict[int, int] = {}
        self._saw: dict[tuple[str, int], int] = {}
        """(Process, group) to the highest version of the group that it has read."""
        self._saw_before: dict[tuple[str, int], int] = {}
        """The same, as of when the store last forgot."""
        self.is_lenient = False
        """The store forgot, and the group has not waited it out yet: the past is not what it was."""
        self._is_evident = True
        """Somebody has shown that the store forgot; from then on no epoch may come again."""
        self._doubtful = 0
        """Except up to this one: they were given before that was noticed."""
        self._known_doubtful = 0
        """The same, as far as the store knows it: it may have forgotten that it was told."""

    def group_made(self) -> None:
        self._forced.clear()
        self._gone.clear()
        self._forgotten.clear()
        self._members.clear()
        self.is_lenient = not self._is_evident

    # --- Hand-outs. ----------------------------------------------------------------------------------

    def handed(self, group: int, incarnation: str, shard: int, epoch: int) -> None:
        """1: only the one holder hands out, and never one after its successor."""
        highest = self._handed.get((group, shard), 0)
        if epoch < highest and not self.is_lenient and not self.is_doubtful(epoch):
            raise Violation("1", f"{incarnation} hands out shard {shard} at {epoch}, after {highest}")
        self._handed[group, shard] = max(highest, epoch)
        if (incarnation, shard, epoch) in self._sent:
            raise Violation("1", f"{incarnation} hands out shard {shard} at {epoch}, which it has released")
        rows = self._store.group
        if rows is None or rows.id != group or self.is_lenient:
            return  # Its group was deleted under it, or its store forgot: there is no row to hold it against.
        claim = rows.claim(shard)
        if claim is None or claim.owner != incarnation or claim.owner_epoch != epoch:
            held = "nobody" if claim is None else f"{claim.owner} at {claim.owner_epoch}"
            raise Violation("1", f"{incarnation} hands out shard {shard} at {epoch}, held by {held}")

    def wrote(self, group: int, incarnation: str, shard: int, epoch: int) -> bool:
        """The sink's fence: whether it takes the write. It must never refuse the rightful holder.

        Who has not heard yet that its leased group is gone may still be given epochs there, for itself: they
        are not held against those of the group that has the name now.
        """
        rows = self._store.group
        if epoch >= self._sink.get(shard, 0):
            if rows is not None and rows.id == group:
                self._sink[shard] = epoch
            return True
        claim = None if rows is None else rows.claim(shard)
        is_current = claim is not None and (claim.owner, claim.epoch) == (incarnation, epoch)
        if is_current and not self.is_lenient and not self.is_doubtful(epoch):
            raise Violation("1", f"a sink refused shard {shard} at {epoch}, the current one")
        return False

    def release_sent(self, incarnation: str, shard: int, epoch: int) -> None:
        self._sent.add((incarnation, shard, epoch))

    def answered_read(self, shard: int, epoch: int) -> None:
        """1: a read under an epoch that is no longer current is refused."""
        rows = self._store.group
        claim = None if rows is None else rows.claim(shard)
        if claim is None or claim.epoch != epoch or claim.owner_epoch != epoch:
            raise Violation("1", f"a read of shard {shard} was answered at {epoch}, which is not current")

    # --- Rows. ---------------------------------------------------------------------------------------

    def claim_written(self, before: Claim | None, after: Claim, by: str, who: str | None, epoch: int) -> None:
        """2, and that an epoch is given once. `by` is the call; `who` and `epoch` are what it showed."""
        if before is not None and after.epoch < before.epoch:
            raise Violation("2", f"shard {after.shard}: its epoch went from {before.epoch} to {after.epoch}")
        if after.owner is not None and (
            before is None or (after.owner, after.owner_epoch) != (before.owner, before.owner_epoch)
        ):
            self._granted(after, by_itself=who == after.owner)
        if before is None or after.checkpoint == before.checkpoint:
            return
        if by in OWNERS_CALLS and before.restart is None:
            is_owner = before.owner == who and before.owner_epoch == epoch and before.epoch == epoch
            if not is_owner and not self.is_lenient:
                raise Violation("2", f"shard {after.shard}: a checkpoint of {who} at {epoch} took effect")
        forced = self._forced.get(after.shard, [])
        if after.checkpoint in forced:
            if by != "rewind" or after.restart is None:  # It has taken effect.
                forced.remove(after.checkpoint)
        elif after.checkpoint < before.checkpoint:
            text = f"shard {after.shard}: {by} took the checkpoint from {before.checkpoint} to"
            raise Violation("2", f"{text} {after.checkpoint}")

    def _granted(self, claim: Claim, *, by_itself: bool) -> None:
        assert claim.owner is not None
        highest = self._epochs.get(claim.shard, 0)
        if self._doubtful < claim.owner_epoch <= highest and self._is_evident:
            raise Violation("2", f"shard {claim.shard}: epoch {claim.owner_epoch} is given, after {highest}")
        self._epochs[claim.shard] = max(highest, claim.owner_epoch)
        if claim.owner in self._gone and not by_itself:
            raise Violation("1", f"shard {claim.shard} is given to {claim.owner}, which is gone")

    def forced(self, before: Claim | None, after: Claim, offset: int) -> None:
        """2: a forced checkpoint starts a new epoch."""
        self._forced.setdefault(after.shard, []).append(offset)
        if before is not None and after.epoch <= before.epoch:
            raise Violation("2", f"shard {after.shard}: a forced checkpoint left the epoch at {after.epoch}")

    def distrust(self, distrust_ms: int) -> None:
        """The group has waited out what its store forgot."""
        if self._is_evident and distrust_ms == 0:
            self.is_lenient = False

    # --- Members. ------------------------------------------------------------------------------------

    def joined(self, incarnation: str) -> None:
        """Who is gone does not come back; but a join that was never answered may be repeated."""
        if incarnation in self._gone and incarnation in self._beaten and incarnation not in self._forgotten:
            raise Violation("1", f"{incarnation} is a member again, after it was gone")
        self._gone.discard(incarnation)
        self._forgotten.discard(incarnation)
        self._members.add(_process(incarnation))
        self.heard(incarnation)

    def barred(self, older: str, by: str) -> None:
        """Only a process that is new bars another. Who comes back has lost its name to whoever has it."""
        if _process(by) in self._members and _process(by) != _process(older):
            raise Violation("1", f"{by}, which was a member before, bars {older}")

    def beaten(self, before: Member, number: int) -> None:
        """A heartbeat that counts is newer than all that did."""
        if number <= before.beat:
            raise Violation("1", f"{before.incarnation}: heartbeat {number} counted, after {before.beat}")
        self._beaten.add(before.incarnation)
        self.heard(before.incarnation)

    def heard(self, what: str) -> None:
        """A counter that is watched has risen."""
        self._heard_at[what] = self._now_us()

    def went(self, member: Member, *, is_expired: bool) -> None:
        """Who goes stays away."""
        self._gone.add(member.incarnation)
        if is_expired:
            self.expired(member.incarnation, member.timeout_ms, member.interval_ms)

    def expired(self, what: str, timeout_ms: int, interval_ms: int) -> None:
        """What is taken for dead had time to be heard: an outage is no silence."""
        if self.is_lenient:
            return
        since, now = self._heard_at[what], self._now_us()
        lost, outages, counted_to = 0, 0, since
        for begin, end in sorted(self._store.outages):
            overlap = min(end, now) - max(begin, counted_to)
            if overlap > 0:
                lost, outages, counted_to = lost + overlap, outages + 1, min(end, now)
        wanted_us = (timeout_ms - outages * interval_ms) * 1000 * (1 - ALLOWANCE) - 1_000
        if now - since - lost < wanted_us:
            silent = (now - since - lost) / 1000
            raise Violation("6", f"{what} expired after {silent:.0f} ms in which it could beat")

    # --- A store that forgets. -----------------------------------------------------------------------

    def forgot(self) -> None:
        """Rows are as they were. What was handed out is not."""
        rows = self._store.group
        assert rows is not None
        self.is_lenient, self._is_evident = True, False
        self._known_doubtful = 0
        self._saw_before = dict(self._saw)
        self._gone -= rows.standing().keys()
        self._forgotten |= {gone for gone in self._gone if not rows.is_remembered(gone)}
        self._members = {_process(incarnation) for incarnation in rows.standing()}
        for shard in self._epochs:
            claim = rows.claim(shard)
            if claim is not None and claim.restart is not None:
                self._forced.setdefault(claim.shard, []).append(claim.restart)

    def saw(self, who: str, group: int, version: int) -> None:
        """A process has read this version of a group."""
        self._saw[who, group] = max(version, self._saw.get((who, group), 0))

    def decided(self, who: str, group: int, version: int) -> None:
        """A process has carried out what it decided on this version: it must not have seen a later one."""
        if version < (seen := self._saw_before.get((who, group), 0)):
            raise Violation("2", f"{who} decides on version {version}, and had seen {seen}: the store forgot")

    def is_doubtful(self, epoch: int) -> bool:
        """It may have been given twice: whoever has it is to let go of it, and need not know that yet."""
        return epoch <= self._doubtful

    def must_go(self, epoch: int) -> bool:
        """Whoever has it knows by now that it is doubtful, or will with its next look."""
        return epoch <= self._known_doubtful

    def evident(self, doubtful: int = 0) -> None:
        """That the store forgot was dealt with, or a heartbeat that shows it was counted all the same."""
        self._is_evident = True
        self._doubtful = max(self._doubtful, doubtful)
        self._known_doubtful = max(self._known_doubtful, doubtful)


def _process(incarnation: str) -> str:
    """The process of an incarnation, as seats name them: all its lives have the same."""
    return incarnation.partition("#")[0]
