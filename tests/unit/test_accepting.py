"""Batches that strangers have made: what is not sound is refused, and nothing is unpacked without a bound."""

import struct

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, TooLarge
from shoal.core.limits import BATCH_BYTES_MAX
from shoal.core.model import Compression
from shoal.wire.accepting import accepted
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout

LAYOUT = Layout(None)
BATCH = fit_records(LAYOUT, [b"value"] * 50, [b"key"] * 50, [1] * 50, [{"a": b"b"}] * 50)
TINY = fit_records(LAYOUT, [b"value"], [b"key"], [1], [{"a": b"b"}])


def signed(message: bytes) -> memoryview:
    return memoryview(message + xxhash.xxh3_64_digest(message))


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("batch", [BATCH, TINY], ids=["many", "one"])
def test_a_batch_of_ours_is_accepted(batch: pa.RecordBatch, compression: Compression) -> None:
    number, payload = LAYOUT.encode(batch, compression)
    assert accepted(LAYOUT, number, memoryview(payload)).equals(batch)
    shifted = memoryview(b"x" + payload)[1:]
    assert accepted(LAYOUT, number, shifted).equals(batch)


def test_a_record_alone_is_not_compressed() -> None:
    packed = {compression: LAYOUT.encode(TINY, compression) for compression in Compression}
    assert len(set(packed.values())) == 1


@given(st.data())
@settings(max_examples=300)
def test_whatever_is_changed_in_a_batch_it_is_sound_or_refused(data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from(list(Compression)))
    number, payload = LAYOUT.encode(data.draw(st.sampled_from([BATCH, TINY])), compression)
    message = bytearray(payload[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del message[data.draw(st.integers(0, len(message))) :]
    try:
        batch = accepted(LAYOUT, number, signed(bytes(message)))
    except InvalidInput:
        return
    batch.validate(full=True)
    assert len(batch.to_pylist()) == batch.num_rows


@pytest.mark.parametrize("payload", [b"", b"12345678", b"\xff" * 64, b"\x00" * 64, b"x" * 7])
def test_junk_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInput):
        accepted(LAYOUT, 0, memoryview(payload))


def test_a_batch_that_would_unpack_to_a_great_deal_is_refused_before_it_is() -> None:
    bomb = fit_records(LAYOUT, [bytes(30_000_000)], [None], [1], None)
    number, payload = LAYOUT.encode(bomb, Compression.ZSTD)
    assert len(payload) < 10_000
    before = pa.total_allocated_bytes()
    with pytest.raises(TooLarge, match=str(2 * BATCH_BYTES_MAX)):
        accepted(LAYOUT, number, memoryview(payload))
    assert pa.total_allocated_bytes() == before


def test_a_buffer_that_claims_to_be_huge_is_refused_before_room_is_made() -> None:
    number, payload = LAYOUT.encode(BATCH, Compression.LZ4)
    message = bytearray(payload[:-8])
    size = struct.unpack_from("<i", message, 4)[0]
    place = 8 + size
    while struct.unpack_from("<q", message, place)[0] in (0, -1):
        place += 8
    struct.pack_into("<q", message, place, 1 << 50)
    with pytest.raises(InvalidInput):
        accepted(LAYOUT, number, signed(bytes(message)))


def test_a_layout_that_is_none_and_a_digest_that_is_wrong_are_refused() -> None:
    number, payload = LAYOUT.encode(BATCH, Compression.LZ4)
    with pytest.raises(InvalidInput, match="layout=7"):
        accepted(LAYOUT, 7, memoryview(payload))
    with pytest.raises(InvalidInput):
        accepted(LAYOUT, number, memoryview(payload[:-1] + b"?"))


def test_times_outside_the_years_and_headers_without_bytes_are_refused() -> None:
    times = BATCH.set_column(
        0, BATCH.schema.field(0), pa.array([-1] * 50, pa.int64()).cast(BATCH.schema.field(0).type)
    )
    with pytest.raises(InvalidInput, match="timestamp"):
        accepted(LAYOUT, 1, memoryview(LAYOUT.encode(times, Compression.NONE)[1]))
    empty = pa.array([[("a", None)]] * 50, BATCH.schema.field("headers").type)
    place = BATCH.schema.get_field_index("headers")
    headers = BATCH.set_column(place, BATCH.schema.field(place), empty)
    with pytest.raises(InvalidInput, match="headers"):
        accepted(LAYOUT, 1, memoryview(LAYOUT.encode(headers, Compression.NONE)[1]))


def test_what_is_remembered_of_one_batch_lets_no_other_in() -> None:
    number, payload = LAYOUT.encode(TINY, Compression.LZ4)
    for _ in range(2):
        assert accepted(LAYOUT, number, memoryview(payload)).equals(TINY)
        for message in (payload[:-8] + bytes(8), payload[:-16]):
            with pytest.raises(InvalidInput, match="not as long as it says"):
                accepted(LAYOUT, number, signed(message))


def test_what_a_compressed_buffer_claims_is_looked_up_in_each_batch_anew() -> None:
    number, payload = LAYOUT.encode(BATCH, Compression.ZSTD)
    assert accepted(LAYOUT, number, memoryview(payload)).equals(BATCH)
    message = bytearray(payload[:-8])
    body = 8 + struct.unpack_from("<i", message, 4)[0]
    claimed = next(at for at in range(body, len(message), 8) if struct.unpack_from("<q", message, at)[0] > 0)
    for claims, error in ((4 * BATCH_BYTES_MAX, TooLarge), (-2, InvalidInput)):
        struct.pack_into("<q", message, claimed, claims)
        with pytest.raises(error):
            accepted(LAYOUT, number, signed(bytes(message)))
