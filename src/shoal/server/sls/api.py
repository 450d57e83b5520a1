"""The calls of LogHub over a hub: which one it is, what it does, what it answers.

The project is in the Host, the rest in path and query. Search is not LogHub, and is refused in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from shoal.core.access import group_resource
from shoal.core.errors import (
    AccessDenied,
    RateExceeded,
    ShoalError,
    UnknownGroup,
    UnknownProject,
)
from shoal.core.lineage import find_shard
from shoal.core.model import StreamInfo, StreamName, StreamSettings
from shoal.core.ring import checked_hash, checked_shard_count
from shoal.hub.local import LocalHub
from shoal.native.calls import PLAIN_BYTES_MAX
from shoal.native.needs import Need
from shoal.server.access import Access
from shoal.server.keys import Caller
from shoal.server.metrics import Counters
from shoal.server.options import ServerOptions
from shoal.server.requests import Answer, Incoming, Refused
from shoal.server.sls.asked import Asked, asked_by, json_of
from shoal.server.sls.errors import SlsError, too_fast
from shoal.server.sls.forms import (
    FOREVER,
    OK,
    changed_retention_ms,
    days_shown,
    json_answer,
    packing_of,
    page_of,
    project_named,
    project_shown,
    raw_size,
    retention_ms,
    shard_number,
    shard_shown,
)
from shoal.server.sls.groups import SlsGroups, listed
from shoal.server.sls.logs import UNSUPPORTED, SlsLogs, Unstored
from shoal.server.sls.needs import UPDATE, needs_of
from shoal.server.sls.packing import RAW_BYTES_MAX, Packing
from shoal.server.sls.records import STORED
from shoal.server.sls.routes import Call, call_of
from shoal.server.turns import Turns

Admitted = Callable[[Incoming, Caller | None], None]
"""Is told whose request it is, if that is known; or RateExceeded."""


class SlsApi:
    """The dialect of one hub."""

    PULL: Final = "sls.read_shard"
    """The name of requests that are answered with logs."""

    def __init__(
        self,
        hub: LocalHub,
        *,
        options: ServerOptions,
        turns: Turns,
        access: Access,
        counters: Counters,
        admitted: Admitted,
        check_answers: Callable[[Incoming], None],
    ) -> None:
        self._hub, self._options, self._turns = hub, options, turns
        self._access, self._admitted, self._check_answers = access, admitted, check_answers
        self._groups = SlsGroups(hub)
        self._logs = SlsLogs(hub, counters, self._groups)
        counters.watch(
            "sls_stale_checkpoints",
            "Checkpoints of Aliyun's clients that were passed over: the shard is another's.",
            lambda: self._groups.stale_checkpoints,
        )

    async def answer(self, request: Incoming) -> Answer:
        """What a request is answered."""
        try:
            asked = await asked_by(request, self._access, self._turns.run_own, self._options.sls_hosts)
        except (ShoalError, SlsError, Refused):
            self._admitted(request, None)
            raise
        call = call_of(asked)
        request.name = f"sls.{call.name}"
        try:
            self._admitted(request, asked.caller)
        except RateExceeded as error:
            raise too_fast(call.name, error) from error
        if request.name == self.PULL:
            self._check_answers(request)
        body = await request.body(None if call.name == "put" else PLAIN_BYTES_MAX)
        if (
            call.name == "put"
            and packing_of(asked.headers.get("x-log-compresstype", "")) is not Packing.PLAIN
        ):
            request.hold_more(min(raw_size(asked) or 0, RAW_BYTES_MAX))
        answered = await self._turns.run(self._answered, asked, call, body)
        if isinstance(answered, Unstored):
            request.hold_more(answered.bytes)
            answered = await self._turns.run(answered.store)
        return answered  # type: ignore[no-any-return]

    def _answered(self, asked: Asked, call: Call, body: bytes) -> Answer | Unstored:
        asked.check_body(body)
        places = call.all_places(body)
        try:
            return self._done(asked, call, places, body)
        except (AccessDenied, UnknownGroup):
            meant = self._meant(asked, call, places)
            if meant is None:
                raise
        return self._done(asked, call, meant, body)

    def _meant(self, asked: Asked, call: Call, places: Mapping[str, str]) -> Mapping[str, str] | None:
        """What Java's consumers mean, if it is a group that is spelled in another way. It is looked for among
        those with which the caller may do this: what else there is changes no answer."""
        if "group" not in call.places:
            return None

        def may(group: str) -> bool:
            needs = needs_of(call.name, project_named(asked), {**places, "group": group})
            return all(asked.caller.meets(need.actions, str(need.where), need.own) for need in needs)

        name = self._name(asked, places["logstore"])
        meant = self._groups.spelled(name, places["group"], asked.agent, may)
        return None if meant is None else {**places, "group": meant}

    def _done(self, asked: Asked, call: Call, places: Mapping[str, str], body: bytes) -> Answer | Unstored:
        self._access.check_needs(asked.caller, needs_of(call.name, project_named(asked), places))
        answer: Answer | Unstored = getattr(self, f"_{call.name}")(asked, body, **places)
        return answer

    # --- Projects. ---

    def _create_project(self, asked: Asked, body: bytes, project: str) -> Answer:  # noqa: ARG002
        if not self._hub.create_project(project):
            raise SlsError(400, "ProjectAlreadyExist", f"project {project} already exists")
        return OK

    def _get_project(self, asked: Asked, body: bytes) -> Answer:  # noqa: ARG002
        return json_answer(project_shown(self._project(asked)))

    def _update_project(self, asked: Asked, body: bytes) -> Answer:
        json_of(body, dict)
        self._project(asked)
        return OK

    def _delete_project(self, asked: Asked, body: bytes) -> Answer:  # noqa: ARG002
        self._hub.delete_project(self._project(asked))
        return OK

    def _list_projects(self, asked: Asked, body: bytes) -> Answer:  # noqa: ARG002
        wanted = asked.query.get("projectName", "")
        shown = self._access.shown(asked.caller, "hub", "list_projects", {}, self._hub.list_projects())
        found = [name for name in shown if wanted in name]
        page = page_of(asked, found)
        return json_answer(
            {"count": len(page), "total": len(found), "projects": [project_shown(p) for p in page]}
        )

    def _project(self, asked: Asked) -> str:
        project = project_named(asked)
        if project not in self._hub.list_projects():
            raise UnknownProject(project)
        return project

    # --- Logstores. ---

    def _create_logstore(self, asked: Asked, body: bytes, logstore: str) -> Answer:
        given = json_of(body, dict)
        name = StreamName(self._project(asked), logstore)
        settings = StreamSettings(schema=STORED, retention_ms=retention_ms(given.get("ttl", FOREVER)))
        self._hub.create_stream(name, settings, checked_shard_count(given.get("shardCount", 2)))
        return OK

    def _get_logstore(self, asked: Asked, body: bytes, logstore: str) -> Answer:  # noqa: ARG002
        stream = self._stream(asked, logstore)
        return json_answer(
            {
                "logstoreName": stream.name,
                "ttl": days_shown(stream.settings.retention_ms),
                "shardCount": len(stream.open_shards),
                "enable_tracking": False,
                "appendMeta": False,
                "autoSplit": False,
                "maxSplitShard": 64,
                "telemetryType": "",
                "mode": "standard",
                "createTime": stream.created_ms // 1000,
                "lastModifyTime": stream.created_ms // 1000,
            }
        )

    def _update_logstore(self, asked: Asked, body: bytes, logstore: str) -> Answer:
        given = json_of(body, dict)
        stream = self._stream(asked, logstore)
        if "ttl" in given:
            settings = stream.settings
            kept_ms = changed_retention_ms(given["ttl"], settings.retention_ms)
            if kept_ms != settings.retention_ms:
                self._hub.set_retention(stream.full_name, kept_ms, settings.retention_bytes)
        return OK

    def _delete_logstore(self, asked: Asked, body: bytes, logstore: str) -> Answer:  # noqa: ARG002
        self._hub.delete_stream(self._stream(asked, logstore).full_name)
        return OK

    def _list_logstores(self, asked: Asked, body: bytes) -> Answer:  # noqa: ARG002
        wanted = asked.query.get("logstoreName", "")
        streams = self._hub.list_streams(self._project(asked))
        shown = self._access.shown(asked.caller, "hub", "list_streams", {}, streams)
        found = [stream.name for stream in shown if wanted in stream.name]
        page = page_of(asked, found)
        return json_answer({"count": len(page), "total": len(found), "logstores": page})

    # --- Shards. ---

    def _list_shards(self, asked: Asked, body: bytes, logstore: str) -> Answer:  # noqa: ARG002
        return json_answer([shard_shown(shard) for shard in self._stream(asked, logstore).shards])

    def _split_shard(self, asked: Asked, body: bytes, logstore: str, shard: str) -> Answer:  # noqa: ARG002
        if asked.query.get("shardCount", "2") != "2":
            raise SlsError(400, "ParameterInvalid", "a shard is split in two; split the parts again")
        name, number = self._name(asked, logstore), shard_number(shard)
        key = asked.query.get("key", "")
        after = self._hub.split_shard(name, number, checked_hash(key, "key") if key else None)
        children = [one for one in after.shards if number in one.parents]
        return json_answer([shard_shown(one) for one in (after.shards[number], *children)])

    def _merge_shards(self, asked: Asked, body: bytes, logstore: str, shard: str) -> Answer:  # noqa: ARG002
        number = shard_number(shard)
        after = self._hub.merge_shards(self._name(asked, logstore), number, None)
        child = next(one for one in after.shards if number in one.parents)
        return json_answer([shard_shown(one) for one in (child, *(after.shards[p] for p in child.parents))])

    def _delete_shard(self, asked: Asked, body: bytes, logstore: str, shard: str) -> Answer:  # noqa: ARG002
        find_shard(self._stream(asked, logstore), shard_number(shard))
        raise SlsError(
            400, "ParameterInvalid", "shards are not deleted: retention empties those that are closed"
        )

    # --- Logs. ---

    def _put(self, asked: Asked, body: bytes, logstore: str, how: str) -> Answer | Unstored:
        return self._logs.put(asked, body, self._name(asked, logstore), how)

    def _read_shard(self, asked: Asked, body: bytes, logstore: str, shard: str) -> Answer:  # noqa: ARG002
        stream = self._stream(asked, logstore)
        return self._logs.read_shard(asked, stream, find_shard(stream, shard_number(shard)))

    # --- Groups. ---

    def _list_groups(self, asked: Asked, body: bytes, logstore: str) -> Answer:  # noqa: ARG002
        name = self._stream(asked, logstore).full_name
        groups = self._hub.groups.list(name)
        shown = self._access.shown(asked.caller, "groups", "list", {"name": name}, groups)
        return json_answer([listed(group) for group in shown])

    def _create_group(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:
        self._groups.create(self._stream(asked, logstore).full_name, group, json_of(body, dict))
        return OK

    def _update_group(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:
        name = self._name(asked, logstore)
        check = partial(self._access.check, asked.caller, Need((UPDATE,), group_resource(name, group)))
        self._groups.update(name, group, json_of(body, dict), check)
        return OK

    def _delete_group(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:  # noqa: ARG002
        self._groups.delete(self._name(asked, logstore), group)
        return OK

    def _beat(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:
        reported = json_of(body or b"[]", list)
        if not all(type(shard) is int for shard in reported):
            raise SlsError(400, "PostBodyInvalid", "a heartbeat is a list of shards")
        name = self._name(asked, logstore)
        return json_answer(
            self._groups.heartbeat(name, group, asked.argument("consumer"), frozenset(reported))
        )

    def _save(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:
        self._groups.save(
            self._name(asked, logstore),
            group,
            asked.query.get("consumer", ""),
            json_of(body, dict),
            is_forced=asked.query.get("forceSuccess", "").lower() == "true",
        )
        return OK

    def _get_checkpoints(self, asked: Asked, body: bytes, logstore: str, group: str) -> Answer:  # noqa: ARG002
        shard = asked.query.get("shard")
        number = None if shard in (None, "") else shard_number(str(shard))
        return json_answer(self._groups.checkpoints(self._name(asked, logstore), group, number))

    def _search(self, asked: Asked, body: bytes, **_: str) -> Answer:  # noqa: ARG002
        raise SlsError(400, "ParameterInvalid", UNSUPPORTED)

    def _name(self, asked: Asked, logstore: str) -> StreamName:
        return StreamName(project_named(asked), logstore)

    def _stream(self, asked: Asked, logstore: str) -> StreamInfo:
        return self._hub.describe_stream(self._name(asked, logstore))
