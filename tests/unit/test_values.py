"""Values and errors on a wire: what goes in comes out, and nothing of another shape gets through."""

import json
from dataclasses import replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.checkpoint import Checkpoint, beyond
from shoal.core.errors import InvalidInput, ShoalError, StoreFailure, leaves
from shoal.core.group import Group, GroupSettings, Member
from shoal.core.holding import Assignment, Granted
from shoal.core.lease import Change, ChangeKind, LeaseRow
from shoal.core.model import Shard, ShardId, ShardStatus, StreamInfo, StreamName, StreamSettings
from shoal.native.calls import CALLS, arguments_from, arguments_to
from shoal.native.statuses import TABLE, status_of
from shoal.ports import MemberView, Place, ShardEnd
from shoal.wire.faults import error_from, error_to, fields
from shoal.wire.frame import cut, packed, unpacked
from shoal.wire.values import decode_field, decoder, encode_field, encoder, from_json, to_json

STREAM = StreamInfo(
    full_name=StreamName("shop", "orders"),
    id=7,
    version=3,
    settings=StreamSettings(schema=b"\x00\xff", retention_ms=5),
    shards=(
        Shard(id=ShardId(0), begin=0, end=2**127, status=ShardStatus.CLOSED, closed_ms=4),
        Shard(id=ShardId(1), begin=2**127, end=2**128, parents=(ShardId(0),)),
    ),
)
ROW = LeaseRow(
    group="g",
    shard=ShardId(1),
    born=2,
    revision=3,
    lease_id=4,
    timeout_ms=5,
    interval_ms=6,
    parents_born=(1, 2),
)


def crossed(kind: Any, value: object) -> Any:
    return from_json(kind, to_json(kind, value), is_strict=False)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (StreamInfo, STREAM),
        (StreamInfo | None, None),
        (
            Group,
            Group(
                id=1,
                stream_id=2,
                name="g",
                members={"a": Member(incarnation="a", name="n", timeout_ms=1, interval_ms=1)},
            ),
        ),
        (
            Assignment,
            Assignment(
                number=1, version=2, timeout_ms=3, granted=(Granted(shard=ShardId(0), epoch=1, checkpoint=9),)
            ),
        ),
        (Change, Change(kind=ChangeKind.TAKE, old=ROW, new=replace(ROW, revision=4), wants_number=True)),
        (list[tuple[Place, int]], [(ShardEnd(1, ShardId(2)), 3), (MemberView(4, "x"), 5)]),
        (GroupSettings, GroupSettings(in_order=False, handover_timeout_ms=None)),
        (dict[ShardId, int], {ShardId(3): 4}),
    ],
)
def test_a_value_comes_out_as_it_went_in(kind: Any, value: object) -> None:
    assert crossed(kind, value) == value


def test_a_checkpoint_keeps_its_marks() -> None:
    came = crossed(int, Checkpoint(5, [(7, 9)]))
    assert (came, beyond(came)) == (5, ((7, 9),))


def test_every_call_can_be_encoded_and_decoded() -> None:
    for call in CALLS.values():
        for _, kind, _ in call.fields:
            assert callable(encoder(kind))
            assert callable(decoder(kind, True))
        assert callable(encoder(call.answer))
        assert callable(decoder(call.answer, False))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"[]", "body"),
        (b"{", "body"),
        (b"\xff", "body"),
        (b'{"name":"a","nome":1}', "nome"),
        (b"{}", "name"),
        (b'{"name":1}', "stream"),
        (b'{"name":"../../etc/passwd"}', "project"),
        (b'{"name":"a/../b"}', "stream"),
        (b'{"name":"a\\u0000"}', "stream"),
        (b'{"name":NaN}', "body"),
        (b"[" * 100_000, "body"),
    ],
)
def test_what_has_another_shape_is_refused_with_its_place(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        arguments_from(CALLS["hub", "describe_stream"], body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=8,
    )
)
def test_no_json_gets_past_with_anything_but_invalid_input(junk: Any) -> None:
    for call in CALLS.values():
        body = json.dumps({name: junk for name, _, _ in call.fields}).encode()
        try:
            found = arguments_from(call, body)
        except InvalidInput:
            continue
        assert arguments_to(call, found)


# --- Errors. ------------------------------------------------------------------------------------------


def sample(kind: Any) -> Any:
    """Some value of an annotation."""
    if kind is StreamInfo:
        return STREAM
    if get_origin(kind) is not None and type(None) not in get_args(kind):
        return [sample(get_args(kind)[0])]
    return {int: 3, float: 1.5, str: "x", object: "x"}.get(kind, "x")


@pytest.mark.parametrize("leaf", sorted(leaves(), key=str))
def test_every_error_arrives_with_its_class_its_text_and_its_fields(leaf: Any) -> None:
    own = next(vars(kind)["__init__"] for kind in leaf.__mro__ if "__init__" in vars(kind))
    wanted = {name: sample(kind) for name, kind in get_type_hints(own).items() if name != "return"}
    error: ShoalError = leaf(**wanted)
    sent = json.loads(json.dumps(error_to(error, encode_field)))
    came = error_from(sent, decode_field)
    assert type(came) is leaf
    known: Any = leaf
    assert str(came) == str(error)
    told = {name: value for name, value in vars(error).items() if name in fields(known)}
    assert {name: getattr(came, name) for name in told} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items()
    }


def test_every_error_has_a_line_in_the_table_of_statuses() -> None:
    assert leaves() == set(TABLE)
    assert all(400 <= status < 600 for status in TABLE.values())
    assert status_of(InvalidInput("a", 1, "b")) == 400


def test_an_error_of_a_newer_release_is_a_failure_with_its_text() -> None:
    came = error_from({"error": "SomethingNew", "text": "what happened"}, decode_field)
    assert isinstance(came, StoreFailure)
    assert "what happened" in str(came)


# --- Frames. ------------------------------------------------------------------------------------------


def test_a_frame_is_its_label_and_its_batches() -> None:
    body = b"".join(packed(GroupSettings, GroupSettings(), [b"abc", b"", b"d"]))
    label, rest = unpacked(GroupSettings, body, is_strict=True)
    assert label == GroupSettings()
    assert [bytes(part) for part in cut(rest, [3, 0, 1])] == [b"abc", b"", b"d"]


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xff\xff\xff\xff{}", b"\x00\x00\x00\x02{}x"])
def test_a_frame_that_lies_about_its_length_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInput):
        list(cut(unpacked(GroupSettings, body, is_strict=True)[1], [5]))


@pytest.mark.parametrize("sizes", [[2], [4], [-1, 4], [3, 0, 1]])
def test_batches_that_are_not_as_long_as_said_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InvalidInput):
        list(cut(memoryview(b"abc"), sizes))


@pytest.mark.parametrize("text", ["½", "a", "YQ=", "Y Q==", "YQ==\n", "\ud800"])
def test_bytes_that_are_not_base64_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        decoder(bytes, True)(text, "schema")
