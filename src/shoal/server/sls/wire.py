"""LogHub's messages (proto2: LogGroup, Log, Content), read by hand: bytes in, columns out, within bounds.

Strangers send them: every length is checked against what is there, and fields are counted before they are
kept. A group is thousands of small messages, so no Python runs for each of them:

1. Where each log is, in one pass over the group (`_scanned`).
2. All logs are read side by side, a field of each at a time (`_Logs.together`): its number, or where its
   contents are. A log that has something unusual next, or nearly no companions left, is read on alone.
3. Where key and value are in all contents at once (`_pairs`); what is unusual, one by one.
4. Arrow takes the bytes from those places.

What is read together is what it would be if it were read alone: `_next`, which knows all wire types, is what
decides whenever there is a doubt. Unknown fields are passed over, as in the protobuf encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shoal.server.sls.packing import Malformed, TooMuch
from shoal.wire.layout import MEMORY

LOGS_MAX: Final = 512_000
"""Of one group: as many as the clients send."""
CONTENTS_MAX: Final = LOGS_MAX
"""Of one group: so that as many logs as the clients send may each have one."""
FIELDS_MAX: Final = 2_000_000
"""Of one group, of every kind: what is passed over takes time, too."""
TAGS_MAX: Final = 1_000

Places = NDArray[np.int64]
Octets = NDArray[np.uint8]


@dataclass(slots=True, kw_only=True)
class LogGroup:
    """One group, as columns. `ends[i]` is where the contents of log `i` end in `keys` and `values`; a log
    without nanoseconds has `NO_NUMBER`."""

    times: Places
    nanoseconds: Places
    ends: Places
    keys: pa.BinaryArray
    values: pa.BinaryArray
    topic: bytes | None = None
    source: bytes | None = None
    machine: bytes | None = None
    tags: list[tuple[bytes, bytes]] = field(default_factory=list)


NO_NUMBER: Final = -1


def parsed(raw: bytes, *, together_min: int = 24) -> LogGroup:
    """A LogGroup from its bytes. So many logs are read side by side at least; fewer are quicker alone."""
    count = _Count()
    scanned = _scanned(raw, count)
    logs = _Logs(raw, scanned, count)
    octets = np.frombuffer(raw + bytes(_BEYOND), dtype=np.uint8)
    logs.together(octets, together_min)
    logs.alone()
    if NO_NUMBER in logs.times:
        raise Malformed("a log has no time")
    lows, highs = logs.contents()
    if len(lows) < together_min:
        spans = zip(lows.tolist(), highs.tolist(), strict=True)
        keys, values = _cut(raw, [_pair(raw, low, high, count) for low, high in spans])
    else:
        keys, values = _taken(raw, _pairs(raw, octets, lows, highs, count))
    return LogGroup(
        times=logs.times,
        nanoseconds=logs.nanoseconds,
        # Contents that begin before the end of a log are in it, or in one before it.
        ends=np.searchsorted(lows, logs.highs, side="right"),
        keys=keys,
        values=values,
        topic=scanned.names.get(3),
        source=scanned.names.get(4),
        machine=scanned.names.get(5),
        tags=scanned.tags,
    )


class _Count:
    """Fields of every kind and depth that were read one by one, or side by side."""

    def __init__(self) -> None:
        self._fields = 0

    def add(self, fields: int = 1) -> None:
        self._fields += fields
        if self._fields > FIELDS_MAX:
            raise TooMuch(f"a group has at most {FIELDS_MAX} fields of any kind")


# --- 1. The fields of the group. ---------------------------------------------------------------------


@dataclass(slots=True)
class _Scanned:
    lows: list[int] = field(default_factory=list)
    highs: list[int] = field(default_factory=list)
    names: dict[int, bytes] = field(default_factory=dict)
    tags: list[tuple[bytes, bytes]] = field(default_factory=list)


def _scanned(raw: bytes, count: _Count) -> _Scanned:
    """Where the logs are, and the rest of a group."""
    found = _Scanned()
    at, high = 0, len(raw)
    while (at := _passed_logs(raw, at, found.lows, found.highs)) < high:
        number, value, at = _next(raw, at, high)
        count.add()
        if number == 1:
            low, end = _span(value)
            found.lows.append(low)
            found.highs.append(end)
        elif number in (3, 4, 5):
            low, end = _span(value)
            found.names[number] = raw[low:end]
        elif number == 6:
            low, end, value_low, value_high = _pair(raw, *_span(value), count)
            found.tags.append((raw[low:end], raw[value_low:value_high]))
            if len(found.tags) > TAGS_MAX:
                raise TooMuch(f"a group has at most {TAGS_MAX} tags")
    if at > high:
        raise Malformed("a length leads beyond the message")
    return found


def _passed_logs(raw: bytes, at: int, lows: list[int], highs: list[int]) -> int:
    """Where the logs end that follow one another here, of less than 16 kB each. The last bytes of a message
    are left to `_next`: nothing is looked for behind them."""
    last = len(raw) - 3
    while at < last and raw[at] == _LOG:
        size = raw[at + 1]
        if size < 0x80:
            low = at + 2
        elif raw[at + 2] < 0x80:
            low, size = at + 3, size + ((raw[at + 2] - 1) << 7)
        else:
            break
        at = low + size
        lows.append(low)
        highs.append(at)
        if len(lows) > LOGS_MAX:
            break
    if len(lows) > LOGS_MAX:
        raise TooMuch(f"a group has at most {LOGS_MAX} logs")
    return at


# --- 2. The fields of the logs. ----------------------------------------------------------------------


class _Logs:
    """All logs, each read as far as `_at`."""

    def __init__(self, raw: bytes, scanned: _Scanned, count: _Count) -> None:
        self._raw, self._count = raw, count
        self._at: Places = np.array(scanned.lows, np.int64)
        self.highs: Places = np.array(scanned.highs, np.int64)
        self.times: Places = np.full(len(self._at), NO_NUMBER, np.int64)
        self.nanoseconds: Places = self.times.copy()
        self._spans: list[Places] = []
        """Where contents begin, and where they end: two rows."""
        self._contents = 0

    def contents(self) -> tuple[Places, Places]:
        """Where they begin, and where they end, in order."""
        if not self._spans:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if len(self._spans) == 1:
            return self._spans[0][0], self._spans[0][1]
        lows, highs = np.concatenate(self._spans, axis=1)
        order = np.argsort(lows, kind="stable")
        return lows[order], highs[order]

    def together(self, octets: Octets, together_min: int) -> None:
        """A field of each log at a time, until too few are left to be worth it."""
        live = np.flatnonzero(self._at < self.highs)
        while len(live) >= together_min:
            self._count.add(len(live))
            tags = octets[self._at[live]]
            going = [
                self._lengths(octets, live[tags == _CONTENT]),
                self._times(octets, live[tags == _TIME]),
                self._nanoseconds(octets, live[tags == _NANOSECONDS]),
            ]
            live = np.concatenate(going)
            live = live[self._at[live] < self.highs[live]]

    def _lengths(self, octets: Octets, logs: Places) -> Places:
        """Those that have contents next: where these are. Which of them can go on so."""
        if not len(logs):
            return logs
        sizes, lows = _varints(octets, self._at[logs] + 1)
        highs = lows + sizes
        logs, lows, highs = _kept(highs <= self.highs[logs], logs, lows, highs)
        self._add(np.stack((lows, highs)))
        self._at[logs] = highs
        return logs

    def _times(self, octets: Octets, logs: Places) -> Places:
        if not len(logs):
            return logs
        numbers, after = _varints(octets, self._at[logs] + 1)
        logs, numbers, after = _kept((after <= self.highs[logs]) & (numbers < _LONG), logs, numbers, after)
        self.times[logs] = numbers & _UINT32
        self._at[logs] = after
        return logs

    def _nanoseconds(self, octets: Octets, logs: Places) -> Places:
        if not len(logs):
            return logs
        (logs,) = _kept(self._at[logs] + 5 <= self.highs[logs], logs)
        places = self._at[logs]
        found = np.zeros(len(logs), np.int64)
        for i in range(4):
            found |= octets[places + 1 + i].astype(np.int64) << (8 * i)
        self.nanoseconds[logs] = found
        self._at[logs] = places + 5
        return logs

    def alone(self) -> None:
        """What is left, log by log."""
        raw, spans = self._raw, []
        for log in np.flatnonzero(self._at < self.highs).tolist():
            at, high = int(self._at[log]), int(self.highs[log])
            while at < high:
                number, value, at = _next(raw, at, high)
                self._count.add()
                if number == 2:
                    spans.append(_span(value))
                    if self._contents + len(spans) > CONTENTS_MAX:
                        self._check_contents(len(spans))
                elif number == 1:
                    self.times[log] = _number(value)
                elif number == 4:
                    self.nanoseconds[log] = _number(value)
        if spans:
            self._add(np.array(spans, np.int64).T)

    def _add(self, contents: Places) -> None:
        self._check_contents(contents.shape[1])
        self._contents += contents.shape[1]
        self._spans.append(contents)

    def _check_contents(self, more: int) -> None:
        if self._contents + more > CONTENTS_MAX:
            raise TooMuch(f"a group has at most {CONTENTS_MAX} fields")


def _kept(which: NDArray[np.bool_], *columns: Places) -> tuple[Places, ...]:
    return columns if which.all() else tuple(column[which] for column in columns)


def _varints(octets: Octets, at: Places) -> tuple[Places, Places]:
    """Numbers of up to five bytes, and where they end. A longer one is `_LONG`, for which there is no room in
    any message."""
    first = octets[at]
    numbers = (first & 0x7F).astype(np.int64)
    ends = at + 1
    more = first >= 0x80
    for shift in (7, 14, 21, 28):
        if not more.any():
            return numbers, ends
        byte = octets[ends]
        numbers += np.where(more, (byte & 0x7F).astype(np.int64) << shift, 0)
        ends = ends + more
        more &= byte >= 0x80
    numbers[more] = _LONG
    return numbers, ends


# --- 3. Keys and values. -----------------------------------------------------------------------------


def _pairs(raw: bytes, octets: Octets, lows: Places, highs: Places, count: _Count) -> Places:
    """Where each key begins and ends, and its value: a row for each of the contents.

    Usually the key comes first, then the value, and nothing else.
    """
    key_sizes, key_lows = _varints(octets, lows + 1)
    key_highs = key_lows + key_sizes
    inner = np.minimum(key_highs, len(raw))  # What leads beyond the message ends at the nought behind it.
    value_sizes, value_lows = _varints(octets, inner + 1)
    found = np.stack((key_lows, key_highs, value_lows, value_lows + value_sizes), axis=1)
    is_usual = (octets[lows] == _KEY) & (octets[inner] == _VALUE) & (found[:, 3] == highs)
    for i in np.flatnonzero(~is_usual).tolist():
        found[i] = _pair(raw, int(lows[i]), int(highs[i]), count)
    return found


def _pair(raw: bytes, low: int, high: int, count: _Count) -> tuple[int, int, int, int]:
    """Where key and value are, in any form that there is."""
    key: tuple[int, int] | None = None
    content: tuple[int, int] | None = None
    at = low
    while at < high:
        number, value, at = _next(raw, at, high)
        count.add()
        if number == 1:
            key = _span(value)
        elif number == 2:
            content = _span(value)
    if key is None or content is None:
        raise Malformed("a field has a key and a value")
    return *key, *content


def _taken(raw: bytes, pairs: Places) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """4. The bytes at these places."""
    places = pairs.reshape(-1)
    if (places[1:] < places[:-1]).any():  # A value stands before its key.
        return _cut(raw, pairs.tolist())
    # One array of all that there is, and what lies between, of which the keys are taken, and the values.
    offsets = pa.py_buffer(places.astype(np.int32))
    whole = pa.Array.from_buffers(pa.binary(), len(places) - 1, [None, offsets, pa.py_buffer(raw)])
    keys, values = (
        pc.take(whole, pa.array(np.arange(first, len(places), 4)), memory_pool=MEMORY) for first in (0, 2)
    )
    return keys, values


def _cut(raw: bytes, pairs: Iterable[Sequence[int]]) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The same, one by one."""
    cut = [(raw[low:high], raw[value_low:value_high]) for low, high, value_low, value_high in pairs]
    return pa.array([key for key, _ in cut], pa.binary()), pa.array([value for _, value in cut], pa.binary())


# --- Fields, one by one. -----------------------------------------------------------------------------

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LOG, _TIME, _CONTENT, _NANOSECONDS, _KEY, _VALUE = 0x0A, 0x08, 0x12, 0x25, 0x0A, 0x12
_UINT32: Final = 0xFFFFFFFF
_LONG: Final = 1 << 40
_BEYOND: Final = 16
"""Noughts behind the message: a number is looked at before it is known whether there is room for it."""

_Value = int | tuple[int, int]


def _next(raw: bytes, at: int, high: int) -> tuple[int, _Value, int]:
    """The field at this place, and where it ends."""
    tag = raw[at]
    at += 1
    if tag >= 0x80:
        tag, at = _varint(raw, at - 1, high)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise Malformed("field number 0")
    if kind == _BYTES:
        size = raw[at] if at < high else 0x80
        at += 1
        if size >= 0x80:
            size, at = _varint(raw, at - 1, high)
        if size > high - at:
            raise Malformed("a length leads beyond the message")
        return number, (at, at + size), at + size
    if kind == _VARINT:
        value, at = _varint(raw, at, high)
        return number, value, at
    if kind in (_FIXED32, _FIXED64):
        size = 4 if kind == _FIXED32 else 8
        if size > high - at:
            raise Malformed("the message ends within a number")
        return number, int.from_bytes(raw[at : at + size], "little"), at + size
    raise Malformed(f"wire type {kind}")


def _varint(raw: bytes, at: int, high: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= high:
            raise Malformed("the message ends within a number")
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise Malformed("a number of more than ten bytes")


def _span(value: _Value) -> tuple[int, int]:
    if isinstance(value, int):
        raise Malformed("a number where a message is due")
    return value


def _number(value: _Value) -> int:
    if not isinstance(value, int):
        raise Malformed("bytes where a number is due")
    return value & _UINT32
