"""The sockets of groups whose shards have no owner: shared ones, and broadcast ones with named positions.

What a store keeps for them, and what a hub offers their consumers. Rules come from `core.share` and
`core.listening`; a store decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.core.errors import ShoalError
from shoal.core.group import Group, Note
from shoal.core.listening import Listener
from shoal.core.model import ShardId, StreamInfo, StreamName
from shoal.core.share import ShareRules, ShareState
from shoal.core.share_acts import Act, Answer, Given, Left, Receive, Settle, Settled
from shoal.core.spans import Range
from shoal.wire.batch import Batch


class ShareNews(NamedTuple):
    """Where a consumer of a shared group waits: what was given back, or may be received at last."""

    group_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTouch:
    """One act on one shard of a shared group."""

    group_id: int
    stream_id: int
    shard: ShardId
    act: Act
    rules: ShareRules
    left: Left
    """What the hub knows to be left of the waits that it has seen."""
    seen: int = 0
    """The highest version of the row that the hub has seen."""


ShareAnswer = tuple[ShareState, Answer] | ShoalError
"""The state after the act, and its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareView:
    """A shared group as of one moment."""

    group: Group
    stream: StreamInfo
    states: Mapping[ShardId, ShareState]
    """By shard, of those that have a row."""
    since_ms: Mapping[ShardId, int]
    starts: Mapping[ShardId, int]
    """Where the group began, in the shards that were there."""


class ShareStore(Protocol):
    """Keeps shared groups: one row for each shard."""

    def load_shares(self, group_id: int) -> ShareView | None:
        """The group, its stream and its rows, as of one moment; None: there is no such group."""

    def add_shares(self, group_id: int, starts: Mapping[ShardId, int], now_ms: int) -> None:
        """Make the rows that are not there yet, each from its offset on."""

    def share(self, touches: Sequence[ShareTouch], now_ms: int) -> list[ShareAnswer]:
        """All acts in one durable commit; an answer for each, in order."""


class PositionStore(Protocol):
    """Keeps the positions of a broadcast group's consumers: one row for each of them."""

    def broadcast_groups(self) -> list[Group]:
        """All broadcast groups, without members and claims."""

    def load_listeners(self, group_id: int) -> list[Listener]:
        """Those that have a position, by name."""

    def join_listener(self, group_id: int, listener: Listener, *, limit: int, now_ms: int) -> Listener | None:
        """Give the position of this name to a new incarnation, or make it as it is given; None: no group."""

    def save_listener(
        self, group_id: int, consumer: str, incarnation: str, offsets: Mapping[ShardId, int], now_ms: int
    ) -> Listener | None:
        """Save a position if the incarnation still has the name; the row as found, None if there is none."""

    def add_idle(self, group_id: int, idle: Sequence[tuple[Listener, int]]) -> None:
        """Each has been unused for so long, if it has not been used since it was looked at."""

    def drop_listeners(
        self, group_id: int, gone: Sequence[Listener], notes: Sequence[Note], now_ms: int
    ) -> int:
        """Remove those that have not been used since they were looked at, with their notes; how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Records in a consumer's hands."""

    batch: Batch | None
    """None: there was nothing."""
    hold: int = 0
    given: Sequence[Given] = ()
    waited_s: float = 0.0
    """How long the hub had waited before it handed them out: their time began after that."""
    waiting_for: str = ""
    """Why there was nothing although records are to come; empty if none are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settling:
    """What a holder says of records of one shard."""

    shard: ShardId
    act: Settle


class ShareService(Protocol):
    """Shared groups as consumers see them."""

    def receive(
        self, name: StreamName, group_id: int, asked: Receive, *, wait_s: float, max_bytes: int
    ) -> Received:
        """Records of one shard, handed to this consumer alone; waits for some if there are none."""

    def settle(self, name: StreamName, group_id: int, settlings: Sequence[Settling]) -> list[Settled]:
        """Acknowledge, release or extend, in one commit; an answer for each."""

    def reject(
        self, name: StreamName, group_id: int, settlings: Sequence[Settling], reason: str
    ) -> list[Settled]:
        """Put records into the dead stream, durably, and settle them."""

    def reopen(self, name: StreamName, group_id: int, shard: ShardId, ranges: Sequence[Range]) -> int:
        """Dead records come again, as if never handed out; how many."""


class PositionService(Protocol):
    """Broadcast groups as consumers see them."""

    def join(self, name: StreamName, group_id: int, consumer: str, incarnation: str) -> Mapping[ShardId, int]:
        """Take the position of this name, or begin one; where it stands."""

    def save(
        self,
        name: StreamName,
        group_id: int,
        consumer: str,
        incarnation: str,
        offsets: Mapping[ShardId, int],
    ) -> None:
        """Where the consumer goes on. NameTaken: a newer incarnation has the name."""

    def drop(self, name: StreamName, group_id: int, consumer: str) -> None:
        """Forget a position."""
