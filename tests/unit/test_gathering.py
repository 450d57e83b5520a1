"""What goes to the committer together, and which heartbeats wait for others."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from shoal.core.errors import StoreBusy
from shoal.core.limits import COMMIT_REQUESTS_MAX
from shoal.core.membership import Beat
from shoal.core.model import Appended
from shoal.native.calls import CALLS
from shoal.server.beaten import Beaten
from shoal.server.gathering import Gathered
from shoal.server.native.records import appended_text
from shoal.wire.values import from_json


@dataclass
class Committer:
    """Answers each request with its double, or with an error; notes what came together."""

    groups: list[list[int]] = field(default_factory=list)
    error: BaseException | None = None

    def submit(self, requests: Sequence[int], done: Callable[[Any], None], callers: int) -> None:
        self.groups.append(list(requests))
        done(self.error or [2 * request for request in requests])


def gathered(committer: Committer) -> Gathered[int, int]:
    return Gathered(committer.submit, lambda _: 1)


def test_what_is_asked_for_in_one_turn_goes_together_and_each_gets_its_own() -> None:
    committer = Committer()

    async def ask() -> Sequence[Sequence[int]]:
        room = gathered(committer)
        return await asyncio.gather(room.commit([1, 2]), room.commit([]), room.commit([3]), room.commit([4]))

    assert tuple(asyncio.run(ask())) == ([2, 4], [], [6], [8])
    assert committer.groups == [[1, 2, 3, 4]]


def test_an_error_is_told_to_all_and_the_next_ones_are_asked_anew() -> None:
    committer = Committer(error=StoreBusy("held", 1.0))

    async def ask() -> None:
        room = gathered(committer)
        for found in await asyncio.gather(room.commit([1]), room.commit([2]), return_exceptions=True):
            assert isinstance(found, StoreBusy)
        committer.error = None
        assert await room.commit([3]) == [6]

    asyncio.run(ask())
    assert committer.groups == [[1, 2], [3]]


def test_who_is_in_no_hurry_goes_with_one_who_is_or_by_itself_in_the_end() -> None:
    committer = Committer()

    async def ask() -> None:
        room = gathered(committer)
        patient = asyncio.create_task(room.commit([1], within_s=30))
        await asyncio.sleep(0.01)
        assert not committer.groups
        assert await room.commit([2]) == [4]
        assert await patient == [2]
        assert await asyncio.wait_for(room.commit([3], within_s=0.01), 5) == [6]

    asyncio.run(ask())
    assert committer.groups == [[1, 2], [3]]


def test_as_many_as_one_commit_takes_are_not_kept_waiting() -> None:
    committer = Committer()

    async def ask() -> None:
        room = gathered(committer)
        await asyncio.gather(*(room.commit([i], within_s=30) for i in range(COMMIT_REQUESTS_MAX)))

    asyncio.run(ask())
    assert [len(group) for group in committer.groups] == [COMMIT_REQUESTS_MAX]


def test_one_who_went_away_spoils_nothing_for_the_others() -> None:
    committer = Committer()

    async def ask() -> None:
        room = gathered(committer)
        gone, stays = asyncio.create_task(room.commit([1])), asyncio.create_task(room.commit([2]))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == [4]

    asyncio.run(ask())


def beat(who: str, interval_ms: int = 5_000) -> Beat:
    return Beat(incarnation=who, number=1, timeout_ms=20_000, interval_ms=interval_ms, held={}, seen=0)


def test_heartbeats_by_the_clock_may_wait_and_others_may_not() -> None:
    kept = Beaten()

    def patience_s(come: Beat, now_s: float) -> float:
        allowed_s = kept.patience_s(come, now_s)
        kept.note(come, now_s)
        return allowed_s

    assert patience_s(beat("a"), 100.0) == 0  # It has just joined.
    assert patience_s(beat("a"), 101.0) == 0  # It was told that something is new.
    assert patience_s(beat("a"), 106.0) == pytest.approx(0.25)
    assert patience_s(beat("b"), 106.0) == 0
    assert patience_s(beat("c", 50), 106.05) == 0
    assert patience_s(beat("c", 50), 106.1) == pytest.approx(0.0025)  # Of a short interval, a short time.


def test_what_an_append_is_answered_is_what_the_codec_reads() -> None:
    answers = [Appended(0, 5, 6), Appended(3, 0, 1 << 62)]
    assert from_json(CALLS["hub", "append"].answer, appended_text(answers), is_strict=True) == answers
