"""What each call needs: what the native call needs that it is made of. A test sees that no call is missing.

A call is checked on the very names that it then acts on, wherever they stand: in the host, the path, or the
body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from shoal.core.access import group_resource, project_resource
from shoal.core.model import StreamName
from shoal.native.needs import Need, see_stream
from shoal.native.needs import needs_of as native_needs

UPDATE: Final = "log:UpdateConsumerGroup"
SAVE: Final = "log:ConsumerGroupUpdateCheckPoint"

Arguments = Mapping[str, Any]
Needs = Callable[[Arguments], Sequence[Need]]


def needs_of(call: str, project: str, places: Mapping[str, str]) -> Sequence[Need]:
    """What a call about these places in a project needs."""
    given: dict[str, Any] = {"project": project, **places}
    if "logstore" in places:
        given["name"] = StreamName(project, places["logstore"])
    return NEEDS[call](given)


def _native(part: str, call: str) -> Needs:
    return lambda given: native_needs(part, call, given)


def _project(own: str, *others: str) -> Needs:
    return lambda given: [Need((own, *others), project_resource(given["project"]), own)]


def _update_group(given: Arguments) -> list[Need]:
    # Workers of Aliyun's library update a group that is there to what it is; the document's policy lets them
    # create groups alone. Whether something is to change is seen later: see `groups`.
    where = group_resource(given["name"], given["group"])
    return [Need((UPDATE, "log:CreateConsumerGroup"), where, UPDATE)]


NEEDS: Final[Mapping[str, Needs]] = {
    "create_project": _project("log:CreateProject"),
    "get_project": _project("log:GetProject", "log:ListProject"),
    "list_projects": _native("hub", "list_projects"),
    "update_project": _project("log:UpdateProject"),
    "delete_project": _native("hub", "delete_project"),
    "create_logstore": _native("hub", "create_stream"),
    "list_logstores": _native("hub", "list_streams"),
    "get_logstore": _native("hub", "describe_stream"),
    "update_logstore": _native("hub", "set_retention"),
    "delete_logstore": _native("hub", "delete_stream"),
    "list_shards": see_stream("log:ListShards"),
    "put": _native("hub", "append"),
    "read_shard": _native("hub", "read"),
    "split_shard": _native("hub", "split_shard"),
    "merge_shards": _native("hub", "merge_shards"),
    "delete_shard": _native("hub", "delete_stream"),
    "list_groups": _native("groups", "list"),
    "create_group": _native("groups", "create"),
    "update_group": _update_group,
    "delete_group": _native("groups", "delete"),
    "get_checkpoints": _native("groups", "describe"),
    "beat": _native("groups", "join"),
    "save": _native("groups", "rewind"),
    "search": _native("hub", "read"),
}
