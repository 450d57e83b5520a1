"""Every call of the native API: its path, its parameters and its answer, read off the ports' signatures.

A call is `POST /v1/{part}/{name}` with a JSON object of its parameters, and is answered with the JSON of
its value. Those that carry records have a frame instead (`wire.frame`). What a port says with a callable or
a live object has a signature of its own here. Both ends take everything from this table; so does the
OpenAPI document.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol, get_type_hints

from shoal.core.describing import GroupInfo
from shoal.core.group import GroupSettings
from shoal.core.lease import Change
from shoal.core.model import Appended, ProducerOpening, ShardId, StreamInfo, StreamName
from shoal.core.reading import ReadLimits
from shoal.core.share_acts import Receive
from shoal.native.forms import (
    Answers,
    AppendLabel,
    Attempted,
    Glimpse,
    LeasedPlace,
    Moved,
    ReadLabel,
    ReceivedLabel,
    Refreshed,
    TransactLabel,
)
from shoal.ports import Fence, GroupService, HubService, Place
from shoal.share_port import PositionService, ShareService
from shoal.wire.values import Asked, Decode, Encode, Field, RingHash, encoder, object_decoder, parsed, text_of

PREFIX: Final = "/v1"
HEALTH_PATH: Final = "/healthz"
"""What a server answers whatever becomes of its store: no call, and asked with GET."""
UNPACKED_BYTES_MAX: Final = 256_000_000
"""What the batches of one request unpack to, together: a few kilobytes may claim as much as they like, and to
unpack them costs the server as much as a large batch."""
PLAIN_BYTES_MAX: Final = 2_000_000
"""The body of a call that carries no batches. JSON takes many times its size when it is parsed, and nothing
else is done meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call."""

    part: str
    name: str
    about: str
    fields: tuple[Field, ...]
    """Its parameters."""
    answer: Any
    is_repeatable: bool
    """The same call, made again because its answer was lost, does no harm and is answered as the first
    time."""
    sends_batches: bool = False
    gets_batches: bool = False
    waits: bool = False
    """It may take as long as its parameter `wait_for_s`, `timeout_s` or `limits.wait_s` says."""

    body_bytes_max: int | None = PLAIN_BYTES_MAX
    """What its parameters take at most; None: whatever the server takes."""

    @property
    def path(self) -> str:
        return f"{PREFIX}/{self.part}/{self.name}"


class HubCalls(Protocol):
    """Calls of the part `hub` that are not as in HubService."""

    def append(self, label: AppendLabel) -> Answers:
        """Store several batches, sharing one commit; an answer for each."""

    def transact(self, label: TransactLabel) -> list[Appended]:
        """Append to shards of any streams, and save checkpoints: all of it, or none and an error."""

    def open_producer(
        self, name: StreamName, stream_id: int, producer: str, held: int | None = None
    ) -> ProducerOpening:
        """Begin a life of a named producer, and fence the one before."""

    def read(
        self,
        name: StreamName,
        shard: int,
        offset: int,
        limits: ReadLimits,
        *,
        fence: Fence | None = None,
        known_id: int | None = None,
        further: int = 0,
    ) -> ReadLabel:
        """Records of a shard from an offset on. With `limits.wait_s`, the server waits for some. Of the reads
        that would follow, up to `further` come along."""

    def refresh_stream(
        self, name: StreamName, stream_id: int, version: int, shards: Sequence[ShardId]
    ) -> Refreshed:
        """A stream that is known in a version: what is new, and these shards."""

    def split_shard(self, name: StreamName, shard: int, at: RingHash | None = None) -> StreamInfo:
        """Close a shard and open two children, cut at a place of the ring or in the middle."""

    def watch(self, places: Sequence[tuple[Place, int]], wait_for_s: float) -> list[Moved]:
        """Wait until one of the places is past its number, or is over; those that are."""


class GroupCalls(Protocol):
    """Calls of the part `groups` that are not as in GroupService."""

    def update(
        self, name: StreamName, group: str, expected: GroupSettings, settings: GroupSettings
    ) -> GroupInfo | None:
        """Change settings that are as expected; null: they are others by now."""

    def leased(self, group_id: int) -> LeasedPlace:
        """Where the rows of a leased group are."""


class ShareCalls(Protocol):
    """Calls of the part `shares` that are not as in ShareService."""

    def receive(
        self, name: StreamName, group_id: int, asked: Receive, wait_for_s: float, max_bytes: int
    ) -> ReceivedLabel:
        """Records of one shard, handed to this consumer alone; the server waits for some if there are
        none."""


class LeaseCalls(Protocol):
    """The table of a leased group."""

    def glance(self, group_id: int) -> Glimpse:
        """All rows."""

    def attempt(self, group_id: int, changes: Sequence[Change], together: bool = False) -> list[Attempted]:
        """Try each change by itself, or all or none."""

    def wait(self, group_id: int, news: int, wait_for_s: float) -> None:
        """Return when there is more news than this, or after the time."""

    def ring(self, group_id: int) -> None:
        """Wake all who wait."""


PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    "hub": (HubService, HubCalls),
    "groups": (GroupService, GroupCalls),
    "shares": (ShareService, ShareCalls),
    "positions": (PositionService,),
    "leases": (LeaseCalls,),
}
_LOCAL: Final = {("hub", "close"), ("hub", "follow")}
"""What concerns only the side that is asked."""
_BATCHES_UP: Final = {("hub", "append"), ("hub", "transact")}
_BATCHES_DOWN: Final = {("hub", "read"), ("shares", "receive")}
_LARGER: Final = {("leases", "attempt"): 4 * PLAIN_BYTES_MAX}
"""A row for each of a stream's shards."""
_WAITING: Final = {
    ("hub", "read"),
    ("hub", "watch"),
    ("groups", "wait"),
    ("shares", "receive"),
    ("leases", "wait"),
}
_REPEATABLE: Final[Mapping[str, set[str]]] = {
    "hub": {
        *("describe_stream", "refresh_stream", "list_streams", "list_projects", "set_retention", "read"),
        *("watch", "offset_at", "stats", "enforce_retention", "set_scaling", "scaling"),
        *("set_strategy", "strategy"),
        *("count_delayed", "transact"),
    },
    "groups": {
        *("list", "describe", "history", "find", "leased", "unbound", "join", "wait", "save", "block"),
        "retire",
    },
    "shares": set(),
    "positions": {"join", "save"},
    "leases": {"glance", "wait", "ring"},
}


def _calls() -> dict[tuple[str, str], Call]:
    found = {}
    for part, kinds in PARTS.items():
        for kind in kinds:
            for name, method in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_") and (part, name) not in _LOCAL:
                    found[part, name] = _call(part, name, method)
    return found


def _call(part: str, name: str, method: Callable[..., Any]) -> Call:
    hints = get_type_hints(method)
    parameters = [one for one in inspect.signature(method).parameters.values() if one.name != "self"]
    return Call(
        part=part,
        name=name,
        about=inspect.getdoc(method) or f"{name.replace('_', ' ').capitalize()}.",
        fields=tuple(
            (
                one.name,
                _ASKED.get(one.name, hints[one.name]) if part == "hub" else hints[one.name],
                one.default is one.empty,
            )
            for one in parameters
        ),
        answer=hints["return"],
        is_repeatable=name in _REPEATABLE[part],
        sends_batches=(part, name) in _BATCHES_UP,
        gets_batches=(part, name) in _BATCHES_DOWN,
        waits=(part, name) in _WAITING,
        body_bytes_max=None if (part, name) in _BATCHES_UP else _LARGER.get((part, name), PLAIN_BYTES_MAX),
    )


_ASKED: Final[Mapping[str, Any]] = {"shard": Asked, "offset": Asked, "left": Asked, "right": Asked | None}
CALLS: Final[Mapping[tuple[str, str], Call]] = _calls()


def arguments_to(call: Call, arguments: Mapping[str, object]) -> bytes:
    """The parameters of a call, as a body."""
    encoders = _encoders(call.part, call.name)
    plain = {name: encoders[name](value) for name, value in arguments.items()}
    return text_of(plain)


def arguments_from(call: Call, body: bytes | memoryview) -> dict[str, Any]:
    """The parameters in a body, or InvalidInput."""
    found: dict[str, Any] = _decoder(call.part, call.name)(parsed(body) if len(body) else {}, "body")
    return found


@cache
def _encoders(part: str, name: str) -> dict[str, Encode]:
    return {name: encoder(kind) for name, kind, _ in CALLS[part, name].fields}


@cache
def _decoder(part: str, name: str) -> Decode:
    return object_decoder(dict, CALLS[part, name].fields, True)
