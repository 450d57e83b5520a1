"""What strangers write and we read, without a server: every text is taken or refused by its own error."""

import json
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.ring import RING_SIZE
from shoal.server.sls.cursors import NoCursor, cursor_at, is_idle, offset_of
from shoal.server.sls.hosts import is_same_host, project_of
from shoal.server.sls.packing import RAW_BYTES_MAX, Malformed, Packing, TooMuch, unpacked
from shoal.server.sls.records import batches_of
from shoal.server.sls.signature import Signed, body_is_signed, claimed, is_right, signed_at_ms
from shoal.server.sls.wire import LogGroup, parsed
from shoal.wire.policies import parse_policy, policy_text
from tests.sls.messages import field, group, varint

SHARD = Shard(
    id=ShardId(0),
    begin=0,
    end=RING_SIZE,
    parents=(),
    status=ShardStatus.OPEN,
    first_offset=3,
    next_offset=9,
    created_ms=1_700_000_000_000,
)
LETTERS = st.text("MDEwNzk5OTA=+/-_ \n\0é", max_size=40) | st.text(max_size=20)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["date", "x-log-date", "content-md5", "x-log-content-sha256", "host", "x-acs-a", "x-log-a"]
    ),
    st.text(max_size=20) | st.sampled_from(["Mon, 16 Nov 2026 04:00:00 GMT", "20261116T040000Z", "0" * 64]),
)


@given(LETTERS | st.integers(-(10**20), 10**20).map(str))
def test_a_text_is_a_cursor_of_the_shard_or_none(text: str) -> None:
    try:
        offset = offset_of(SHARD, text)
    except NoCursor:
        return
    assert -1 <= offset <= SHARD.next_offset
    # A client that carries it about comes back with the same place, and the same news of itself.
    again = cursor_at(SHARD, offset, is_idle=is_idle(text))
    assert (offset_of(SHARD, again), is_idle(again)) == (offset, is_idle(text))


@given(st.integers(3, 9), st.booleans())
def test_a_cursor_is_a_number_to_who_does_arithmetic_on_it(offset: int, idle: bool) -> None:
    assert offset_of(SHARD, cursor_at(SHARD, offset, is_idle=idle)) == offset
    assert is_idle(cursor_at(SHARD, offset, is_idle=idle)) is idle


@given(
    st.text(max_size=60)
    | st.from_regex(r"LOG [A-Za-z0-9]{0,9}:[A-Za-z0-9+/=]{0,40}", fullmatch=True)
    | st.from_regex(
        r"SLS4-HMAC-SHA256 Credential=[a-z]{0,3}/[0-9]{7,9}/[a-z-]{0,5}/sls/aliyun_v4_request,"
        r"Signature=[0-9a-f]{60,66}",
        fullmatch=True,
    ),
    HEADERS,
    st.binary(max_size=10),
)
def test_an_authorization_that_was_guessed_lets_nobody_in(
    authorization: str, headers: dict[str, str], body: bytes
) -> None:
    claim = claimed(authorization)
    if claim is None:
        return
    request = Signed(method="GET", path="/", query=[("a", "b")], headers=headers)
    assert not is_right(claim, request, "secret")
    body_is_signed(claim, headers, body)
    when = signed_at_ms(claim, headers)
    assert when is None or isinstance(when, int)


@given(st.text(max_size=40), st.lists(st.text(max_size=10), max_size=2))
def test_a_host_is_a_project_or_the_server_itself(host: str, own: list[str]) -> None:
    project = project_of(host, own)
    assert project is None or project in host


@given(
    st.binary(max_size=40) | st.text(max_size=30).map(lambda text: b"http://" + text.encode()),
    st.text(max_size=20),
)
def test_a_target_speaks_of_the_same_host_or_not(target: bytes, host: str) -> None:
    assert is_same_host(target, host) in (True, False)


@given(st.sampled_from(list(Packing)), st.binary(max_size=200), st.none() | st.integers(0, 1 << 40))
def test_bytes_are_unpacked_to_what_they_say_or_refused(
    packing: Packing, body: bytes, size: int | None
) -> None:
    try:
        raw = unpacked(body, packing, size)
    except (Malformed, TooMuch):
        return
    assert len(raw) <= RAW_BYTES_MAX
    assert packing is Packing.PLAIN or len(raw) == size
    with suppress(Malformed, TooMuch):
        found = parsed(raw)
        if len(found.times):
            assert sum(batch.num_rows for batch in batches_of(found, 1)) == len(found.times)


SIZES = st.sampled_from([0, 1, 2, 127, 128, 129, 16_383, 16_384])
CONTENTS = st.binary(max_size=6) | st.tuples(SIZES, SIZES, st.integers(-2, 2), st.booleans()).map(
    lambda drawn: (
        b"\x0a"
        + varint(drawn[0])
        + b"k" * drawn[0]
        + b"\x12"
        + varint(drawn[1])
        + b"v" * (drawn[1] + drawn[2])
        + b"\x0a\x00" * drawn[3]
    )
)
FIELDS = (
    CONTENTS.map(lambda inner: field(2, inner))
    | st.integers(0, 1 << 64).map(lambda number: b"\x08" + varint(number))
    | st.binary(min_size=4, max_size=4).map(lambda number: b"\x25" + number)
    | st.sampled_from(
        [b"\x08\x01", b"\x08\x81\x00", b"\x12\x86\x80\x00\x0a\x01k\x12\x01v", b"\x25", b"\x1a\x00"]
    )
    | st.binary(max_size=4)
)
GROUPS = st.lists(
    st.lists(FIELDS, max_size=4).map(lambda fields: field(1, b"\x08\x01" + b"".join(fields))), max_size=6
).map(b"".join)


@given(GROUPS | st.binary(max_size=60), st.data())
def test_logs_that_are_read_together_are_what_they_are_alone(raw: bytes, data: st.DataObject) -> None:
    if raw and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw = raw[:place] + data.draw(st.binary(max_size=2)) + raw[place + 1 :]
    assert read(raw, 1) == read(raw, 2) == read(raw, 10**9)


def test_many_logs_of_which_any_byte_is_another_are_read_together_as_alone() -> None:
    good = group([(number, 5, [(b"key", b"v" * 20), (b"k", b"")]) for number in range(4)], (b"t", b"s", None))
    for place in range(len(good)):
        for byte in (0, 1, 0x0A, 0x12, 0x7F, 0x80, 0xFF, good[place] ^ 1, good[place] ^ 0x80):
            raw = good[:place] + bytes([byte]) + good[place + 1 :]
            assert read(raw, 1) == read(raw, 10**9), (place, byte)


def read(raw: bytes, together_min: int) -> object:
    """What is read, of logs side by side if they are so many; or that it is refused."""
    try:
        found = parsed(raw, together_min=together_min)
    except Malformed:
        return None
    return columns_of(found)


def columns_of(found: LogGroup) -> tuple[object, ...]:
    return (
        found.times.tolist(),
        found.nanoseconds.tolist(),
        found.ends.tolist(),
        found.keys.to_pylist(),
        found.values.to_pylist(),
        (found.topic, found.source, found.machine, found.tags),
    )


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Statement", "Version", "Effect", "Action", "Resource", "Condition", "x"]),
            inner | st.sampled_from(["Allow", "Deny", "*", "log:*", "acs:log:*:*:project/*", "1"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(values.map(json.dumps) | st.text(max_size=60))
def test_a_policy_is_refused_by_its_field_or_comes_back_from_its_own_text(text: str) -> None:
    try:
        statements = parse_policy(text)
    except InvalidInput:
        return
    assert parse_policy(policy_text(statements)) == statements
