"""The compression of bodies: never more is unpacked than the client said, nor than is taken at all."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import lz4.block
import zstandard

RAW_BYTES_MAX: Final = 32_000_000
"""Of one body, unpacked. The clients send at most 30 MB."""


class Malformed(Exception):
    """A body that is not what it says."""


class TooMuch(Exception):
    """A body that is, or unpacks to, more than is taken."""


class Packing(StrEnum):
    """How a body is compressed."""

    LZ4 = "lz4"
    ZSTD = "zstd"
    DEFLATE = "deflate"
    PLAIN = ""


def unpacked(body: bytes, packing: Packing, raw_size: int | None) -> bytes:
    """The body as it was, never more than `RAW_BYTES_MAX` of it; `raw_size` is what the client says it is."""
    if packing is Packing.PLAIN:
        if len(body) > RAW_BYTES_MAX:
            raise TooMuch(f"a body of {len(body)} bytes; at most {RAW_BYTES_MAX}")
        return body
    if raw_size is None:
        raise Malformed("x-log-bodyrawsize is missing: a compressed body says how long it was")
    if raw_size > RAW_BYTES_MAX:
        raise TooMuch(f"{raw_size} bytes uncompressed; at most {RAW_BYTES_MAX}")
    try:
        raw = _UNPACK[packing](body, raw_size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, zlib.error, ValueError, MemoryError) as error:
        raise Malformed(f"not {packing.value} of {raw_size} bytes: {error}") from error
    if len(raw) != raw_size:
        raise Malformed(f"x-log-bodyrawsize says {raw_size} bytes, and the body is another number of them")
    return raw


def packed(raw: bytes, packing: Packing) -> bytes:
    """A body for a client that takes this packing."""
    match packing:
        case Packing.LZ4:
            return bytes(lz4.block.compress(raw, store_size=False))
        case Packing.ZSTD:
            return zstandard.ZstdCompressor(level=1).compress(raw)
        case Packing.DEFLATE:
            return zlib.compress(raw, 1)
        case Packing.PLAIN:
            return raw


def _unpack_lz4(body: bytes, raw_size: int) -> bytes:
    if raw_size == 0 or not body:
        raise ValueError("an lz4 block is never empty")
    return bytes(lz4.block.decompress(body, uncompressed_size=raw_size))


def _unpack_zstd(body: bytes, raw_size: int) -> bytes:
    # By stream: `decompress` would believe the size in the frame, and reserve it.
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
        raw = reader.read(raw_size + 1)
    if len(raw) == raw_size:
        _check_frame(body)
    return raw


def _check_frame(body: bytes) -> None:
    """That a body, which unpacks to few enough bytes, is one whole frame: the reader stops where it has them,
    and looks neither at the checksum behind them nor at what follows."""
    whole = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    whole.decompress(body)
    if not whole.eof or whole.unused_data:
        raise ValueError("it is cut short, or something is behind it")


def _unpack_deflate(body: bytes, raw_size: int) -> bytes:
    whole = zlib.decompressobj()
    raw = whole.decompress(body, raw_size + 1)
    if len(raw) == raw_size and (not whole.eof or whole.unused_data):
        raise ValueError("it is cut short, or something is behind it")
    return raw


_UNPACK: Final[dict[Packing, Callable[[bytes, int], bytes]]] = {
    Packing.LZ4: _unpack_lz4,
    Packing.ZSTD: _unpack_zstd,
    Packing.DEFLATE: _unpack_deflate,
}
