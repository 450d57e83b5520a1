"""The hub's calls about what was set aside: how much is to be tried again; dead letters, looked at, tried
again, dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from shoal.core.aside import (
    Retrying,
    dead_stream,
    kept_for_ever,
    own_headers,
    retry_shards,
    retry_stream,
)
from shoal.core.dead import DeadLetter, chosen, open_letters, settlement
from shoal.core.errors import NotFound, StreamExists, UnknownStream
from shoal.core.group import Delivery, Group
from shoal.core.lineage import find_shard
from shoal.core.model import StreamName
from shoal.core.names import checked_name, stream_name
from shoal.core.reading import ReadLimits, check_offset
from shoal.core.ring import place
from shoal.core.routing import ShardMap
from shoal.ports import HubService
from shoal.wire.record import Record

_SETTLED_AT_ONCE = 1000


class Appending(Protocol):
    """What settling needs of the rest of a hub."""

    _service: HubService

    def append(self, stream: str, shard: int, records: Sequence[Any]) -> object: ...


class DeadCalls(Appending):
    """See Hub."""

    def retrying(self, stream: str, group: str) -> Retrying:
        """How many records of a `best_tried` group are to be tried again, once their delay is over or now.

        What comes due meanwhile may count as both, never as neither.
        """
        found = self._service.groups.find(stream_name(stream), checked_name("group", group))
        name = retry_stream(stream_name(stream), found.name)
        waiting = due = 0
        with suppress(NotFound):  # Nothing was ever set aside.
            waiting = self._service.count_delayed(name)
            due = self._service.groups.describe(name, found.name).lag
        return Retrying(stream=str(name), waiting=waiting, due=due)

    def dead_letters(self, stream: str, group: str) -> list[DeadLetter]:
        """Records of a group that ran out of attempts and that nobody has settled, oldest first."""
        found = self._service.groups.find(stream_name(stream), checked_name("group", group))
        return open_letters(self._dead_lines(dead_stream(stream_name(stream), found.name)))

    def replay_dead_letters(
        self, stream: str, group: str, numbers: Sequence[int] | None = None
    ) -> list[DeadLetter]:
        """Give letters (all, or those of these numbers) back to the group, as if never tried.

        They come through its retry stream, or, in a shared group, from where they were: other groups of the
        stream do not see them again.
        """
        letters = chosen(self.dead_letters(stream, group), numbers, f"group {group!r} of {stream!r}")
        name = stream_name(stream)
        found = self._service.groups.find(name, group)
        if found.settings.delivery is Delivery.SHARED:
            for letter in letters:
                self._reopen(name, found, letter)
            return letters
        where, main = retry_stream(name, group), self._service.describe_stream(name)
        with suppress(StreamExists):
            self._service.create_stream(where, kept_for_ever(main.settings), retry_shards(main))
        for letter in letters:
            headers = {**own_headers(letter.headers), **replace(letter.origin, attempts=0).headers()}
            again = Record(0, letter.origin.timestamp, letter.key, letter.value, headers)
            # Without a delay, to where a delayed one would come.
            self.append(str(where), self._shard_of(where, letter.key), [again])
            self._settle(dead_stream(name, group), [letter])
        return letters

    def _shard_of(self, name: StreamName, key: bytes | None) -> int:
        stream = self._service.describe_stream(name)
        return ShardMap.of(stream).shard_at(0 if key is None else place(key, stream.settings.hash))

    def _reopen(self, name: StreamName, group: Group, letter: DeadLetter) -> None:
        """A shared group needs no retry stream: its record is where it was, if retention has kept it."""
        shard, offset = (
            find_shard(self._service.describe_stream(name), letter.origin.shard),
            letter.origin.offset,
        )
        check_offset(name, shard, offset)
        self._service.shares.reopen(name, group.id, shard.id, [(offset, offset + 1)])
        self._settle(dead_stream(name, group.name), [letter])

    def drop_dead_letters(
        self, stream: str, group: str, numbers: Sequence[int] | None = None
    ) -> list[DeadLetter]:
        """Settle letters (all, or those of these numbers) without another attempt."""
        letters = chosen(self.dead_letters(stream, group), numbers, f"group {group!r} of {stream!r}")
        for at in range(0, len(letters), _SETTLED_AT_ONCE):
            self._settle(dead_stream(stream_name(stream), group), letters[at : at + _SETTLED_AT_ONCE])
        return letters

    def _settle(self, where: StreamName, letters: Sequence[DeadLetter]) -> None:
        headers = settlement(letter.number for letter in letters)
        # A typed stream takes no empty line, so it has the columns of a letter.
        self.append(str(where), 0, [Record(0, 0, letters[0].key, letters[0].value, headers)])

    def _dead_lines(self, name: StreamName) -> Iterator[Record]:
        try:
            shard = self._service.describe_stream(name).shards[0]
        except UnknownStream:
            return  # Nothing has died yet.
        offset = shard.first_offset
        while offset < shard.next_offset:
            batch = self._service.read(name, 0, offset, ReadLimits())
            yield from batch
            offset = batch.next_offset
