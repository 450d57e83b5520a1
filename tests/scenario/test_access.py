"""A server with users: who is let in, who may do what, and what is told to whom."""

import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.core.access import Statement
from shoal.core.checkpoint import Save
from shoal.core.errors import (
    AccessDenied,
    InvalidInput,
    InvalidUrl,
    NotSignedIn,
    UnknownGroup,
)
from shoal.core.model import ShardId
from shoal.native.calls import CALLS, arguments_to
from shoal.ports import GroupSaves, ProducerLife, ShardEnd, Submission
from shoal.remote.signing import Credentials, credentials
from shoal.server.keys import CACHE_S
from shoal.server.logs import JsonLines
from shoal.server.options import ServerOptions
from shoal.server.sealing import VARIABLE, Seal, new_master_key, new_secret
from shoal.server.starting import open_server
from shoal.store.sql.store import SQLStore
from shoal.testing.members import eventually
from shoal.testing.serving import served
from shoal.testing.users import ALL, Door, allowed, of_the_document
from shoal.wire.fitting import fit_columns
from shoal.wire.layout import Layout
from shoal.wire.policies import policy_text
from tests.scenario.asking import Sent, asked


def test_a_key_that_is_disabled_or_deleted_is_refused_soon(door: Door) -> None:
    key = door.key_of("writer", ALL)
    with shoal.connect(door.url_of(key)) as hub:
        assert hub.list_streams() == []
        door.store.access.enable_key(key.key, False)

        def is_refused() -> bool:
            try:
                hub.list_streams()
            except NotSignedIn:
                return True
            return False

        eventually(is_refused, "the key is refused", CACHE_S + 5)
        door.store.access.enable_key(key.key, True)
        assert hub.list_streams() == []
        door.store.access.delete_user("writer")
        eventually(is_refused, "the key is refused", CACHE_S + 5)


def test_a_user_may_do_nothing_that_no_policy_allows(door: Door, admin: Hub) -> None:
    admin.create_stream("orders", shards=1)
    with door.hub_of("guest") as hub:
        assert hub.list_projects() == []
        assert hub.list_streams() == []
        for call in (
            lambda: hub.describe_stream("orders"),
            lambda: hub.create_stream("more"),
            lambda: hub.append("orders", 0, [b"a"]),
            lambda: hub.read("orders", 0, 0),
            lambda: hub.delete_stream("orders"),
            hub.enforce_retention,
            lambda: hub.list_groups("orders"),
            lambda: hub.create_group("orders", "g"),
        ):
            with pytest.raises(AccessDenied) as raised:
                call()
            assert raised.value.user == "guest"
    assert [str(one.full_name) for one in admin.list_streams()] == ["orders"]
    assert admin.stats("orders").records == 0


def test_deny_wins_and_lists_show_what_may_be_seen(door: Door, admin: Hub) -> None:
    for name in ("shop/orders", "shop/secret", "bank/orders"):
        admin.create_stream(name, shards=1)
    where = "acs:log:*:*:project/shop/logstore/s*"
    deny = policy_text([Statement(is_allow=False, actions=("*",), resources=(where,))])
    with door.hub_of("clerk", allowed(("log:*", "acs:log:*:*:project/shop*")), deny) as hub:
        assert [str(one.full_name) for one in hub.list_streams()] == ["shop/orders"]
        assert [str(one.full_name) for one in hub.list_streams("shop")] == ["shop/orders"]
        assert hub.list_projects() == ["shop"]
        hub.append("shop/orders", 0, [b"a"])
        for stream in ("shop/secret", "bank/orders"):
            with pytest.raises(AccessDenied):
                hub.append(stream, 0, [b"a"])
        with pytest.raises(AccessDenied):
            hub.list_streams("bank")


def test_a_group_is_not_reached_by_its_number(door: Door, admin: Hub) -> None:
    admin.create_stream("mine", shards=1)
    admin.create_stream("theirs", shards=1)
    admin.create_group("mine", "g")
    admin.create_group("theirs", "g")
    number = admin.service.groups.find(admin.describe_stream("theirs").full_name, "g").id
    mine = admin.describe_stream("mine").full_name
    with door.hub_of("me", allowed(("log:*", "acs:log:::project/default/logstore/mine*"))) as hub:
        groups = hub.service.groups
        with pytest.raises(UnknownGroup):
            groups.save(mine, number, [Save(shard=ShardId(0), epoch=1, offset=0)])
        for other in (number, 10**6):
            with pytest.raises(UnknownGroup, match=f"group='{other}'"):
                groups.unbound(other)
        assert groups.unbound(groups.find(mine, "g").id) == frozenset()
    assert _refusals(door, "AccessDenied") == 3
    looker = allowed(("log:ListConsumerGroup", "acs:log:::project/default/logstore/theirs*"))
    # Who knows the group is told what is missing.
    with door.hub_of("looker", looker) as hub, pytest.raises(AccessDenied, match="theirs"):
        hub.service.groups.block(number, ShardId(0), None)
    assert _refusals(door, "AccessDenied") == 4
    with door.hub_of("overseer", allowed(("log:*", "*"))) as hub, pytest.raises(UnknownGroup):
        hub.service.groups.save(mine, number, [Save(shard=ShardId(0), epoch=1, offset=0)])
    assert _refusals(door, "AccessDenied") == 4, "who may do everything was not refused by a policy"


def test_what_is_not_yours_and_what_is_not_there_are_told_alike(door: Door, admin: Hub) -> None:
    secret = admin.create_stream("secret", shards=1)
    admin.create_group("secret", "layoffs")
    group = admin.service.groups.find(secret.full_name, "layoffs").id
    key = door.key_of("nobody")

    def told(part: str, name: str, number: int, **arguments: Any) -> tuple[int, str]:
        call = CALLS[part, name]
        request = Sent(key, call.path, arguments_to(call, arguments), nonce=new_secret()[:20])
        signed = replace(request.for_server(door.url), nonce=new_secret()[:20])
        status, found = asked(door.url, call.path, signed.body, Authorization=signed.header())
        del found["request"]
        return status, json.dumps(found).replace(str(number), "N")

    def alike(number: int) -> list[tuple[int, str]]:
        place = ShardEnd(number, ShardId(0))
        return [
            told("groups", "wait", number, group_id=number, incarnation="x", seen=0, timeout_s=0.0),
            told("groups", "unbound", number, group_id=number),
            told("groups", "leased", number, group_id=number),
            told("groups", "retire", number, group_id=number, incarnation="x"),
            told("hub", "watch", number, places=[(place, 1)], wait_for_s=0.0),
        ]

    assert group == secret.id
    found = alike(group)
    assert [status for status, _ in found] == [404, 404, 404, 404, 403]
    assert not any("layoffs" in text or "secret" in text for _, text in found)
    assert _refusals(door, "AccessDenied") == len(found)
    assert found == alike(999_999)
    assert _refusals(door, "AccessDenied") == 2 * len(found), "the figures tell them apart"


@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
def test_the_document_s_six_lines_are_enough_for_a_worker(door: Door, admin: Hub, coordination: Any) -> None:
    admin.create_stream("orders", shards=2)
    admin.append("orders", 0, [b"a", b"b"])
    stream = "acs:log:cn-hangzhou:1234:project/default/logstore/orders"
    seen: list[bytes] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        seen.extend(record.value for record in batch)
        checkpointer.save()

    with door.hub_of("worker", of_the_document(stream, "billing")) as hub:
        hub.create_group("orders", "billing", coordination=coordination)
        with Worker(hub, "orders", "billing", process):
            eventually(lambda: seen == [b"a", b"b"], "all is seen")
        assert hub.describe_group("orders", "billing").lag == 0
        with pytest.raises(AccessDenied):
            hub.append("orders", 0, [b"c"])
        with pytest.raises(AccessDenied):
            hub.delete_group("orders", "billing")


def test_secrets_are_in_no_text_no_log_and_not_in_the_file(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    caplog.set_level(logging.DEBUG)
    logging.getLogger("shoal").addHandler(handler)
    key = door.key_of("writer")
    try:
        with shoal.connect(door.url_of(key)) as hub:
            texts = [repr(hub), repr(hub.service), repr(vars(hub.service)), repr(key)]
            with pytest.raises(AccessDenied) as denied:
                hub.create_stream("x")
            texts.append(str(denied.value))
    finally:
        logging.getLogger("shoal").removeHandler(handler)
    for bad in (door.url_of(key) + "/path", door.url_of(key) + ":x", f"http://{key.secret}@host"):
        with pytest.raises(InvalidUrl) as raised:
            shoal.connect(bad)
        texts.append(f"{raised.value} {raised.value.value}")
    texts += [repr(door.store.access.grant(key.key)), caplog.text, lines.getvalue()]
    assert "hub.create_stream" in lines.getvalue()
    master = door.seal.open(key.key, door.store.access.list_keys("writer")[0].sealed)
    assert master == key.secret
    assert all(key.secret not in text for text in texts)
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert key.key.encode() in files
    assert key.secret.encode() not in files


def test_a_sealed_secret_opens_under_its_own_key_alone() -> None:
    old, new = new_master_key(), new_master_key()
    sealed = Seal(old).seal("a", "secret")
    assert Seal(f"{new},{old}").open("a", sealed) == "secret"
    for seal, key in ((Seal(new), "a"), (Seal(old), "b")):
        with pytest.raises(InvalidInput) as raised:
            seal.open(key, sealed)
        assert old not in str(raised.value)
        assert new not in str(raised.value)
    for wrong in ("", "short", "!" * 44):
        with pytest.raises(InvalidInput):
            Seal(wrong)


def test_a_key_comes_from_the_url_or_else_from_the_environment(door: Door) -> None:
    given = {"SHOAL_ACCESS_KEY_ID": "k", "SHOAL_ACCESS_KEY_SECRET": "s"}
    assert credentials("http://a:1,b:2", given) == (Credentials(key="k", secret="s"), "http://a:1,b:2")
    found, bare = credentials("http://x:y%2F@a:1,b:2", given)
    assert (found, bare) == (Credentials(key="x", secret="y/"), "http://a:1,b:2")
    assert credentials("http://a", {}) == (None, "http://a")
    with pytest.raises(InvalidUrl):
        credentials("http://a", {"SHOAL_ACCESS_KEY_ID": "k"})


def test_a_server_with_users_needs_the_master_key_and_one_without_stays_at_home(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beyond = ServerOptions(host="0.0.0.0", port=0)  # noqa: S104
    open_server(door.store_url, beyond, version="0").start().stop()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(InvalidInput, match=VARIABLE):
        open_server(door.store_url, version="0")
    with pytest.raises(InvalidInput, match="allow-anyone"):
        open_server(f"sqlite:///{tmp_path / 'other.db'}", beyond, version="0")


def test_a_server_that_cannot_open_keys_says_so_when_the_first_user_is_defined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    store_url = f"sqlite:///{tmp_path / 'shoal.db'}"
    with served(store_url) as url:
        assert asked(url, "/v1/hub/list_projects")[0] == 200
        store = SQLStore.open(store_url)
        try:
            store.access.create_user("first", 0)
        finally:
            store.close()
        eventually(lambda: asked(url, "/v1/hub/list_projects")[0] == 503, "nobody is let in", CACHE_S + 5)
        status, told = asked(url, "/v1/hub/list_projects")
        assert (status, told["error"], told["untouched"]) == (503, "StoreUnavailable", True)
        assert VARIABLE in told["text"]
        status, told = asked(url, "/readyz", method="GET")
        assert status == 503
        assert VARIABLE in told["text"]
        assert asked(url, "/logstores", method="GET", Host="a.localhost")[0] == 503
        assert asked(url, "/metrics", method="GET")[0] == 200


def test_refusals_are_counted_and_names_are_not_told_to_strangers(door: Door, admin: Hub) -> None:
    admin.create_stream("orders", shards=1)
    admin.create_group("orders", "billing")
    asked(door.url, "/v1/hub/list_projects")
    with door.hub_of("guest") as hub, pytest.raises(AccessDenied):
        hub.describe_stream("orders")
    text = asked(door.url, "/metrics", method="GET")[1].decode()
    assert _refusals(door, "NotSignedIn") == 1
    assert _refusals(door, "AccessDenied") == 1
    assert "SignedForAnother" not in text, "it is how a client learns whom to sign for"
    assert "billing" not in text
    assert asked(door.url, "/readyz", method="GET")[1] == {"status": "ready"}
    with served(door.store_url, ServerOptions(port=0, open_metrics=True)) as open_one:
        assert b"billing" in asked(open_one, "/metrics", method="GET")[1]


def test_a_transaction_needs_what_each_of_its_parts_needs(door: Door, admin: Hub) -> None:
    for stream in ("mine", "theirs"):
        admin.create_stream(stream, shards=1)
    admin.create_group("mine", "g", start="earliest")
    group = admin.service.groups.find(admin.describe_stream("mine").full_name, "g")
    where = "acs:log:::project/default/logstore/"
    with door.hub_of("clerk", allowed(("log:PostLogStoreLogs", where + "mine"))) as hub:
        with hub.producer("mine", name="till-1") as producer:
            with producer.transaction() as transaction:
                transaction.send(b"fine")
            assert hub.count_delayed("mine") == 0
        mine = hub.describe_stream("mine")
        life = ProducerLife(stream_id=mine.id, producer="~x", epoch=0)
        save = GroupSaves(
            stream=mine.full_name, group_id=group.id, saves=[Save(shard=ShardId(0), epoch=1, offset=1)]
        )
        with pytest.raises(UnknownGroup):  # As of a number that nothing has: it may not see groups.
            hub.service.transact(life, [], [save])
        theirs = admin.describe_stream("theirs")
        with pytest.raises(AccessDenied, match="PostLogStoreLogs"):
            hub.service.transact(replace(life, stream_id=theirs.id), [], [])
        with pytest.raises(AccessDenied, match="PostLogStoreLogs"):
            hub.service.open_producer(theirs, "till-1")
        one = pa.record_batch({"value": [b"x"]})
        fitted = fit_columns(Layout(None), one, None, 0)
        submission = Submission(shard=ShardId(0), batch=fitted, producer="~x")
        with pytest.raises(AccessDenied, match="PostLogStoreLogs"):
            hub.service.transact(life, [(theirs, submission)])
        hub.service.transact(life, [(mine, submission)])
    seeing = allowed(("log:PostLogStoreLogs", where + "mine"), ("log:ListConsumerGroup", where + "mine/*"))
    with (
        door.hub_of("auditor", seeing) as hub,
        pytest.raises(AccessDenied, match="ConsumerGroupUpdateCheckPoint"),
    ):
        hub.service.transact(life, [], [save])
    assert (admin.stats("mine").appended, admin.stats("theirs").appended) == (2, 0)


def _refusals(door: Door, error: str) -> int:
    """How often the server has counted it."""
    text = asked(door.url, "/metrics", method="GET")[1].decode()
    (count,) = re.findall(rf'^shoal_server_auth_failures_total{{error="{error}"}} (\S+)$', text, re.M) or [
        "0"
    ]
    return int(float(count))
