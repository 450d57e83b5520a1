"""Forms of the dialect: what parameters and headers say, in our terms, and how answers look in theirs."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from shoal.core.errors import ShoalError, TooLarge
from shoal.core.model import DEFAULT_PROJECT, Shard, ShardId
from shoal.core.ring import RING_SIZE
from shoal.server.requests import Answer, Refused
from shoal.server.sls.asked import Asked
from shoal.server.sls.cursors import NoCursor, offset_of
from shoal.server.sls.errors import SlsError, code_of
from shoal.server.sls.packing import Packing

DAY_MS: Final = 86_400_000
FOREVER: Final = 3650
"""Days, as Aliyun says that nothing is ever removed."""


def project_named(asked: Asked) -> str:
    """The project of the request; one without is of the project that streams have without one."""
    return asked.project or DEFAULT_PROJECT


def offset_at_cursor(shard: Shard, cursor: str) -> int:
    """The offset of a cursor of this shard."""
    try:
        return offset_of(shard, cursor)
    except NoCursor as error:
        raise SlsError(400, "InvalidCursor", str(error)) from error


def shard_number(text: str) -> ShardId:
    """A shard, as paths name it."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise SlsError(400, "ParameterInvalid", "invalid shard id")
    return ShardId(int(text))


def raw_size(asked: Asked) -> int | None:
    """What a body says that it unpacks to; None if it does not."""
    text = asked.headers.get("x-log-bodyrawsize", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise SlsError(400, "InvalidBodyRawSize", "x-log-bodyrawsize is a number of bytes")
    return int(text)


def packing_of(text: str) -> Packing:
    """How a body says that it is compressed."""
    try:
        return Packing(text.strip().lower())
    except ValueError as error:
        raise SlsError(400, "InvalidCompressType", "compressed by lz4, zstd or deflate, or not") from error


def packing_wanted(accepted: str) -> Packing:
    """How an answer is to be compressed, by what a client takes."""
    names = {part.partition(";")[0].strip().lower() for part in accepted.split(",")}
    return next((one for one in (Packing.LZ4, Packing.ZSTD) if one.value in names), Packing.PLAIN)


def retention_ms(days: object) -> int | None:
    """How long records are kept; None is for ever."""
    if not isinstance(days, int) or isinstance(days, bool) or not 1 <= days <= FOREVER:
        raise SlsError(400, "ParameterInvalid", f"ttl is a number of days, 1 to {FOREVER}, which is for ever")
    return None if days == FOREVER else days * DAY_MS


def days_shown(kept_ms: int | None) -> int:
    """How long records are kept, as a ttl: in days, the last one begun."""
    return FOREVER if kept_ms is None else max(1, -(-kept_ms // DAY_MS))


def changed_retention_ms(days: object, kept_ms: int | None) -> int | None:
    """How long records are kept after an update. Clients send back what they were shown, to change something
    else: a ttl that is what is shown changes nothing, though it is less exact, or more than they may set."""
    is_as_shown = type(days) is int and days == days_shown(kept_ms)
    return kept_ms if is_as_shown else retention_ms(days)


def page_of(asked: Asked, found: list[str]) -> list[str]:
    """As much of a list as is asked for."""
    bounds = []
    for name, usual in (("offset", 0), ("size", len(found))):
        text = asked.query.get(name, "")
        if text and not (text.removeprefix("-").isdigit() and text.isascii() and len(text) < 12):
            raise SlsError(400, "ParameterInvalid", f"{name} is a number")
        bounds.append(int(text) if text else usual)
    offset, size = max(0, bounds[0]), bounds[1] if bounds[1] >= 0 else len(found)
    return found[offset : offset + size]


def project_shown(name: str) -> dict[str, str]:
    """A project, with all the keys that clients look for."""
    return {
        "projectName": name,
        "status": "Normal",
        "description": "",
        "region": "",
        "owner": "",
        "createTime": "",
        "lastModifyTime": "",
        "resourceGroupId": "",
    }


def shard_shown(shard: Shard) -> dict[str, Any]:
    """A shard in a list."""
    last = "f" * 32
    return {
        "shardID": shard.id,
        "status": "readwrite" if shard.is_open else "readonly",
        "inclusiveBeginKey": f"{shard.begin:032x}",
        "exclusiveEndKey": last if shard.end >= RING_SIZE else f"{shard.end:032x}",
        "createTime": shard.created_ms // 1000,
    }


def json_answer(value: Any) -> Answer:
    """An answer of JSON."""
    return Answer([json.dumps(value, separators=(",", ":")).encode()])


OK: Final = Answer([b"{}"])


def error_answer(error: SlsError | ShoalError | Refused) -> Answer:
    """An error as Aliyun's clients know it."""
    # What is left of a body that was not read to its end is not read any more.
    closes = isinstance(error, TooLarge) or (isinstance(error, Refused) and error.status is not None)
    if isinstance(error, Refused):
        error = error.error
    if isinstance(error, SlsError):
        status, code, text = error.status, error.code, error.text
    else:
        (status, code), text = code_of(error), str(error)
    told = json.dumps({"errorCode": code, "errorMessage": text}, separators=(",", ":")).encode()
    return Answer([told], status=HTTPStatus(status), closes=closes)
