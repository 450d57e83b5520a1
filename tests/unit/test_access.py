"""Policies, the window of signed requests, and what a server believes of keys and hosts."""

import json
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.access import (
    ACTIONS,
    EVERYWHERE,
    Rights,
    Statement,
    group_resource,
    made_statement,
    matches,
    project_resource,
    stream_resource,
)
from shoal.core.errors import ClockSkewed, InvalidInput, NotSignedIn, ReplayedRequest, StoreBusy
from shoal.core.limits import POLICY_BYTES_MAX, SIGNED_MS
from shoal.core.model import StreamName
from shoal.core.replay import Nonces
from shoal.native.calls import CALLS
from shoal.native.forms import TransactLabel
from shoal.native.needs import NEEDS, needs_of
from shoal.ports import ProducerLife
from shoal.server.options import ServerOptions
from shoal.wire.policies import parse_policy, policy_text
from shoal.wire.signing import digest_of, header_of, is_right, parse_header

NAME = st.text("ab-._1", min_size=1, max_size=4)
ACTION = st.sampled_from(sorted(ACTIONS))
RESOURCE = st.builds(
    lambda project, stream, group, depth: [
        project_resource(project),
        stream_resource(StreamName(project, stream)),
        group_resource(StreamName(project, stream), group),
    ][depth],
    NAME,
    NAME,
    NAME,
    st.integers(0, 2),
)
PLACE = st.builds(
    lambda region, owner: f"acs:log:{region}:{owner}:",
    st.sampled_from(["", "*", "cn-hangzhou"]),
    st.sampled_from(["", "*", "1234"]),
)
PART = st.text("ab-*?", min_size=1, max_size=4)
PATTERN = st.builds(
    lambda place, parts: place + "project/" + "".join(parts),
    PLACE,
    st.tuples(PART)
    | st.tuples(PART, st.sampled_from(["/*", "*", "/logstore/", "/l*/"]), PART)
    | st.tuples(PART, st.just("/logstore/"), PART, st.sampled_from(["/*/", "/consumergroup/"]), PART),
)
STATEMENT = st.builds(
    lambda is_allow, actions, resources: made_statement(
        is_allow=is_allow, actions=actions, resources=resources
    ),
    st.booleans(),
    st.lists(ACTION | st.sampled_from(["*", "log:*", "log:Get*"]), min_size=1, max_size=3),
    st.lists(PATTERN | st.just("*"), min_size=1, max_size=3),
)


@given(st.text("ab*?", max_size=8), st.text("ab/", max_size=8))
def test_a_pattern_matches_as_a_regular_expression_would(pattern: str, text: str) -> None:
    expression = "".join({"*": ".*", "?": "."}.get(one, re.escape(one)) for one in pattern)
    assert matches(pattern, text) == bool(re.fullmatch(expression, text, re.DOTALL))


def test_a_pattern_full_of_stars_takes_no_time() -> None:
    assert not matches("*a" * 200 + "b", "a" * 2000)


@given(st.lists(STATEMENT, max_size=5), ACTION, RESOURCE)
def test_what_is_denied_no_statement_can_allow(statements: list[Statement], action: str, where: str) -> None:
    deny = made_statement(is_allow=False, actions=[action], resources=[where])
    assert not Rights([*statements, deny]).allows(action, where)
    assert not Rights([*statements, deny]).allows(action, EVERYWHERE)


@given(st.lists(STATEMENT, max_size=5), STATEMENT, ACTION, RESOURCE)
def test_one_more_deny_allows_nothing_and_one_more_allow_denies_nothing(
    statements: list[Statement], more: Statement, action: str, where: str
) -> None:
    before, after = Rights(statements), Rights([*statements, more])
    if more.is_allow:
        assert after.allows(action, where) >= before.allows(action, where)
    else:
        assert after.allows(action, where) <= before.allows(action, where)


@given(st.lists(STATEMENT, max_size=5), ACTION, RESOURCE)
def test_nothing_is_allowed_that_no_statement_allows(
    statements: list[Statement], action: str, where: str
) -> None:
    assert not Rights([]).allows(action, where)
    denials = [one for one in statements if not one.is_allow]
    assert not Rights(denials).allows(action, where)
    if Rights(statements).allows(action, EVERYWHERE):
        assert Rights(statements).allows(action, where)


@given(
    st.sampled_from(
        ["acs:log:", "acs:log:::", "acs:log:*:*:", "acs:log:*::", "acs:log::*:", "acs:log:cn:1:"]
    ),
    st.sampled_from(["acs:log:::", "acs:log:cn:1:"]),
)
def test_region_and_owner_may_be_a_star_or_left_out_on_either_side(pattern: str, asked: str) -> None:
    allow = made_statement(
        is_allow=True, actions=["log:GetCursorOrData"], resources=[f"{pattern}project/shop/logstore/orders"]
    )
    assert Rights([allow]).allows("log:GetCursorOrData", f"{asked}project/shop/logstore/orders")
    assert not Rights([allow]).allows("log:GetCursorOrData", f"{asked}project/shop/logstore/orders2")
    assert not Rights([allow]).allows("log:PostLogStoreLogs", f"{asked}project/shop/logstore/orders")


def test_a_region_that_both_sides_name_has_to_fit() -> None:
    allow = made_statement(is_allow=True, actions=["log:*"], resources=["acs:log:cn-a:1:project/p"])
    assert Rights([allow]).allows("log:GetProject", "acs:log:cn-a:1:project/p")
    assert not Rights([allow]).allows("log:GetProject", "acs:log:cn-b:1:project/p")
    assert not Rights([allow]).allows("log:GetProject", "acs:log:cn-a:2:project/p")


SLIPS = [
    "project/",
    "project/shop/",
    "project/shop/logstores/secret",
    "project/shop/Logstore/secret",
    "project/shop/logstore",
    "project/shop/logstore/",
    "project/shop/logstore//secret",
    "project//logstore/secret",
    "project/shop/secret",
    "project/shop/logstore/secret/",
    "project/shop/logstore/secret/shard/0",
    "project/shop/logstore/secret/consumergroups/g",
    "project/shop/logstore/secret/consumergroup/g/h",
    "project/shop*/logstores/secret",
    "project/*/",
    "*/logstores/secret",
    "*//*",
]


@pytest.mark.parametrize("path", SLIPS)
def test_a_resource_that_nothing_fits_is_refused_with_what_to_write(path: str) -> None:
    """A deny with a slip in it would deny nothing."""
    resource = f"acs:log:*:*:{path}"
    with pytest.raises(InvalidInput, match=r"project/P/logstore/STREAM/consumergroup/GROUP") as raised:
        made_statement(is_allow=False, actions=["*"], resources=["*", resource])
    assert (raised.value.field, raised.value.value) == ("Resource", resource)


@pytest.mark.parametrize(
    "resource",
    [
        "*",
        "acs:log:*:*:*",
        "acs:log:*:*:project/*",
        "acs:log:*:*:project/shop*",
        "acs:log:*:*:project/shop/*",
        "acs:log:*:*:project/shop/*/secret",
        "acs:log:*:*:*/logstore/secret",
        "acs:log:*:*:*secret",
        "acs:log:*:*:*/?onsumergroup/?",
        "acs:log:::project/sh?p/logstore/orders*",
        "acs:log:project/shop?logstore?orders",
        "acs:log:${regionName}:${projectOwnerAliUid}:project/${projectName}/logstore/${logstoreName}",
        "acs:log:**${regionName}**:**${projectOwnerAliUid}**:project/**${projectName}**/logstore/"
        "**${logstoreName}**/consumergroup/*",
    ],
)
def test_a_resource_that_something_may_fit_is_taken(resource: str) -> None:
    assert made_statement(is_allow=False, actions=["*"], resources=[resource]).resources == (resource,)


@given(
    RESOURCE, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8), st.sampled_from("*?")), max_size=4)
)
def test_whatever_fits_a_resource_that_there_is_is_taken(
    resource: str, wild: list[tuple[int, int, str]]
) -> None:
    path = pattern = resource.removeprefix("acs:log:::")
    for place, length, sign in wild:
        pattern = pattern[:place] + (sign if sign == "*" else sign * length) + pattern[place + length :]
    if matches(pattern, path) and pattern.startswith(("project/", "*")):
        made_statement(is_allow=False, actions=["*"], resources=[f"acs:log:::{pattern}"])


def test_a_resource_full_of_stars_is_looked_through_at_once() -> None:
    made_statement(is_allow=True, actions=["*"], resources=["acs:log:::project/" + "*a?" * 10_000])


@given(st.lists(STATEMENT, min_size=1, max_size=4))
def test_a_policy_comes_back_from_its_text(statements: list[Statement]) -> None:
    assert parse_policy(policy_text(statements)) == tuple(statements)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"Statement": []}',
        '{"Version": "2", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}',
        '{"Statement": [{"Effect": "allow", "Action": "*", "Resource": "*"}]}',
        '{"Statement": [{"Effect": "Allow", "Action": [], "Resource": "*"}]}',
        '{"Statement": [{"Effect": "Allow", "Action": "*"}]}',
        '{"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {}}]}',
        '{"Statement": [{"Effect": "Deny", "Action": "log:getcursorordata", "Resource": "*"}]}',
        '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "project/p"}]}',
        '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "acs:oss:*:*:project/p"}]}',
        '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "acs:log:*:project/p"}]}',
        '{"Statement": [{"Effect": "Deny", "Action": [1], "Resource": "*"}]}',
        '{"Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}], '
        '"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}',
        '{"Statement": [{"Effect": "Deny", "Effect": "Allow", "Action": "*", "Resource": "*"}]}',
        "[" * 100_000,
        json.dumps({"Statement": "x" * POLICY_BYTES_MAX}),
    ],
)
def test_a_policy_that_would_be_misread_is_refused(document: str) -> None:
    with pytest.raises(InvalidInput):
        parse_policy(document)


def documented() -> dict[str, set[str]]:
    """By call, the actions that the table of docs/access.md has in its row."""
    text = (Path(__file__).parents[2] / "docs" / "access.md").read_text()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("| `log:"):
            actions, _, calls = line.strip("| ").split(" | ")
            for call in re.findall(r"`([a-z_]+)`", calls):
                found.setdefault(call, set()).update(re.findall(r"`(log:\w+)`", actions))
    return found


def test_the_table_in_the_document_says_what_calls_of_the_hub_need() -> None:
    told = documented()
    life = ProducerLife(stream_id=1, producer="till-1", epoch=0)
    label = TransactLabel(life=life, appends=())
    arguments = {"name": StreamName("shop", "orders"), "project": "shop", "label": label}
    for part, call in NEEDS:
        if part != "hub" or call in ("watch", "list_projects"):
            continue
        for need in needs_of(part, call, arguments):
            assert call in told, f"{call} is missing: it needs {need.actions}"
            assert need.actions[0] in told[call], (call, need.actions)


def test_every_native_call_says_what_it_needs() -> None:
    assert set(NEEDS) == set(CALLS)


# --- Signatures. ------------------------------------------------------------------------------------


def header(**changes: Any) -> str:
    given: dict[str, Any] = {
        "method": "POST",
        "target": "/v1/hub/read",
        "digest": digest_of(b"{}"),
        "date_ms": 1_000,
        "nonce": "n" * 20,
        "server": "abc",
        "key": "key",
        **changes,
    }
    return header_of(secret="secret", **given)


def test_a_signature_covers_all_that_a_request_is() -> None:
    signed = parse_header(header())
    assert is_right("secret", signed, method="POST", target="/v1/hub/read")
    assert not is_right("other", signed, method="POST", target="/v1/hub/read")
    assert not is_right("secret", signed, method="GET", target="/v1/hub/read")
    assert not is_right("secret", signed, method="POST", target="/v1/hub/read?x=1")
    assert not is_right("secret", signed, method="POST", target="/v1/hub/append")
    right = header().rpartition("=")[2]
    for change in (
        {"key": "kay"},
        {"date_ms": 1_001},
        {"nonce": "m" * 20},
        {"server": "abd"},
        {"digest": digest_of(b"")},
    ):
        forged = header(**change).rpartition("=")[0] + "=" + right
        assert not is_right("secret", parse_header(forged), method="POST", target="/v1/hub/read")


@given(st.integers(0, 200), st.integers(0, 200), st.text(max_size=3))
def test_a_header_that_was_cut_or_mangled_is_refused(low: int, high: int, between: str) -> None:
    whole = header()
    mangled = whole[:low] + between + whole[low + high :]
    if mangled == whole:
        return
    try:
        signed = parse_header(mangled)
    except NotSignedIn:
        return
    assert not is_right("secret", signed, method="POST", target="/v1/hub/read")


# --- Replays. ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(-70, 70), st.integers(0, 5)), max_size=60))
def test_no_nonce_is_taken_twice_whatever_the_clock_does(steps: list[tuple[int, int, int]]) -> None:
    nonces, taken, now_ms = Nonces(), set(), 10_000_000
    for passed, skew, number in steps:
        now_ms += passed * 1000 - 5_000  # It may also be set back.
        date_ms = now_ms + skew * 1000
        request = (f"n{number}", date_ms)
        try:
            nonces.take(*request, now_ms, f"u{number % 2}")
        except (ReplayedRequest, ClockSkewed):
            continue
        assert abs(skew) * 1000 <= SIGNED_MS
        assert request not in taken
        taken.add(request)


def test_what_is_too_old_to_be_taken_is_forgotten_and_the_rest_is_bounded() -> None:
    nonces = Nonces(limit=6)
    for number in range(3):
        nonces.take(f"n{number}", 1_000_000, 1_000_000)
    with pytest.raises(StoreBusy):
        nonces.take("n3", 1_000_000, 1_000_000)
    nonces.take("n3", 1_100_000, 1_100_000)
    assert len(nonces) == 1


def test_no_user_is_refused_for_the_nonces_of_others_and_all_together_are_bounded() -> None:
    limit, users = 120, [f"u{number}" for number in range(10)]
    nonces, taken = Nonces(limit=limit), Counter[str]()

    def fill(user: str, most: int) -> None:
        with suppress(StoreBusy):
            for number in range(most):
                nonces.take(f"{user}:{taken[user]}:{number}", 1_000_000, 1_000_000, user)
                taken[user] += 1

    fill("u0", 1000)
    assert taken["u0"] == limit // 2
    fill("u1", 1000)
    for user in users[2:]:
        fill(user, limit // len(users))
        assert taken[user] == limit // len(users)
    for user in users:
        fill(user, 1000)
    assert len(nonces) == taken.total() <= 2 * limit
    nonces.take("next", 1_100_000, 1_100_000, "u0")
    assert len(nonces) == 1


def test_a_clock_that_was_set_back_beyond_what_is_remembered_is_noticed() -> None:
    nonces = Nonces()
    nonces.take("n", 10_000_000, 10_000_000)
    assert not nonces.is_behind(10_000_000)
    assert not nonces.is_behind(10_000_000 - SIGNED_MS // 2)
    assert nonces.is_behind(10_000_000 - 2 * SIGNED_MS)


def test_a_skewed_clock_is_told_the_server_s_time() -> None:
    with pytest.raises(ClockSkewed) as raised:
        Nonces().take("n", 1_000_000, 2_000_000)
    assert raised.value.now_ms == 2_000_000
    assert "2000000" in str(raised.value)


def test_a_host_is_this_machine_by_its_address_and_not_by_how_its_name_begins() -> None:
    for host in ("127.0.0.1", "127.8.9.10", "::1", "localhost"):
        assert ServerOptions(host=host).is_loopback
    for host in ("127.evil.example", "127.0.0.1.evil.example", "::", "10.0.0.1", "127.0.0"):
        assert not ServerOptions(host=host).is_loopback


def test_a_deny_of_a_calls_own_action_wins_over_what_else_would_do() -> None:
    where = "acs:log:::project/shop/logstore/orders"
    allow = made_statement(is_allow=True, actions=["log:*"], resources=["*"])
    deny = made_statement(is_allow=False, actions=["log:ListShards"], resources=[where])
    rights = Rights([allow, deny])
    alternatives = ("log:ListShards", "log:GetCursorOrData")
    assert not rights.meets(alternatives, where, own="log:ListShards")
    assert rights.meets(alternatives, where, own="log:GetCursorOrData")
    assert rights.meets(alternatives, where)
    assert rights.meets(alternatives, f"{where}2", own="log:ListShards")
    assert not Rights([]).meets(alternatives, where, own="log:ListShards")
