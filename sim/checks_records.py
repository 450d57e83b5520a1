"""Checkers of single records in the hands of whole workers: invariants 3, 4 and 5, and what code may rely on.

For each shard of a group, between two forced checkpoints, what was declared done or set aside; for each
tenure, what user code was given and came back from. Nothing is asked of the rules: lanes follow from keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shoal.core.checkpoint import beyond
from shoal.core.group import Claim
from shoal.core.model import Shard
from sim.checks_delivery import DeliveryChecks, Story, Telling
from sim.history import Violation


@dataclass(frozen=True, slots=True)
class Hand:
    """Who works on a shard: one life of a worker, under one epoch, in so many lanes."""

    group: int
    process: str
    incarnation: str
    shard: int
    epoch: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.incarnation}, shard {self.shard} at {self.epoch}"


@dataclass(slots=True, kw_only=True)
class RecordTelling(Telling):
    """What became of records between two forced checkpoints."""

    settled: set[int] = field(default_factory=set)
    """Declared done, or set aside where that is durable."""
    declared: dict[int, set[int]] = field(default_factory=dict)
    """Under each epoch, by user code."""
    handed_over: set[int] = field(default_factory=set)
    """What user code had declared done when a holder let go by itself: it never comes again."""
    all_settled_to: int = 0

    def declare(self, epoch: int, offsets: Iterable[int]) -> None:
        self.settled.update(offsets)
        self.declared.setdefault(epoch, set()).update(offsets)

    def done_to(self, row: Shard) -> int:
        """All before this is settled, was not to be read, or is not kept any more."""
        place = max(self.all_settled_to, self.start, row.first_offset)
        while place in self.settled:
            place += 1
        self.all_settled_to = place
        return place


@dataclass(slots=True)
class Work:
    """What user code was given in one tenure."""

    finished: set[int] = field(default_factory=set)
    """`process` came back from it."""
    again: set[int] = field(default_factory=set)
    """User code was given it, and wants it once more."""
    done: set[int] = field(default_factory=set)
    """User code was given it, declared it done, and has not asked for it once more."""
    calls: dict[int, list[int]] = field(default_factory=dict)
    """For each lane in which a call runs, what it has been given."""
    shut: set[int] = field(default_factory=set)
    """Lanes whose shutdown of an ended shard returned."""
    is_over: bool = False
    """It was told that it is lost, or its release was sent."""
    is_given_up: bool = False


class RecordChecks(DeliveryChecks):
    """One world's facts about records, for the group of the moment."""

    def __init__(self) -> None:
        super().__init__()
        self._work: dict[Hand, Work] = {}

    # --- User code. ----------------------------------------------------------------------------------

    def begins(self, hand: Hand, lane: int, *, is_first: bool) -> None:
        """A call begins. One at a time in a lane; the first one when all ancestors are finished here."""
        work = self._of(hand)
        if lane in work.calls:
            raise Violation("3", f"{hand}: two calls at once in lane {lane}")
        work.calls[lane] = []
        if is_first:
            work.shut.discard(lane)
            self._check_alone(hand)

    def _check_alone(self, hand: Hand) -> None:
        if hand.group != self._group:
            return
        family = self._family(hand.shard)
        for other, work in self._work.items():
            # One that came later, where there is no order between shards, may have begun first.
            is_here = (other.process, other.group) == (hand.process, hand.group)
            is_before = is_here and other.epoch < hand.epoch and other.shard in family
            if is_before and work.calls and not work.is_given_up:
                raise Violation("3", f"{hand} begins, and user code of {other} still runs")

    def is_repeat(self, hand: Hand, offsets: Sequence[int]) -> bool:
        """User code had declared all of it done, and went back to it: the shard may be over meanwhile."""
        again = self._of(hand).again
        if hand.group != self._group or not again.issuperset(offsets):
            return False
        return self._at(self._story(hand.shard), hand.epoch).settled.issuperset(offsets)

    def reached(self, hand: Hand, lane: int, offsets: Sequence[int]) -> None:
        """Records are given to user code at this instant."""
        if hand.group != self._group:
            return
        assert self._stream is not None
        story, row = self._story(hand.shard), self._stream.shards[hand.shard]
        work, telling = self._of(hand), self._at(story, hand.epoch)
        is_reset = not self._in_reset.get(hand.shard) and hand.epoch >= self._anew.get(hand.shard, 0)
        if self._is_in_order and is_reset and not work.finished and not work.calls[lane]:
            self._check_ancestors(hand.shard, hand.epoch, row)
        for offset in offsets:
            self._reach(hand, work, telling, lane, offset)

    def _reach(self, hand: Hand, work: Work, telling: RecordTelling, lane: int, offset: int) -> None:
        assert self._stream is not None
        if self._stream.lane(hand.shard, offset, hand.lanes) != lane:
            raise Violation("3", f"{hand}: {offset} is given to lane {lane}")
        if offset in telling.handed_over and offset not in work.again:
            raise Violation("5", f"{hand}: {offset} comes again, and was done when it was handed over")
        if offset in work.done:
            raise Violation("5", f"{hand}: {offset} comes again, and was declared done by the same hand")
        before = self._stream.before(hand.shard, offset)
        first = max(telling.start, self._stream.shards[hand.shard].first_offset)
        if before is not None and before >= first:
            is_settled = before in telling.settled and before not in work.again
            if not is_settled and before not in work.finished and before not in work.calls[lane]:
                raise Violation("3", f"{hand}: {offset} is given before {before}, which has the same key")
        work.calls[lane].append(offset)

    def ends(self, hand: Hand, lane: int, *, is_raised: bool) -> None:
        """A call is over. What it was given is finished, unless it raised."""
        work = self._of(hand)
        given = work.calls.pop(lane)
        if not is_raised:
            work.finished.update(given)
            work.again.difference_update(given)

    def went_back(self, hand: Hand, lane: int, offset: int) -> None:
        """User code of a lane returned an offset: what it has had from there on comes before the rest."""
        if hand.group != self._group:
            return
        assert self._stream is not None
        work = self._of(hand)
        wanted = {
            one
            for one in work.finished | work.done
            if one >= offset and self._stream.lane(hand.shard, one, hand.lanes) == lane
        }
        work.finished -= wanted
        work.done -= wanted
        work.again |= wanted

    def declared_done(self, hand: Hand, lane: int, upto: int) -> None:
        """User code's save was taken: all of its lane's records below are done."""
        work = self._of(hand)
        if work.is_over:
            raise Violation("2", f"{hand}: a save up to {upto} was taken, after it was lost or let go of")
        if hand.group != self._group:
            return
        telling = self._at(self._story(hand.shard), hand.epoch)
        mine = self._mine(hand, lane, telling, upto)
        for offset in mine:
            is_given = offset in work.finished or offset in work.again or offset in work.calls.get(lane, ())
            if offset not in telling.settled and not is_given:
                raise Violation("4", f"{hand}: {offset} is declared done, and was never given to user code")
            if is_given and offset not in work.again:
                work.done.add(offset)
        telling.declare(hand.epoch, mine)
        work.again.difference_update(offset for offset in work.calls.get(lane, ()) if offset < upto)

    def shut_down(self, hand: Hand, lane: int) -> None:
        """`shutdown` of an ended shard returned; once all of them have, the end counts as declared."""
        work = self._of(hand)
        work.shut.add(lane)
        if len(work.shut) == hand.lanes and hand.group == self._group:
            self._at(self._story(hand.shard), hand.epoch).declare(hand.epoch, work.finished)

    def set_aside(self, hand: Hand, offset: int) -> None:
        """It is durable elsewhere."""
        if hand.group == self._group:
            telling = self._at(self._story(hand.shard), hand.epoch)
            telling.settled.add(offset)
            self._of(hand).again.discard(offset)

    def over(self, hand: Hand, *, is_given_up: bool = False) -> None:
        """Lost, let go of, or given up: nothing can be saved any more."""
        work = self._of(hand)
        work.is_over = True
        work.is_given_up |= is_given_up

    # --- Rows. ---------------------------------------------------------------------------------------

    def written(self, before: Claim, after: Claim, epoch: int) -> None:
        """4: a checkpoint covers only what is settled, with the marks of its lanes too."""
        if before.restart is not None or before.epoch != epoch:
            return  # It is not the owner's that takes effect, but one that was forced.
        assert self._stream is not None
        row = self._stream.shards[after.shard]
        telling = self._at(self._story(after.shard), epoch)
        checkpoint = after.checkpoint
        done = telling.done_to(row)
        text = f"shard {after.shard} at {epoch}: the checkpoint went from {before.checkpoint} to {checkpoint}"
        if checkpoint > done:
            raise Violation("4", f"{text}, and {done} is not done")
        for marks in beyond(checkpoint):
            for offset in range(max(checkpoint, row.first_offset), max(marks)):
                is_covered = offset < marks[self._stream.lane(after.shard, offset, len(marks))]
                if is_covered and offset not in telling.settled and offset >= telling.start:
                    raise Violation("4", f"{text} with {marks}, and {offset} is not done")

    def let_go(self, before: Claim, *, is_planned: bool) -> None:
        super().let_go(before, is_planned=is_planned)
        story = self._story(before.shard)
        if story.planned is not None:
            telling = self._at(story, story.planned)
            telling.handed_over |= telling.declared.get(story.planned, set())

    def missing(self) -> str | None:
        """4: what was acknowledged, is kept, and is neither done nor set aside."""
        if self._stream is None:
            return None
        for row in self._stream.shards:
            telling = self._story(row.id).tellings[-1]
            assert isinstance(telling, RecordTelling)
            done = telling.done_to(row)
            if done < row.next_offset:
                return f"shard {row.id}: {done} of {row.next_offset} is neither done nor set aside"
        return None

    # --- Inside. -------------------------------------------------------------------------------------

    def _telling(self, since: int, start: int, reset: int = 0, *, is_made: bool = False) -> RecordTelling:
        return RecordTelling(
            since=since, start=start, reached=start, done=start, reset=reset, is_made=is_made
        )

    def _done_to(self, telling: Telling, row: Shard) -> int:
        assert isinstance(telling, RecordTelling)
        return telling.done_to(row)

    def _at(self, story: Story, epoch: int) -> RecordTelling:
        telling = story.at(epoch)
        assert isinstance(telling, RecordTelling)
        return telling

    def _of(self, hand: Hand) -> Work:
        return self._work.setdefault(hand, Work())

    def _mine(self, hand: Hand, lane: int, telling: RecordTelling, upto: int) -> list[int]:
        assert self._stream is not None
        row = self._stream.shards[hand.shard]
        first = telling.done_to(row)
        return [
            offset
            for offset in range(first, min(upto, row.next_offset))
            if self._stream.lane(hand.shard, offset, hand.lanes) == lane
        ]

    def _family(self, shard: int) -> set[int]:
        """The shard with all that it descends from."""
        assert self._stream is not None
        family, waiting = {shard}, [shard]
        while waiting:
            parents = self._stream.shards[waiting.pop()].parents
            waiting += [parent for parent in parents if parent not in family]
            family.update(parents)
        return family
