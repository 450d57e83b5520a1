"""The parts of the SLS dialect that decide or parse, without a server."""

import base64
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.access import ACTIONS, Rights, made_statement
from shoal.core.checkpoint import Save
from shoal.core.claims import first_claims
from shoal.core.errors import NotOwner, UnknownConsumer, leaves
from shoal.core.events import Join, Letting, Rewind, Sync
from shoal.core.group import Claim, Group, GroupSettings, Member, MemberStatus, ShardState
from shoal.core.limits import GROUP_TIMEOUT_S_MAX
from shoal.core.membership import Beat, beaten
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.ownership import step
from shoal.core.reported import (
    Passed,
    beats_every_ms,
    begun_at_end,
    checkpointed,
    joining,
    let_go_by,
    member_named,
    run_dry,
    still_held,
    told_start,
    watched_for_ms,
)
from shoal.core.ring import RING_SIZE
from shoal.server.sls.agents import consumers_in, is_consumer, is_java, spelled
from shoal.server.sls.cursors import NoCursor, cursor_at, kept_from, offset_of
from shoal.server.sls.errors import TABLE, SlsError
from shoal.server.sls.forms import FOREVER, changed_retention_ms, days_shown
from shoal.server.sls.hosts import project_of
from shoal.server.sls.needs import NEEDS, needs_of
from shoal.server.sls.packing import RAW_BYTES_MAX, Malformed, Packing, TooMuch, packed, unpacked
from shoal.server.sls.routes import CALLS, SEARCH
from shoal.server.sls.signature import Signed, claimed, is_right, signature_v1, signature_v4, signed_at_ms

# --- Compression. ---


@given(st.binary(min_size=1, max_size=2000), st.sampled_from([Packing.LZ4, Packing.ZSTD, Packing.DEFLATE]))
def test_what_is_packed_comes_back(raw: bytes, packing: Packing) -> None:
    assert unpacked(packed(raw, packing), packing, len(raw)) == raw
    with pytest.raises(Malformed):
        unpacked(packed(raw, packing), packing, len(raw) + 1)
    with pytest.raises(Malformed):
        unpacked(packed(raw, packing), packing, len(raw) - 1)
    with pytest.raises(Malformed):
        unpacked(packed(raw, packing), packing, None)


@given(st.binary(max_size=200), st.sampled_from(list(Packing)), st.integers(0, 5000))
def test_bodies_of_strangers_are_unpacked_or_malformed(body: bytes, packing: Packing, size: int) -> None:
    with suppress(Malformed):
        unpacked(body, packing, size)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_a_body_without_its_end_is_refused_though_its_length_is_right(cut: int) -> None:
    raw = b"log " * 1_000
    with_checksum = zstandard.ZstdCompressor(write_checksum=True).compress(raw)
    for body, packing in ((zlib.compress(raw), Packing.DEFLATE), (with_checksum, Packing.ZSTD)):
        assert unpacked(body, packing, len(raw)) == raw
        with pytest.raises(Malformed):
            unpacked(body[:-cut], packing, len(raw))
        with pytest.raises(Malformed):
            unpacked(body + b"j" * cut, packing, len(raw))


def test_a_bomb_is_not_unpacked() -> None:
    raw = bytes(400_000_000)
    bombs = [
        (Packing.ZSTD, zstandard.ZstdCompressor().compress(raw)),
        (Packing.DEFLATE, zlib.compress(raw, 1)),
        (Packing.LZ4, lz4.block.compress(raw[:100_000_000], store_size=False)),
    ]
    del raw
    tracemalloc.start()
    try:
        for packing, bomb in bombs:
            with pytest.raises(Malformed):
                unpacked(bomb, packing, 1_000_000)
            with pytest.raises(TooMuch):
                unpacked(bomb, packing, RAW_BYTES_MAX + 1)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


# --- Cursors, hosts, errors. ---

SHARD = Shard(id=ShardId(0), begin=0, end=RING_SIZE, created_ms=1_700_000_000_000, next_offset=10)


@given(st.integers(0, 10))
def test_a_cursor_is_a_number_that_clients_can_count_with(offset: int) -> None:
    cursor = cursor_at(SHARD, offset)
    assert offset_of(SHARD, cursor) == offset_of(SHARD, cursor + "\n") == offset
    before = base64.b64encode(str(int(base64.b64decode(cursor)) - 1).encode()).decode()
    assert offset_of(SHARD, before) == offset - 1


@given(st.text(max_size=100))
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(NoCursor):
        offset_of(SHARD, text)


def test_a_cursor_of_another_life_of_the_stream_is_refused() -> None:
    later = Shard(id=ShardId(0), begin=0, end=RING_SIZE, created_ms=1_700_000_001_000, next_offset=10)
    with pytest.raises(NoCursor):
        offset_of(later, cursor_at(SHARD, 3))


@pytest.mark.parametrize(
    ("offset", "stop", "begins"),
    [
        (2, None, 5),
        (7, None, 7),
        (2, 8, 5),
        (2, 5, 5),
        (2, 3, 3),  # All that was wanted has expired.
        (3, 3, 3),
        (4, 3, 5),
        (7, 3, 7),  # Nobody is led back.
    ],
)
def test_what_retention_took_leads_nobody_past_the_end_that_it_wants(
    offset: int, stop: int | None, begins: int
) -> None:
    assert kept_from(replace(SHARD, first_offset=5), offset, stop) == begins


@pytest.mark.parametrize(
    ("host", "own", "project"),
    [
        ("127.0.0.1", (), None),
        ("127.0.0.1:7400", (), None),
        ("proj.127.0.0.1", (), "proj"),
        ("localhost:7400", (), None),
        ("proj.localhost", (), "proj"),
        ("loghub.test", (), None),
        ("proj.loghub.test:80", (), "proj"),
        ("cn-hangzhou.log.aliyuncs.com", (), None),
        ("proj.cn-hangzhou.log.aliyuncs.com", (), "proj"),
        ("logs.example.com", ("logs.example.com",), None),
        ("proj.logs.example.com:7400", ("logs.example.com",), "proj"),
        ("proj.hub", ("hub",), "proj"),
        ("[::1]:7400", (), None),
    ],
)
def test_a_project_is_what_stands_before_the_servers_name(
    host: str, own: tuple[str, ...], project: str | None
) -> None:
    assert project_of(host, own) == project


@pytest.mark.parametrize(
    ("agent", "groups", "found"),
    [
        ("log-python-sdk-v-0.9, linux-consumergroup-g-one", ["g", "h"], [("g", "one")]),
        ("log-python-sdk-v-0.9, linux-consumergroup-G-one", ["g", "h"], []),
        ("x-consumergroup-a-b-one", ["a", "a-b"], [("a", "b-one"), ("a-b", "one")]),
        ("Consumer-Library-g/one", ["g", "h"], [("g", "one")]),
        ("Consumer-Library-G/one", ["g", "h"], [("g", "one")]),
        ("Consumer-Library-G/one", ["g", "G"], [("G", "one")]),
        ("Consumer-Library-Ab/one", ["ab", "AB"], []),
        ("Consumer-Library-G/one", ["secret-g"], []),
        ("Consumer-Library-g", ["g"], []),
        ("python-requests", ["g"], []),
    ],
)
def test_consumers_say_who_they_are_and_javas_are_not_particular_about_capitals(
    agent: str, groups: list[str], found: list[tuple[str, str]]
) -> None:
    assert consumers_in(agent, groups, lambda _: True) == found
    assert consumers_in(agent, groups, lambda _: False) == []
    assert is_consumer(agent) is ("python-requests" not in agent)
    assert is_java(agent) is agent.startswith("Consumer-Library")


def test_groups_in_which_one_may_do_nothing_do_not_count_among_those_that_are_spelled_alike() -> None:
    assert spelled("Ab", ["ab", "AB"], lambda _: True) is None
    assert spelled("Ab", ["ab", "AB"], {"ab"}.__contains__) == "ab"
    assert spelled("Ab", ["ab", "Ab"], {"ab"}.__contains__) == "ab"
    assert spelled("Ab", ["ab", "Ab"], lambda _: True) == "Ab"


def test_every_error_has_a_code_of_aliyuns() -> None:
    assert leaves() == set(TABLE)


def test_every_call_has_its_needs_and_what_may_be_asked_is_an_action_of_policies() -> None:
    assert set(NEEDS) == {*CALLS.values(), SEARCH}
    for call in NEEDS:
        for need in needs_of(call, "p", {"logstore": "s", "group": "g"}):
            assert set(need.actions) <= ACTIONS
            assert isinstance(need.where, str)


# --- Signatures. ---


def test_both_signatures_are_good_for_their_secret_alone() -> None:
    headers = {
        "host": "proj.loghub.test",
        "date": "Sun, 15 Nov 2026 06:20:17 GMT",
        "x-log-date": "20261115T062017Z",
        "x-log-apiversion": "0.6.0",
        "x-log-content-sha256": "e3b0",
    }
    request = Signed(method="GET", path="/logstores/组", query=[("b", "x y"), ("a", "")], headers=headers)
    first = claimed(f"LOG id:{signature_v1(request, 'secret')}")
    fourth = claimed(
        "SLS4-HMAC-SHA256 Credential=id/20261115/cn/sls/aliyun_v4_request,"
        f"Signature={signature_v4(request, 'secret', 'cn')}"
    )
    for claim in (first, fourth):
        assert claim is not None
        assert (
            signed_at_ms(claim, headers) == datetime(2026, 11, 15, 6, 20, 17, tzinfo=UTC).timestamp() * 1000
        )
        assert is_right(claim, request, "secret")
        assert not is_right(claim, request, "guess")
        for changed in (
            replace(request, path="/logstores/b"),
            replace(request, query=[]),
            replace(request, method="POST"),
        ):
            assert not is_right(claim, changed, "secret")


@given(st.text(max_size=80))
def test_an_authorization_of_no_known_form_is_none(text: str) -> None:
    assert claimed(text) is None
    assert claimed("LOG " + text + ":") is None


# --- Settings. ---


@given(st.none() | st.integers(1, 10**13))
def test_a_ttl_that_is_what_is_shown_leaves_retention_alone(kept_ms: int | None) -> None:
    assert changed_retention_ms(days_shown(kept_ms), kept_ms) == kept_ms


def test_a_ttl_that_is_not_what_is_shown_is_days_or_for_ever() -> None:
    hour = 3_600_000
    assert changed_retention_ms(2, hour) == 48 * hour
    assert changed_retention_ms(1, 48 * hour) == 24 * hour
    assert changed_retention_ms(FOREVER, hour) is None
    for wrong in (0, FOREVER + 1, True, "1", 1.0):
        with pytest.raises(SlsError):
            changed_retention_ms(wrong, hour)


# --- Groups. ---


def group(state: ShardState = ShardState.ALREADY_ALLOC, owner: str | None = "sls-1", **more: int) -> Group:
    claim = Claim(
        shard=ShardId(0),
        state=state,
        owner=owner,
        epoch=5,
        owner_epoch=more.get("owner_epoch", 5),
        checkpoint=3,
    )
    members = {
        key: Member(incarnation=key, name=name, timeout_ms=1, interval_ms=1)
        for key, name in (("sls-1", "one"), ("native", "two"))
    }
    return Group(id=1, stream_id=1, name="g", members=members, claims=(claim,))


def told(now: Group) -> Group:
    """The same, whose shard someone has said the start of."""
    return replace(now, claims=tuple(replace(claim, is_told=True) for claim in now.claims))


def checkpoint(
    now: Group, shard: Shard, offset: int, *, consumer: str, is_forced: bool
) -> Save | Rewind | Passed:
    return checkpointed(now, shard, offset, consumer=consumer, is_forced=is_forced, prefix="sls-")


def test_only_a_shard_that_was_asked_back_and_is_not_reported_is_let_go() -> None:
    assert let_go_by(group(), "sls-1", []) == []
    asked_back = group(ShardState.TRANSFER)
    assert let_go_by(asked_back, "sls-1", [0]) == []
    assert let_go_by(asked_back, "sls-1", []) == [Letting(shard=ShardId(0), epoch=5)]
    assert still_held(asked_back, "sls-1", [0, 9]) == {0: 5}
    assert still_held(asked_back, "native", [0]) == {}


def lets_go_ms(timeout: int, interval: int) -> int:
    """How long after its last answer Aliyun's Python client lets go; with a timeout of 4 s, 12.05 s were
    seen. A heartbeat without an answer is tried ten times, a second apart; then it looks at the clock."""
    begins = interval
    while (ends := begins + 10_050) <= timeout + interval:
        begins = max(ends, begins + interval)
    return ends


@given(st.integers(1, int(GROUP_TIMEOUT_S_MAX * 1000)))
def test_a_client_is_watched_for_longer_than_it_keeps_its_shards_and_its_beats_are_taken(
    timeout: int,
) -> None:
    interval = beats_every_ms(timeout)
    assert watched_for_ms(timeout) > lets_go_ms(timeout, interval)
    beat = Beat(
        incarnation="sls-1",
        number=1,
        timeout_ms=watched_for_ms(timeout),
        interval_ms=interval,
        held={},
        seen=0,
    )
    member = replace(group().members["sls-1"], assigned=1)
    assert beaten(GroupSettings(timeout_ms=timeout), member, beat).timeout_ms == watched_for_ms(timeout)


def test_a_client_is_known_by_its_name_among_those_of_its_kind() -> None:
    found = member_named(group(), "one", "sls-")
    assert found is not None
    assert found.incarnation == "sls-1"
    assert member_named(group(), "two", "sls-") is None


def test_of_newcomers_of_one_name_only_the_first_joins() -> None:
    def newcomer(name: str) -> Join:
        return Join(name=name, incarnation="sls-2", timeout_ms=20_000, interval_ms=10_000)

    assert joining(group(), newcomer("one"), "sls-") == Sync()
    # A native consumer of that name is another kind of member, and a newer one bars it, as among its own.
    for name in ("two", "three"):
        assert joining(group(), newcomer(name), "sls-") == newcomer(name)
    barred = {key: replace(one, status=MemberStatus.BARRED) for key, one in group().members.items()}
    assert joining(replace(group(), members=barred), newcomer("one"), "sls-") == newcomer("one")


def test_a_holders_checkpoint_is_saved_and_leads_back_only_as_a_new_beginning() -> None:
    def saved(offset: int, now: Group) -> object:
        return checkpoint(now, SHARD, offset, consumer="one", is_forced=True)

    assert saved(7, group()) == Save(shard=ShardId(0), epoch=5, offset=7)
    assert isinstance(saved(2, group()), Rewind)
    assert saved(7, group(owner_epoch=4)) == Passed(is_stale=True)


def test_a_checkpoint_of_who_does_not_hold_the_shard_moves_nothing_under_its_holder() -> None:
    for offset in (1, 7):
        assert checkpoint(group(), SHARD, offset, consumer="two", is_forced=True) == Passed(is_stale=True)
    free = group(ShardState.NOT_ALLOC, None)
    assert isinstance(checkpoint(free, SHARD, 7, consumer="two", is_forced=True), Rewind)
    assert checkpoint(free, SHARD, 1, consumer="two", is_forced=True) == Passed(is_stale=True)
    with pytest.raises(NotOwner):
        checkpoint(group(), SHARD, 7, consumer="two", is_forced=False)
    with pytest.raises(UnknownConsumer):
        checkpoint(group(), SHARD, 7, consumer="nobody", is_forced=False)


def test_a_native_member_of_the_same_name_is_another_consumer() -> None:
    closed = replace(SHARD, status=ShardStatus.CLOSED)
    held = group(owner="native")
    assert held.members["native"].name == "two"
    for offset in (2, 7, SHARD.next_offset):
        assert checkpoint(held, SHARD, offset, consumer="two", is_forced=True) == Passed(is_stale=True)
        with pytest.raises(NotOwner):
            checkpoint(held, SHARD, offset, consumer="two", is_forced=False)
    assert begun_at_end(held, closed, "two", "sls-") is None


def test_a_person_moves_a_checkpoint_wherever_it_is_to_be() -> None:
    for offset in (1, 7):
        assert isinstance(checkpoint(group(), SHARD, offset, consumer="", is_forced=True), Rewind)
    assert checkpoint(told(group()), SHARD, 3, consumer="", is_forced=True) == Passed()


def test_where_a_shard_stands_already_is_news_to_a_group_that_was_not_told() -> None:
    free = group(ShardState.NOT_ALLOC, None)
    for consumer, now in (("", group()), ("", free), ("two", free)):
        act = checkpoint(now, SHARD, 3, consumer=consumer, is_forced=True)
        assert isinstance(act, Rewind)
        assert act.positions == {0: 3}
        assert checkpoint(told(now), SHARD, 3, consumer=consumer, is_forced=True) == Passed()
    over = group(ShardState.OVER, None)
    assert checkpoint(over, SHARD, 3, consumer="", is_forced=True) == Passed()


def test_a_client_begins_by_its_own_settings_only_where_nobody_has_said_where() -> None:
    (claim,) = group().claims
    kept = replace(SHARD, first_offset=3)
    assert told_start(claim, kept) is None
    assert told_start(replace(claim, is_told=True), kept) == 3
    assert told_start(claim, SHARD) == 3
    assert told_start(replace(claim, restart=0, is_told=True), kept) == 0


def test_a_shard_that_is_born_into_a_group_is_told_and_one_that_was_there_is_if_its_start_was_named() -> None:
    whole = SHARD
    for is_told in (False, True):
        claims = first_claims([whole], {whole.id: 0}, is_bound=True, is_told=is_told)
        now = Group(id=1, stream_id=1, name="g", claims=claims)
        assert [claim.is_told for claim in now.claims] == [is_told]
        half = RING_SIZE // 2
        children = [
            replace(whole, id=ShardId(number), begin=begin, end=end, parents=(whole.id,))
            for number, begin, end in ((1, 0, half), (2, half, RING_SIZE))
        ]
        parent = replace(whole, status=ShardStatus.CLOSED)
        after = step(now, Sync(), [parent, *children], {}).group
        assert [claim.is_told for claim in after.claims] == [is_told, True, True]
        reset = step(now, Rewind(positions={whole.id: 0}, why="a test"), [whole], {}).group
        assert [claim.is_told for claim in reset.claims] == [True]


def test_a_closed_shard_with_nothing_left_is_over_for_its_holder() -> None:
    closed = Shard(
        id=ShardId(0), begin=0, end=RING_SIZE, status=ShardStatus.CLOSED, first_offset=10, next_offset=10
    )
    done = Save(shard=ShardId(0), epoch=5, offset=10)
    assert run_dry(group(), "sls-1", [closed]) == [done]
    assert run_dry(group(), "sls-1", [SHARD]) == []
    assert begun_at_end(group(), closed, "one", "sls-") == done
    assert begun_at_end(group(), closed, "two", "sls-") is None
    assert begun_at_end(group(), SHARD, "one", "sls-") is None
    assert begun_at_end(told(group()), closed, "one", "sls-") is None


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("get_logstore", "log:GetLogStore"),
        ("list_shards", "log:ListShards"),
        ("get_checkpoints", "log:GetConsumerGroupCheckPoint"),
        ("get_project", "log:GetProject"),
        ("update_group", "log:UpdateConsumerGroup"),
    ],
)
def test_who_is_denied_a_calls_own_action_may_not_make_it(call: str, action: str) -> None:
    allow = made_statement(is_allow=True, actions=["log:*"], resources=["*"])
    deny = made_statement(is_allow=False, actions=[action], resources=["*"])
    needs = needs_of(call, "shop", {"logstore": "orders", "group": "billing"})
    assert all(Rights([allow]).meets(need.actions, str(need.where), need.own) for need in needs)
    assert not all(Rights([allow, deny]).meets(need.actions, str(need.where), need.own) for need in needs)
