"""After an append: the store's answers as clients know them, and word to those who wait for records.

That a batch was there already (`Repeated`) is kept in them, for those who count; clients are not told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from shoal.core.errors import ShardClosed, ShoalError, UnknownStream
from shoal.core.model import Appended, ShardId, StreamInfo
from shoal.ports import AppendAnswer, AppendRequest, Repeated, ShardEnd, ShardGone, ShardShut, Store

Answered = TypeVar("Answered", Appended, Appended | ShoalError)


class Answering:
    """Of one hub. `delayed` is told when records are due that are to come later."""

    def __init__(self, store: Store, delayed: Callable[[Sequence[int]], None]) -> None:
        self._store, self._delayed = store, delayed

    def appended(
        self,
        stream: StreamInfo,
        batches: Sequence[tuple[ShardId, AppendRequest | ShoalError]],
        stored: Sequence[AppendAnswer],
    ) -> list[Appended | ShoalError]:
        """Of an append, in which each batch has an answer of its own; some of them never got to the store."""
        answers = iter(stored)
        answered = [
            (request, next(answers)) if isinstance(request, AppendRequest) else (None, request)
            for _, request in batches
        ]
        self._store.signal.ring(
            [
                (ShardEnd(request.stream_id, request.shard), answer.next_offset)
                for request, answer in answered
                if request is not None and isinstance(answer, Appended) and request.delayed is None
            ]
        )
        self._tell_delayed([request for request, _ in answered if request is not None])
        is_shut = any(isinstance(answer, ShardShut) for _, answer in answered)
        now = self._store.load_stream_by_id(stream.id) if is_shut else None
        return [
            _named_answer(stream, now, shard, answer)
            for (shard, _), (_, answer) in zip(batches, answered, strict=True)
        ]

    def committed(
        self, appends: Sequence[tuple[StreamInfo, AppendRequest]], stored: Sequence[AppendAnswer]
    ) -> list[Appended]:
        """Of a transaction: all of it is stored, or the first error is raised."""
        appended = []
        for (stream, request), answer in zip(appends, stored, strict=True):
            now = self._store.load_stream_by_id(stream.id) if isinstance(answer, ShardShut) else None
            named = _named_answer(stream, now, request.shard, answer)
            if isinstance(named, ShoalError):
                raise named
            appended.append(named)
        self._store.signal.ring(
            [
                (ShardEnd(request.stream_id, request.shard), answer.next_offset)
                for (_, request), answer in zip(appends, appended, strict=True)
                if request.delayed is None
            ]
        )
        self._tell_delayed([request for _, request in appends])
        return appended

    def _tell_delayed(self, requests: Sequence[AppendRequest]) -> None:
        due = [row.due_ms for request in requests for row in request.delayed or ()]
        if due:
            self._delayed(due)


def told(answer: Answered) -> Answered:
    """An answer as clients are told it: of a repeat, as the first time."""
    return Appended(*answer) if isinstance(answer, Repeated) else answer


def _named_answer(
    stream: StreamInfo, now: StreamInfo | None, shard: ShardId, answer: AppendAnswer
) -> Appended | ShoalError:
    """The store's answer as clients know it; `now` is the stream as of now, if it is still there."""
    match answer:
        case ShardGone():
            return UnknownStream(str(stream.full_name))
        case ShardShut(last_sequence=last_sequence):
            if now is None:
                return UnknownStream(str(stream.full_name))
            return ShardClosed(stream=now, shard=shard, last_sequence=last_sequence)
        case _:
            return answer
