"""Checkers of what user code gets: invariants 3, 4 and 5 of the design.

For each shard of a group the story of its deliveries: from where to where, done to where, and anew after
every forced checkpoint. A story is told in epochs, since what an old holder still hands out belongs to the
old story.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.core.group import Claim, GroupSettings, ShardState
from shoal.core.model import Shard
from sim.history import Violation
from sim.stream import Stream


@dataclass(slots=True, kw_only=True)
class Telling:
    """Deliveries of a shard between two forced checkpoints."""

    since: int
    """It counts for epochs above this one."""
    start: int
    reached: int
    """What is before this was handed out, or was gone by retention."""
    done: int
    """What is before this was declared done."""
    reset: int = 0
    """The reset that it began with, where one goes from row to row."""
    is_made: bool = False
    """That reset made the shard's row again, and the row is still there."""


@dataclass(slots=True, kw_only=True)
class Story:
    """Deliveries of one shard of one group."""

    tellings: list[Telling]
    handed: dict[tuple[int, str], int] = field(default_factory=dict)
    """(Epoch, holder) to the end of the last batch that was handed out under it."""
    declared: dict[int, int] = field(default_factory=dict)
    """Epoch to what its holder had declared done."""
    planned: int | None = None
    """The epoch that ended last, if its holder let go by itself and nothing was forced since."""

    def at(self, epoch: int) -> Telling:
        return next(telling for telling in reversed(self.tellings) if telling.since < epoch)


class DeliveryChecks:
    """One world's facts about deliveries, for the group of the moment."""

    def __init__(self) -> None:
        self._group = 0
        self._stories: list[Story] = []
        self._is_in_order = False
        self._stream: Stream | None = None
        self._resets = 0
        self._resetting: dict[int, set[int]] = {}
        """Resets that are under way, and the shards that they are about."""
        self._kept: set[int] = set()
        """Resets that are done: what they promised is held against them."""
        self._undone: dict[int, Telling] = {}
        """What such a reset has still to make again: its row was void, and was cleaned up."""
        self._in_reset: dict[int, set[int]] = {}
        """Shard to the resets, which go from row to row, that have not come to it, or never will: given up.
        Several may be under way at once, and each has to come."""
        self._anew: dict[int, int] = {}
        """Shards that such a reset has come to, and the epoch that it gave them: who took one of them before
        that, while it was under way, may hand on what it has fetched, and knows nothing of the ancestors."""
        self.is_lenient = False
        """The store forgot, and who holds what is not certain yet: epochs tell no story."""

    def group_made(self, group: int, stream: Stream, settings: GroupSettings, starts: list[int]) -> None:
        self._group, self._stream = group, stream
        self._is_in_order = settings.in_order
        self._in_reset.clear()
        self._undone.clear()
        self._anew.clear()
        self._stories = [Story(tellings=[self._telling(0, start)]) for start in starts]

    def group_emptied(self) -> None:
        """The group was deleted, and its rows with it, in a table that its consumers reach by themselves.

        One whose join was on its way may become a member after that, find some rows that were on their way as
        well, and hand out what they say until it hears. Of a group that is gone nothing is promised.
        """
        self._group = 0

    def updated(self, settings: GroupSettings) -> None:
        """Once a group was not in order, shards that have overtaken their parents stay where they are."""
        self._is_in_order = self._is_in_order and settings.in_order

    def handed(self, group: int, incarnation: str, shard: int, epoch: int, batch: tuple[int, int]) -> None:
        """3: first deliveries without a gap and after those of all ancestors. 5: nothing done comes again."""
        if group != self._group:
            return
        assert self._stream is not None
        first, end = batch
        story, row = self._story(shard), self._stream.shards[shard]
        if self.is_lenient:
            # Of the latest that it continues: an owner may go on for a while after a reset, which may be
            # forgotten in its turn.
            for telling in reversed(story.tellings):
                if first <= max(telling.reached, row.first_offset):
                    telling.reached = max(telling.reached, end)
                    break
            return
        before = story.handed.get((epoch, incarnation))
        if before is not None and first < before:
            raise Violation("3", f"shard {shard} at {epoch}: {first} is handed out after {before}")
        if before is None and story.planned is not None:
            done = story.declared.get(story.planned, 0)
            if first < done:
                text = f"shard {shard} at {epoch}: {first} comes again, done to {done}"
                raise Violation("5", f"{text} at {story.planned}, which was released")
            story.planned = None
        telling = story.at(epoch)
        if first > max(telling.reached, row.first_offset):
            raise Violation("3", f"shard {shard} at {epoch}: {first} comes before {telling.reached}")
        is_reset = not self._in_reset.get(shard) and epoch >= self._anew.get(shard, 0)
        if self._is_in_order and end > telling.reached and is_reset:
            self._check_ancestors(shard, epoch, row)
        story.handed[epoch, incarnation] = end
        telling.reached = max(telling.reached, end)

    def declared(self, group: int, shard: int, epoch: int, offset: int) -> None:
        if group != self._group:
            return
        story = self._story(shard)
        story.declared[epoch] = offset
        telling = story.at(epoch)
        telling.done = max(telling.done, offset)

    def written(self, before: Claim, after: Claim, epoch: int) -> None:
        """An owner saved a checkpoint, showing this epoch. What may be in it is `checks_records`' to say."""

    def let_go(self, before: Claim, *, is_planned: bool) -> None:
        """A holder is gone from a shard: by itself, or because it was silent, forced or reset."""
        story = self._story(before.shard)
        is_current = before.restart is None and before.owner_epoch == before.epoch
        story.planned = before.owner_epoch if is_planned and is_current else None

    def reset_begins(self) -> int:
        """One that goes from row to row."""
        self._resets += 1
        self._resetting[self._resets] = set()
        return self._resets

    def reset_concerns(self, reset: int, shards: Iterable[int]) -> None:
        """These are to begin anew, one after the other: until then they do not wait for their ancestors. They
        may become more, by splits and merges, while it goes on."""
        for shard in set(shards) - self._resetting[reset]:
            self._resetting[reset].add(shard)
            self._in_reset.setdefault(shard, set()).add(reset)

    def reset_begins_again(self, reset: int) -> None:
        """After it has made a row it goes to all of them once more: until then nothing has been promised."""
        for shard in self._resetting.get(reset, ()):
            self._in_reset.setdefault(shard, set()).add(reset)

    def reset_ends(self, reset: int, *, is_done: bool) -> None:
        """It is done, or was given up, and whoever asked for it was told so."""
        self._resetting.pop(reset, None)
        if is_done:  # What it did not come to has no row yet: its first one waits as any other does.
            self._kept.add(reset)
            for waiting in self._in_reset.values():
                waiting.discard(reset)
        for shard, telling in list(self._undone.items()):
            if telling.reset == reset:
                del self._undone[shard]
                if is_done:  # It says so, and was to make it again: that is held against it.
                    self._story(shard).tellings.append(telling)

    def begun_anew(self, shard: int, epoch: int, reset: int) -> None:
        """This reset has come to a shard, and makes good what those left that had been given up before."""
        waiting = self._in_reset.get(shard, set())
        self._in_reset[shard] = {one for one in waiting if one != reset and one in self._resetting}
        self._anew[shard] = epoch

    def forced(self, shard: int, since: int, offset: int, reset: int, *, is_made: bool) -> None:
        story = self._story(shard)
        story.planned = None
        self._undone.pop(shard, None)
        story.tellings.append(self._telling(since, offset, reset, is_made=is_made))

    def cleaned(self, claim: Claim) -> None:
        """A void row that a reset made again, before that was done, is as if it was never made.

        Who cleans it up has looked while rows below it were missing, or while another reset meant to make it
        anew. That may happen to a shard several times, as long as the reset goes on and after it was given
        up, even if it had come to the row; one that is not given up makes it again. It is void then, and not
        over: one that is over was cleaned up because it is done.
        """
        tellings = self._story(claim.shard).tellings
        last = len(tellings) - 1
        while tellings[last].reset and tellings[last].reset not in self._kept and not tellings[last].is_made:
            last -= 1
        is_taken_back = tellings[last].is_made and tellings[last].reset not in self._kept
        if is_taken_back and claim.state is not ShardState.OVER:
            for telling in tellings[last:]:
                if telling.reset in self._resetting:
                    self._undone[claim.shard] = telling
            del tellings[last:]
        for telling in tellings[last:]:
            telling.is_made = False

    def forgot(self) -> None:
        """The store may have forgotten forced checkpoints and hand-overs: only the furthest is known."""
        self._undone.clear()
        for story in self._stories:
            reached = max(telling.reached for telling in story.tellings)
            done = max(telling.done for telling in story.tellings)
            story.tellings = [Telling(since=0, start=0, reached=reached, done=done)]
            story.planned = None
            story.handed.clear()
            story.declared.clear()

    def missing(self) -> str | None:
        """4: what was acknowledged, is kept, and has not reached user code."""
        if self._stream is None:
            return None
        for row in self._stream.shards:
            reached = self._story(row.id).tellings[-1].reached
            if reached < row.next_offset and row.first_offset < row.next_offset:
                return f"shard {row.id}: {reached} to {row.next_offset} has not been handed out"
        return None

    def _story(self, shard: int) -> Story:
        while shard >= len(self._stories):  # Born after the group was made: read from its first offset.
            self._stories.append(Story(tellings=[self._telling(0, 0)]))
        return self._stories[shard]

    def _telling(self, since: int, start: int, reset: int = 0, *, is_made: bool = False) -> Telling:
        return Telling(since=since, start=start, reached=start, done=start, reset=reset, is_made=is_made)

    def _check_ancestors(self, shard: int, epoch: int, row: Shard) -> None:
        assert self._stream is not None
        waiting = list(row.parents)
        seen = set(waiting)
        while waiting:
            ancestor = waiting.pop()
            parent = self._stream.shards[ancestor]
            waiting.extend(older for older in parent.parents if older not in seen)
            seen.update(parent.parents)
            telling = self._story(ancestor).at(epoch)
            done = self._done_to(telling, parent)
            if parent.is_open or done < parent.next_offset:
                text = f"shard {shard} at {epoch} is handed out, its ancestor {ancestor} is done to"
                raise Violation("3", f"{text} {done} of {parent.next_offset}")

    def _done_to(self, telling: Telling, row: Shard) -> int:
        """All before this was declared done, or was not to be read."""
        del row
        return max(telling.done, telling.start)
