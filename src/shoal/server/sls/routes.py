"""Which call a request is, and what it is about. Decides nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from shoal.core.names import checked_name
from shoal.server.sls.asked import Asked, json_of
from shoal.server.sls.errors import SlsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of LogHub, and what of its path it is about. What it needs is in `needs`."""

    name: str
    places: Mapping[str, str]

    def all_places(self, body: bytes) -> dict[str, str]:
        """What it is about, of its path and, if it creates something, of its body; names that are names."""
        places = dict(self.places)
        if self.name in _CREATES:
            place, field = _CREATES[self.name]
            places[place] = checked_name(field, json_of(body, dict).get(field))
        for place in places.keys() & _NAMES:
            checked_name(place, places[place])
        return places


def is_sls(scope: Scope) -> bool:
    """Whether a request is of this dialect."""
    path: str = scope["path"]
    if path in ("/", "/logstores") or path.startswith("/logstores/"):
        return True
    return _is_marked(scope["headers"])


def looks_sls(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """The same of what is no whole request."""
    path = _BEFORE_PATH.sub(b"", target, count=1)
    return path.startswith(b"/logstores") or _is_marked(headers)


def _is_marked(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether it has a header of Aliyun's, or is signed as they do."""
    return any(
        name.startswith(b"x-log-") or (name == b"authorization" and value.startswith((b"LOG ", b"SLS4-")))
        for name, value in headers
    )


def call_of(asked: Asked) -> Call:
    """The call, or an error that says there is none."""
    shape, places = _shape(asked.path.split("/")[1:])
    kind = ""
    if (shape, asked.method) == ("group", "POST"):
        kind = asked.query.get("type", "")
    elif (shape, asked.method) == ("project", "GET"):
        kind = "all" if asked.project is None or "size" in asked.query else ""
    elif (shape, asked.method) == ("shard", "POST"):
        kind = asked.query.get("action", "")
    elif shape == "logstore" and "type" in asked.query:
        shape = "search"
    found = SEARCH if shape == "search" else CALLS.get((shape, asked.method, kind))
    if found is None:
        raise SlsError(404, "NotSupported", f"{asked.method} {asked.path[:200]}: there is no such call here")
    return Call(name=found, places=places)


def _shape(parts: Sequence[str]) -> tuple[str, dict[str, str]]:  # noqa: PLR0911 - one for each form of a path
    match parts:
        case [""]:
            return "project", {}
        case ["logstores"]:
            return "logstores", {}
        case ["logstores", logstore]:
            return "logstore", {"logstore": logstore}
        case ["logstores", logstore, "shards"]:
            return "shards", {"logstore": logstore}
        case ["logstores", logstore, "shards", ("lb" | "route") as how]:
            return "append", {"logstore": logstore, "how": how}
        case ["logstores", logstore, "shards", shard]:
            return "shard", {"logstore": logstore, "shard": shard}
        case ["logstores", logstore, "consumergroups"]:
            return "groups", {"logstore": logstore}
        case ["logstores", logstore, "consumergroups", group]:
            return "group", {"logstore": logstore, "group": group}
        case ["logstores", logstore, *_]:
            return "search", {"logstore": logstore}
        case _:
            return "", {}


SEARCH: Final = "search"
CALLS: Final = {
    ("project", "POST", ""): "create_project",
    ("project", "GET", ""): "get_project",
    ("project", "GET", "all"): "list_projects",
    ("project", "PUT", ""): "update_project",
    ("project", "DELETE", ""): "delete_project",
    ("logstores", "POST", ""): "create_logstore",
    ("logstores", "GET", ""): "list_logstores",
    ("logstore", "GET", ""): "get_logstore",
    ("logstore", "PUT", ""): "update_logstore",
    ("logstore", "DELETE", ""): "delete_logstore",
    ("shards", "GET", ""): "list_shards",
    ("append", "POST", ""): "put",
    ("shard", "GET", ""): "read_shard",
    ("shard", "POST", "split"): "split_shard",
    ("shard", "POST", "merge"): "merge_shards",
    ("shard", "DELETE", ""): "delete_shard",
    ("groups", "GET", ""): "list_groups",
    ("groups", "POST", ""): "create_group",
    ("group", "PUT", ""): "update_group",
    ("group", "DELETE", ""): "delete_group",
    ("group", "GET", ""): "get_checkpoints",
    ("group", "POST", "heartbeat"): "beat",
    ("group", "POST", "checkpoint"): "save",
}
_CREATES: Final = {
    "create_project": ("project", "projectName"),
    "create_logstore": ("logstore", "logstoreName"),
    "create_group": ("group", "consumerGroup"),
}
_BEFORE_PATH: Final = re.compile(rb"^[a-z]+://[^/]*")
_NAMES: Final = {"project", "logstore", "group"}
