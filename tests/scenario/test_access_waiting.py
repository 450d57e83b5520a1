"""A server with users: who waits there, and may not any more when something comes."""

import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.errors import NotSignedIn
from shoal.core.lease import InstanceRow
from shoal.core.reading import ReadLimits
from shoal.core.share_acts import Receive
from shoal.native.calls import CALLS, arguments_to
from shoal.ports import ShardEnd
from shoal.remote.signing import Credentials
from shoal.server.keys import CACHE_S
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.store.sql.store import SQLStore
from shoal.testing.members import eventually
from shoal.testing.serving import served
from shoal.testing.users import ALL, Door, allowed
from tests.scenario.asking import Sent, asked, figure
from tests.scenario.beating import ORDERS, Member

WAIT_S = 15.0
Where = tuple[str, str]
Calls = dict[Where, dict[str, Any]]
READ: dict[str, Any] = {"name": ORDERS, "shard": 0, "offset": 0, "limits": ReadLimits(wait_s=WAIT_S)}


def called(door: Door, key: Credentials, where: Where, **arguments: Any) -> tuple[int, Any]:
    """The answer to one native call."""
    call = CALLS[where]
    nonce = secrets.token_urlsafe(18)
    sent = Sent(key, path=call.path, body=arguments_to(call, arguments), nonce=nonce).for_server(door.url)
    return asked(door.url, sent.path, sent.body, Authorization=sent.header())


@contextmanager
def waiting(door: Door, key: Credentials, calls: Calls) -> Iterator[list[Future[tuple[int, Any]]]]:
    """These calls, all of which wait."""
    with ThreadPoolExecutor(len(calls)) as threads:
        answers = [
            threads.submit(called, door, key, where, **arguments) for where, arguments in calls.items()
        ]
        eventually(lambda: figure(door.url, "waiting") == len(calls), "all of them wait")
        yield answers


def is_refused(hub: Hub) -> bool:
    try:
        hub.list_streams()
    except NotSignedIn:
        return True
    return False


def test_whose_key_is_taken_away_hears_of_nothing_that_it_waits_for(door: Door, admin: Hub) -> None:
    admin_key, key = door.key_of("root", ALL), door.key_of("reader", ALL)
    stream = admin.create_stream("orders", shards=2)
    admin.create_group("orders", "billing")
    admin.create_group("orders", "queue", delivery="shared")
    admin.create_group("orders", "leased", coordination="leased")
    member = Member(admin, "anna")
    queue, group = (admin.service.groups.find(ORDERS, name) for name in ("queue", "leased"))
    leased = admin.service.groups.leased(group)
    leased.table.create(
        InstanceRow(
            group=leased.key, name="anna", incarnation="anna-1", counter=1, timeout_ms=1000, interval_ms=250
        )
    )
    news = called(door, admin_key, ("leases", "glance"), group_id=group.id)[1]["news"]
    calls: Calls = {
        ("hub", "read"): READ,
        ("hub", "watch"): {
            "places": [(ShardEnd(stream.id, stream.shards[0].id), 0)],
            "wait_for_s": WAIT_S,
        },
        ("groups", "wait"): {
            "group_id": member.joined.group_id,
            "incarnation": member.incarnation,
            "seen": member.beat(),
            "timeout_s": WAIT_S,
        },
        ("shares", "receive"): {
            "name": ORDERS,
            "group_id": queue.id,
            "asked": Receive(consumer="anna", max_records=1, visibility_ms=1_000),
            "wait_for_s": WAIT_S,
            "max_bytes": 1_000,
        },
        ("leases", "wait"): {"group_id": group.id, "news": news, "wait_for_s": WAIT_S},
    }
    assert set(calls) == {where for where, call in CALLS.items() if call.waits}
    with shoal.connect(door.url_of(key)) as theirs, waiting(door, key, calls) as answers:
        door.store.access.enable_key(key.key, False)
        eventually(lambda: is_refused(theirs), "the key is refused", CACHE_S + 5)
        assert not any(answer.done() for answer in answers)
        admin.append("orders", 0, [b"not for the reader"])
        Member(admin, "bert").beat()
        leased.table.ring(leased.key)
        for call, answer in zip(calls, answers, strict=True):
            status, told = answer.result(WAIT_S)
            assert (status, told["error"]) == (401, "NotSignedIn"), call
    assert [record.value for record in admin.read("orders", 0, 0)] == [b"not for the reader"]


def test_whose_policy_is_taken_away_is_given_nothing_that_it_waits_for(door: Door, admin: Hub) -> None:
    admin.create_stream("orders", shards=1)
    see = "acs:log:*:*:project/default/logstore/orders"
    key = door.key_of("reader", allowed(("log:GetLogStore", see)), allowed(("log:GetCursorOrData", see)))
    with waiting(door, key, {("hub", "read"): READ}) as (answer,):
        door.store.access.detach("reader", "reader-1")
        eventually(
            lambda: called(door, key, ("hub", "read"), **READ | {"limits": ReadLimits()})[0] == 403,
            "it may read no more",
            CACHE_S + 5,
        )
        admin.append("orders", 0, [b"not for the reader"])
        status, told = answer.result(WAIT_S)
        assert (status, told["error"]) == (403, "AccessDenied")


def test_who_has_kept_its_key_is_given_what_it_waits_for(door: Door, admin: Hub) -> None:
    admin.create_stream("orders", shards=1)
    key = door.key_of("reader", ALL)
    with waiting(door, key, {("hub", "read"): READ}) as (answer,):
        admin.append("orders", 0, [b"news"])
        assert answer.result(WAIT_S)[0] == 200


def test_who_waits_without_a_key_is_refused_once_a_user_is_defined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    store_url = f"sqlite:///{tmp_path / 'shoal.db'}"
    with shoal.connect(store_url) as hub, served(store_url) as url, ThreadPoolExecutor(1) as threads:
        hub.create_stream("orders", shards=1)
        body = arguments_to(CALLS["hub", "read"], READ)
        answer = threads.submit(asked, url, "/v1/hub/read", body)
        eventually(lambda: figure(url, "waiting") == 1, "it waits")
        store = SQLStore.open(store_url)
        try:
            store.access.create_user("first", 0)
        finally:
            store.close()
        eventually(lambda: asked(url, "/v1/hub/list_projects")[0] == 401, "keys are asked for", CACHE_S + 5)
        hub.append("orders", 0, [b"news"])
        status, told = answer.result(WAIT_S)
        assert (status, told["error"]) == (401, "NotSignedIn")
