"""What each native call needs: which actions, on which resource. Dry; a test sees that no call is missing.

A need is met by any one of its actions, unless the call's own action is denied; a call has to meet all its
needs. A call that names a group or a
stream by number needs what its names need: who keeps the door looks them up, so that a number cannot be used
to reach what its name would not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.core.access import EVERYWHERE, group_resource, project_resource, stream_resource
from shoal.core.model import StreamName
from shoal.native.forms import TransactLabel
from shoal.ports import MemberView, ShardEnd, StreamRoutes
from shoal.share_port import ShareNews

_READ, _POST = "log:GetCursorOrData", "log:PostLogStoreLogs"
_BEAT, _SAVE = "log:ConsumerGroupHeartBeat", "log:ConsumerGroupUpdateCheckPoint"
_LOOK, _LIST = "log:GetConsumerGroupCheckPoint", "log:ListConsumerGroup"
_UPDATE_STREAM, _GET_STREAM = "log:UpdateLogStore", "log:GetLogStore"
_SEE_STREAM: Final = (_GET_STREAM, "log:ListShards", _READ, _POST)
"""Who may read or append may see the shards: without them one can do neither."""
SEE_GROUP: Final = (_LOOK, _LIST, _BEAT)
"""Who may do one of these knows the group."""


@dataclass(frozen=True, slots=True)
class GroupNumber:
    """A group by its number; and its stream, if the call names it."""

    number: int
    stream: StreamName | None = None


@dataclass(frozen=True, slots=True)
class StreamNumber:
    """A stream by its number."""

    number: int


Where = str | GroupNumber | StreamNumber


@dataclass(frozen=True, slots=True)
class Need:
    """Any of these actions, on this resource. If `own` is denied there, no other helps: a deny wins."""

    actions: tuple[str, ...]
    where: Where
    own: str = ""


Arguments = Mapping[str, Any]
Needs = Callable[[Arguments], Sequence[Need]]


def needs_of(part: str, name: str, arguments: Arguments) -> Sequence[Need]:
    """What a call with these parameters needs. None at all: its answer is cut to what may be seen."""
    return NEEDS[part, name](arguments)


def listed(part: str, name: str, arguments: Arguments, value: Any) -> list[Need] | None:
    """For each thing in the answer of a call that lists, what one needs to see it; None for other calls."""
    rule = _LISTED.get((part, name))
    return None if rule is None else [rule(arguments, one) for one in value]


def _stream(*alternatives: str, own: str = "") -> Needs:
    return lambda given: [Need(alternatives, stream_resource(given["name"]), own)]


def see_stream(own: str) -> Needs:
    """To see a stream and its shards, by an action of one's own."""
    return _stream(*_SEE_STREAM, own=own)


def _both(*actions: str) -> Needs:
    return lambda given: [Need((action,), stream_resource(given["name"])) for action in actions]


def _group(*alternatives: str, own: str = "") -> Needs:
    return lambda given: [Need(alternatives, group_resource(given["name"], given["group"]), own)]


def _numbered(*actions: str | tuple[str, ...]) -> Needs:
    def needs(given: Arguments) -> list[Need]:
        where = GroupNumber(given["group_id"], given.get("name"))
        return [Need((one,) if isinstance(one, str) else one, where) for one in actions]

    return needs


def _receive(given: Arguments) -> list[Need]:
    return [
        Need((_BEAT,), GroupNumber(given["group_id"], given["name"])),
        Need((_READ,), stream_resource(given["name"])),
    ]


def _transact(given: Arguments) -> list[Need]:
    label: TransactLabel = given["label"]
    found = {Need((_POST,), StreamNumber(label.life.stream_id)): None}
    for append in label.appends:
        found[Need((_POST,), stream_resource(append.name))] = None
    for saves in label.saves:
        found[Need((_SAVE,), GroupNumber(saves.group_id, saves.stream))] = None
    return list(found)


def _watch(given: Arguments) -> list[Need]:
    found: dict[Need, None] = {}
    for place, _ in given["places"]:
        if isinstance(place, ShardEnd | StreamRoutes):
            found[Need(_SEE_STREAM, StreamNumber(place.stream_id))] = None
        elif isinstance(place, MemberView | ShareNews):
            found[Need((_BEAT,), GroupNumber(place.group_id))] = None
    return list(found)  # Places of other kinds are refused by the call itself.


def _list_streams(given: Arguments) -> list[Need]:
    if given.get("project") is None:
        return []
    return [Need(("log:ListLogStores",), f"{project_resource(given['project'])}/logstore/*")]


def _retention(given: Arguments) -> list[Need]:
    name = given.get("name")
    return [Need((_UPDATE_STREAM,), EVERYWHERE if name is None else stream_resource(name))]


NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    ("hub", "list_projects"): lambda _: [],
    ("hub", "list_streams"): _list_streams,
    ("hub", "delete_project"): lambda given: [
        Need(("log:DeleteProject",), project_resource(given["project"]))
    ],
    ("hub", "create_stream"): _stream("log:CreateLogStore"),
    ("hub", "describe_stream"): see_stream(_GET_STREAM),
    ("hub", "refresh_stream"): see_stream(_GET_STREAM),
    ("hub", "stats"): see_stream(_GET_STREAM),
    ("hub", "set_retention"): _stream(_UPDATE_STREAM),
    ("hub", "set_scaling"): _stream(_UPDATE_STREAM),
    ("hub", "scaling"): see_stream(_GET_STREAM),
    ("hub", "set_strategy"): _stream(_UPDATE_STREAM),
    ("hub", "strategy"): see_stream(_GET_STREAM),
    ("hub", "enforce_retention"): _retention,
    ("hub", "delete_stream"): _stream("log:DeleteLogStore"),
    ("hub", "split_shard"): _stream("log:SplitShard"),
    ("hub", "merge_shards"): _stream("log:MergeShards"),
    ("hub", "reshard"): _both("log:SplitShard", "log:MergeShards"),
    ("hub", "append"): _stream(_POST),
    ("hub", "open_producer"): _stream(_POST),
    ("hub", "transact"): _transact,
    ("hub", "count_delayed"): see_stream(_GET_STREAM),
    ("hub", "read"): _stream(_READ),
    ("hub", "offset_at"): _stream(_READ),
    ("hub", "watch"): _watch,
    ("groups", "create"): _group("log:CreateConsumerGroup"),
    ("groups", "list"): lambda given: [Need((_LIST,), group_resource(given["name"], "*"))],
    ("groups", "describe"): _group(_LOOK, _LIST, own=_LOOK),
    ("groups", "history"): _group(_LOOK, _LIST, own=_LOOK),
    ("groups", "find"): _group(*SEE_GROUP),
    ("groups", "update"): _group("log:UpdateConsumerGroup"),
    ("groups", "delete"): _group("log:DeleteConsumerGroup"),
    ("groups", "rewind"): _group(_SAVE),
    ("groups", "join"): _group(_BEAT),
    ("groups", "beat"): _numbered(_BEAT),
    ("groups", "wait"): _numbered(_BEAT),
    ("groups", "block"): _numbered(_BEAT),
    ("groups", "retire"): _numbered(_BEAT),
    ("groups", "leased"): _numbered(SEE_GROUP),
    ("groups", "unbound"): _numbered(SEE_GROUP),
    # A shard that is let go of comes with its checkpoint.
    ("groups", "leave"): _numbered(_BEAT, _SAVE),
    ("groups", "release"): _numbered(_BEAT, _SAVE),
    ("groups", "save"): _numbered(_SAVE),
    ("shares", "receive"): _receive,
    ("shares", "settle"): _numbered(_SAVE),
    ("shares", "reject"): _numbered(_SAVE),
    ("shares", "reopen"): _numbered(_SAVE),
    ("positions", "join"): _numbered(_BEAT),
    ("positions", "save"): _numbered(_SAVE),
    ("positions", "drop"): _numbered(_SAVE),
    ("leases", "glance"): _numbered(SEE_GROUP),
    ("leases", "wait"): _numbered(SEE_GROUP),
    ("leases", "ring"): _numbered(_BEAT),
    # Its rows hold checkpoints.
    ("leases", "attempt"): _numbered(_BEAT, _SAVE),
    # What was done to them is told by those who may do it.
    ("groups", "record"): _numbered(_BEAT, _SAVE),
}
_LISTED: Final[Mapping[tuple[str, str], Callable[[Arguments, Any], Need]]] = {
    ("hub", "list_projects"): lambda _, name: Need(
        ("log:ListProject", "log:GetProject"), project_resource(name), "log:ListProject"
    ),
    ("hub", "list_streams"): lambda _, stream: Need(
        ("log:ListLogStores",), stream_resource(stream.full_name)
    ),
    ("groups", "list"): lambda given, group: Need((_LIST,), group_resource(given["name"], group.name)),
}
