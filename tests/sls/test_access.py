"""A server with users, asked in Aliyun's dialect: who is let in, and who may do what."""

import http.client
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from shoal import Hub
from shoal.remote.signing import Credentials
from shoal.server.keys import CACHE_S
from shoal.server.options import ServerOptions
from shoal.server.sealing import VARIABLE, new_master_key
from shoal.server.sls.records import SCHEMA
from shoal.server.sls.routes import CALLS, SEARCH
from shoal.testing.members import eventually
from shoal.testing.serving import served
from shoal.testing.users import ALL, Door, allowed, guarded, of_the_document
from tests.sls.asking import Client, asked

STREAM = "proj/store"
PROJECT = "acs:log:*:*:project/proj"
STORE = f"{PROJECT}/logstore/store"
GROUP = "/logstores/store/consumergroups/g"
GOOD = b"\x0a\x02\x08\x01"
"""A group of one log without fields."""
ROW = {"time": 1, "contents": [("k", b"v")]}
DENIED = (401, "Unauthorized")
REQUESTS = {
    "create_project": ("POST", "/", b'{"projectName":"new"}'),
    "get_project": ("GET", "/", b""),
    "list_projects": ("GET", "/?size=10", b""),
    "update_project": ("PUT", "/", b'{"description":"x"}'),
    "delete_project": ("DELETE", "/", b""),
    "create_logstore": ("POST", "/logstores", b'{"logstoreName":"new","ttl":1,"shardCount":1}'),
    "list_logstores": ("GET", "/logstores", b""),
    "get_logstore": ("GET", "/logstores/store", b""),
    "update_logstore": ("PUT", "/logstores/store", b'{"ttl":1}'),
    "delete_logstore": ("DELETE", "/logstores/store", b""),
    "list_shards": ("GET", "/logstores/store/shards", b""),
    "put": ("POST", "/logstores/store/shards/lb", GOOD),
    "read_shard": ("GET", "/logstores/store/shards/0?type=cursor&from=begin", b""),
    "split_shard": ("POST", "/logstores/store/shards/0?action=split", b""),
    "merge_shards": ("POST", "/logstores/store/shards/0?action=merge", b""),
    "delete_shard": ("DELETE", "/logstores/store/shards/0", b""),
    "list_groups": ("GET", "/logstores/store/consumergroups", b""),
    "create_group": ("POST", "/logstores/store/consumergroups", b'{"consumerGroup":"new"}'),
    "update_group": ("PUT", GROUP, b'{"timeout":30}'),
    "delete_group": ("DELETE", GROUP, b""),
    "get_checkpoints": ("GET", GROUP, b""),
    "beat": ("POST", f"{GROUP}?type=heartbeat&consumer=c", b"[]"),
    "save": ("POST", f"{GROUP}?type=checkpoint&forceSuccess=true", b'{"shard":0,"checkpoint":""}'),
    "search": ("GET", "/logstores/store?type=log", b""),
}
"""One of each call."""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setenv(VARIABLE, new_master_key())
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}") as door:
        yield door


@pytest.fixture
def admin(door: Door) -> Iterator[Hub]:
    with door.hub_of("admin", ALL) as hub:
        hub.create_stream(STREAM, shards=1, schema=SCHEMA)
        hub.create_group(STREAM, "g", timeout=20, in_order=False)
        yield hub


def seen(admin: Hub) -> object:
    """All that a call could change."""
    return (
        admin.list_projects(),
        admin.list_streams(),
        admin.stats(STREAM).appended,
        admin.list_groups(STREAM),
        admin.describe_group(STREAM, "g"),
    )


def user(door: Door, name: str, *policies: str) -> Client:
    return Client(door.url, door.key_of(name, *policies))


def test_no_call_is_made_without_a_key_or_with_a_wrong_one(door: Door, admin: Hub) -> None:
    assert set(REQUESTS) == {*CALLS.values(), SEARCH}
    before = seen(admin)
    key = door.key_of("ann", ALL)
    wrong = Client(door.url, Credentials(key=key.key, secret="guess"))
    unknown = Client(door.url, Credentials(key="nobody", secret=key.secret))
    for method, path, body in REQUESTS.values():
        assert asked(door.url, method, path, body) == DENIED
        assert wrong.asked(method, path, body) == (401, "SignatureNotMatch")
        assert unknown.asked(method, path, body) == DENIED
    assert refusals(door, "NotSignedIn") == 3 * len(REQUESTS)
    for header in ("LOG", f"LOG {key.key}:", "Basic aWQ6c2VjcmV0", "LOG a b:AAAA=", "LOG a'--:AAAA=", ""):
        assert asked(door.url, "GET", "/logstores", Authorization=header) == DENIED
    assert seen(admin) == before


def test_a_user_without_policies_may_make_no_call(door: Door, admin: Hub) -> None:
    guest = user(door, "guest")
    before = seen(admin)
    for name, (method, path, body) in REQUESTS.items():
        if name != "list_projects":
            assert guest.asked(method, path, body) == DENIED, name
            # What is there is not told apart from what is not.
            assert guest.asked(method, path.replace("/store", "/none"), body) == DENIED, name
    assert guest.told("GET", "/?size=10")[1] == {"count": 0, "total": 0, "projects": []}
    assert seen(admin) == before
    assert refusals(door, "AccessDenied") == 2 * (len(REQUESTS) - 1)


def test_one_who_may_do_everything_makes_every_call(door: Door, admin: Hub) -> None:
    ann = user(door, "ann", ALL)
    answers = {name: ann.asked(*request) for name, request in REQUESTS.items() if "delete" not in name}
    assert {name for name, answer in answers.items() if answer[0] == 401} == set()
    assert answers["put"] == (200, "")
    assert ann.asked(*REQUESTS["delete_group"]) == (200, "")


def test_each_call_needs_its_own_action(door: Door, admin: Hub) -> None:
    admin.split_shard(STREAM, 0)
    splitter = user(door, "splitter", allowed(("log:SplitShard", STORE)))
    merger = user(door, "merger", allowed(("log:MergeShards", STORE)))
    assert splitter.asked("POST", "/logstores/store/shards/1?action=merge") == DENIED
    assert merger.asked("POST", "/logstores/store/shards/1?action=split") == DENIED
    assert merger.asked("POST", "/logstores/store/shards/1?action=merge") == (200, "")
    assert splitter.asked("POST", "/logstores/store/shards/3?action=split") == (200, "")
    reader = user(door, "reader", allowed(("log:GetCursorOrData", STORE)))
    assert reader.asked(*REQUESTS["read_shard"]) == (200, "")
    assert reader.asked(*REQUESTS["list_shards"]) == (200, "")
    assert reader.asked(*REQUESTS["put"]) == DENIED
    assert reader.asked(*REQUESTS["beat"]) == DENIED


def test_names_that_stand_in_the_body_or_the_host_are_those_that_are_checked(door: Door, admin: Hub) -> None:
    ann = user(
        door,
        "ann",
        allowed(
            ("log:*", f"{PROJECT}/logstore/mine*"),
            ("log:*", f"{STORE}/consumergroup/mine*"),
            ("log:CreateProject", "acs:log:*:*:project/mine"),
        ),
    )
    before = seen(admin)
    assert ann.asked("POST", "/logstores", b'{"logstoreName":"theirs"}') == DENIED
    assert ann.asked("POST", "/logstores", b'{"logstoreName":"mine","logstoreName":"theirs"}') == DENIED
    assert ann.asked("POST", "/logstores", b'{"logstoreName":"mine/x"}') == (400, "ParameterInvalid")
    assert ann.asked("POST", "/logstores", b'{"logstoreName":"mine"}', host="other.localhost") == DENIED
    assert ann.asked("POST", "/", b'{"projectName":"theirs"}', host="mine.localhost") == DENIED
    assert ann.asked("POST", "/logstores/store/consumergroups", b'{"consumerGroup":"theirs"}') == DENIED
    assert ann.asked("GET", "/logstores/mine%2F..%2Fstore/shards") == (400, "ParameterInvalid")
    assert ann.asked("GET", "/logstores/store", host="localhost") == DENIED
    assert seen(admin) == before
    assert ann.asked("POST", "/logstores", b'{"logstoreName":"mine","shardCount":1}') == (200, "")
    assert ann.asked("POST", "/logstores/store/consumergroups", b'{"consumerGroup":"mine"}') == (200, "")
    assert ann.asked("POST", "/", b'{"projectName":"mine"}', host="theirs.localhost") == (200, "")


def test_lists_show_what_may_be_seen_and_deny_wins(door: Door, admin: Hub) -> None:
    admin.create_stream("proj/secret", shards=1)
    admin.create_stream("other/store", shards=1)
    admin.create_group(STREAM, "secret")
    deny = (
        '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": '
        f'["{PROJECT}/logstore/secret", "{STORE}/consumergroup/secret"]}}]}}'
    )
    ann = user(door, "ann", allowed(("log:*", f"{PROJECT}*")), deny)
    projects = ann.told("GET", "/", host="localhost")[1]
    assert ([one["projectName"] for one in projects["projects"]], projects["total"]) == (["proj"], 1)
    assert ann.told("GET", "/logstores")[1] == {"count": 1, "total": 1, "logstores": ["store"]}
    assert [one["name"] for one in ann.told(*REQUESTS["list_groups"])[1]] == ["g"]
    assert ann.asked("GET", "/logstores/secret") == DENIED
    assert ann.asked("GET", "/logstores", host="other.localhost") == DENIED


def test_the_documents_policy_lets_a_group_be_updated_to_what_it_is_alone(door: Door, admin: Hub) -> None:
    ann = user(door, "ann", of_the_document(STORE, "g"))
    assert ann.asked("PUT", GROUP, b'{"timeout":20,"order":false}') == (200, "")
    for body in (b'{"timeout":21,"order":false}', b'{"timeout":20,"order":true}'):
        assert ann.asked("PUT", GROUP, body) == DENIED
    assert admin.describe_group(STREAM, "g").settings.timeout_ms == 20_000
    bob = user(door, "bob", allowed(("log:UpdateConsumerGroup", f"{STORE}/consumergroup/g")))
    assert bob.asked("PUT", GROUP, b'{"timeout":21}') == (200, "")
    assert admin.describe_group(STREAM, "g").settings.timeout_ms == 21_000


def test_a_made_up_agent_saves_no_checkpoint_for_one_who_may_not(door: Door, admin: Hub) -> None:
    admin.append(STREAM, 0, [ROW])
    admin.split_shard(STREAM, 0)
    agent = "test-consumergroup-g-worker"
    lines = [
        ("log:GetCursorOrData", STORE),
        ("log:GetConsumerGroupCheckPoint", f"{STORE}/consumergroup/g"),
    ]
    beats = ("log:ConsumerGroupHeartBeat", f"{STORE}/consumergroup/g")
    saves = ("log:ConsumerGroupUpdateCheckPoint", f"{STORE}/consumergroup/g")
    worker = user(door, "worker", allowed(*lines, beats, saves))
    assert worker.told("POST", f"{GROUP}?type=heartbeat&consumer=worker", b"[]") == (200, [0, 1, 2])
    end = worker.told("GET", "/logstores/store/shards/0?type=cursor&from=end", agent=agent)[1]["cursor"]
    pull = f"/logstores/store/shards/0?type=log&count=10&cursor={end}"
    for client in (user(door, "eve", allowed(*lines)), worker):
        assert admin.describe_group(STREAM, "g").lag == 1
        assert client.told("GET", f"{GROUP}?shard=0", agent=agent)[0] == 200
        assert client.told("GET", pull, agent=agent)[0] == 200
    assert admin.describe_group(STREAM, "g").lag == 0


JAVA = "Consumer-Library-G/one"


def test_javas_consumer_needs_a_policy_for_the_group_that_it_means_however_it_spells_it(
    door: Door, admin: Hub
) -> None:
    beat = ("POST", "/logstores/store/consumergroups/G?type=heartbeat&consumer=one", b"[]")
    ann = user(door, "ann", of_the_document(STORE, "g"))
    assert ann.told(*beat, agent=JAVA) == (200, [0])
    assert ann.asked(*beat) == DENIED, "of others, a name is what it says"
    update = ("PUT", "/logstores/store/consumergroups/G", b'{"timeout":20,"order":false}')
    assert ann.asked(*update, agent=JAVA) == (200, "")
    assert user(door, "eve").asked(*beat, agent=JAVA) == DENIED
    # Once there is a group of just this name, that is what is meant: by those who may.
    admin.create_group(STREAM, "G", in_order=False)
    assert user(door, "bob", ALL).told(*beat, agent=JAVA) == (200, [0])
    assert [member.name for member in admin.describe_group(STREAM, "G").members] == ["one"]
    maker = user(door, "maker", allowed(("log:CreateConsumerGroup", f"{STORE}/consumergroup/*")))
    assert maker.asked(*update[:2], b'{"timeout":30}', agent=JAVA) == DENIED
    assert admin.describe_group(STREAM, "g").settings.timeout_ms == 20_000


def test_what_javas_consumer_may_not_see_changes_no_answer_to_it(door: Door, admin: Hub) -> None:
    """Whether a group is there in other capitals, or the logstore is."""
    agents = [
        (user(door, "nobody"), "G"),
        (user(door, "other", of_the_document(STORE, "G")), "G"),
        (user(door, "third", of_the_document(STORE, "gg")), "GG"),
    ]

    def answers() -> list[tuple[int, object]]:
        return [
            client.told("POST", f"/logstores/{store}/consumergroups/{group}?{call}", body, agent=JAVA)
            for client, group in agents
            for store in ("store", "none")
            for call, body in (
                ("type=heartbeat&consumer=one", b"[]"),
                ("type=checkpoint&consumer=one", b'{"shard":0,"checkpoint":""}'),
            )
        ]

    admin.create_group(STREAM, "gG")
    there = answers()
    assert [status for status, _ in there] == [401] * 4 + [404] * 2 + [401] * 6
    admin.delete_group(STREAM, "g")
    admin.delete_group(STREAM, "gG")
    assert answers() == there


def test_a_request_is_refused_outside_its_time_or_with_another_body(door: Door, admin: Hub) -> None:
    ann = user(door, "ann", ALL)
    now, body = time.time(), b'{"projectName":"new"}'
    for skew_s in (-1000, 1000):
        assert ann.asked("POST", "/", body, at_s=now + skew_s) == (400, "RequestTimeExpired")
    assert ann.asked("POST", "/", body, sent=b'{"projectName":"old"}') == (400, "PostBodyInvalid")
    assert ann.asked("POST", "/", b"", sent=body) == (400, "PostBodyInvalid")
    assert admin.list_projects() == ["proj"]
    assert ann.asked("POST", "/", body, at_s=now - 800) == (200, "")
    assert (refusals(door, "ClockSkewed"), refusals(door, "NotSignedIn")) == (2, 2)


def test_from_the_first_user_on_a_server_asks_for_keys_and_a_disabled_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    store_url = f"sqlite:///{tmp_path / 'shoal.db'}"
    with served(store_url) as url:
        assert asked(url, "POST", "/", b'{"projectName":"proj"}') == (200, "")
        with guarded(store_url) as door:
            key = door.key_of("ann", ALL)
            eventually(lambda: asked(url, "GET", "/logstores") == DENIED, "keys are asked for", CACHE_S + 5)
            ann = Client(url, key)
            assert ann.asked("GET", "/logstores") == (200, "")
            door.store.access.enable_key(key.key, False)
            eventually(lambda: ann.asked("GET", "/logstores") == DENIED, "it is refused", CACHE_S + 5)


def refusals(door: Door, error: str) -> int:
    """How often the server has counted it."""
    with closing(http.client.HTTPConnection(door.url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    (count,) = re.findall(rf'shoal_server_auth_failures_total{{error="{error}"}} (\S+)', text) or ["0"]
    return int(float(count))


def test_who_asks_too_often_is_told_as_aliyun_does_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, new_master_key())
    options = ServerOptions(port=0, requests_per_s_max=2)
    with guarded(f"sqlite:///{tmp_path / 'shoal.db'}", options) as door:
        ann, bob = user(door, "ann", ALL), user(door, "bob", ALL)
        wanted = [
            ("POST", "/logstores/store/shards/lb", (403, "WriteQuotaExceed")),
            ("GET", "/logstores/store/shards/0?type=log&cursor=MQ==&count=1", (403, "ReadQuotaExceed")),
            ("POST", f"{GROUP}?type=checkpoint&consumer=c", (503, "ServerBusy")),
            ("POST", f"{GROUP}?type=heartbeat&consumer=c", (503, "ServerBusy")),
        ]
        for method, path, refused in wanted:
            assert refused in [ann.asked(method, path) for _ in range(10)]
        assert bob.asked("GET", "/logstores/store/shards") == (404, "ProjectNotExist")
