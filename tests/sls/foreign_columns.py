"""Columns of streams that no client of Aliyun's wrote, and what its clients are given for them."""

from typing import Final

import numpy as np
import pyarrow as pa


def _of_bytes(kind: pa.DataType, number: int) -> pa.Array:
    """A value that Arrow would refuse to make from a number."""
    return pa.Array.from_buffers(
        kind, 1, [None, pa.py_buffer(np.array([number], f"<i{kind.bit_width // 8}"))]
    )


COLUMNS: Final[dict[str, tuple[pa.Array, bytes | None]]] = {
    "nanoseconds": (
        pa.array([1234567890123456789], pa.timestamp("ns")),
        b"2009-02-13 23:31:30.123456789",
    ),
    "nanoseconds in a zone": (
        pa.array([1234567890123456789], pa.timestamp("ns", "Europe/Berlin")),
        b"2009-02-14 00:31:30.123456789+0100",
    ),
    "an unknown zone": (
        pa.array([1], pa.timestamp("us", "Mars/Olympus")),
        b"1970-01-01 00:00:00.000001+0000",
    ),
    "a zone that is none": (pa.array([1], pa.timestamp("s", "+99:99")), b"1970-01-01 00:00:01+0000"),
    "an unknown zone, far away": (
        pa.array([2**62], pa.timestamp("us", "Mars/Olympus")),
        b"<value out of range: 4611686018427387904>",
    ),
    "the year 10000": (pa.array([253_402_300_800], pa.timestamp("s")), b"10000-01-01 00:00:00"),
    "a time far away": (pa.array([2**62], pa.timestamp("us")), b"<value out of range: 4611686018427387904>"),
    "a day far away": (_of_bytes(pa.date32(), 2**31 - 1), b"<value out of range: 2147483647>"),
    "a date of milliseconds far away": (
        _of_bytes(pa.date64(), 2**63 - 1),
        b"<value out of range: 9223372036854775807>",
    ),
    "a time of day that is none": (_of_bytes(pa.time64("ns"), -1), b"<value out of range: -1>"),
    "a time of day": (pa.array([123456789], pa.time64("ns")), b"00:00:00.123456789"),
    "a duration of nanoseconds": (pa.array([123456789], pa.duration("ns")), b"123456789"),
    "a long duration": (pa.array([2**62], pa.duration("s")), b"4611686018427387904"),
    "an interval": (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), b"[1, 2, 3]"),
    "no number": (pa.array([float("nan")]), b"nan"),
    "a half": (pa.array([np.float16(1.5)], pa.float16()), b"1.5"),
    "a float": (pa.array([0.1], pa.float32()), b"0.1"),
    "a flag": (pa.array([True]), b"true"),
    "a decimal": (pa.array([1], pa.decimal128(10, 2)), b"1.00"),
    "a large number": (pa.array([2**64 - 1], pa.uint64()), b"18446744073709551615"),
    "large text": (pa.array(["é"], pa.large_string()), "é".encode()),
    "bytes": (pa.array([b"\xff\x00"], pa.binary(2)), b"\xff\x00"),
    "text that is none": (
        pa.Array.from_buffers(
            pa.large_string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int64)), pa.py_buffer(b"\xff")]
        ),
        b"\xff",
    ),
    "nothing": (pa.nulls(1), None),
    "a structure": (
        pa.array(
            [{"a": b"\xff", "b": [1], "c": 2**62, "d": 2**62, "e": "é"}],
            pa.struct(
                [
                    ("a", pa.binary()),
                    ("b", pa.list_(pa.int64())),
                    ("c", pa.timestamp("us", "Mars/Olympus")),
                    ("d", pa.duration("s")),
                    ("e", pa.string()),
                ]
            ),
        ),
        '{"a": "\ufffd", "b": [1], "c": "<value out of range: 4611686018427387904>", '
        '"d": 4611686018427387904, "e": "é"}'.encode(),
    ),
    "a map": (
        pa.array([[(1, 123)]], pa.map_(pa.timestamp("us", "Mars/Olympus"), pa.duration("ns"))),
        b'[["1970-01-01 00:00:00.000001+0000", 123]]',
    ),
    "a list of days": (
        pa.array([[0, None]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        b'["1970-01-01", null]',
    ),
    "a list of one length": (
        pa.array([[1, 2]], pa.list_(pa.timestamp("ns"), 2)),
        b'["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000000002"]',
    ),
}
"""By name, a column of one value, and its text; None: it has none."""

OURS: Final[dict[str, dict[str, tuple[pa.Array, bytes]]]] = {
    "contents that are a list": {"contents": (pa.array([[1, 2]]), b"[1, 2]")},
    "tags with numbers": {
        "tags": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), b'[["a", 1]]'),
    },
    "a topic that is a number": {"topic": (pa.array([1]), b"1")},
    "a time with a fraction": {"time": (pa.array([1.5]), b"1.5")},
    "all of them": {
        "time": (pa.array(["x"]), b"x"),
        "time_ns": (pa.array(["y"]), b"y"),
        "topic": (pa.array([1]), b"1"),
        "source": (pa.array([2.5]), b"2.5"),
        "machine": (pa.array([b"\xff"]), b"\xff"),
        "tags": (pa.array(["a"]), b"a"),
        "contents": (pa.array(["b"]), b"b"),
    },
}
"""By name, columns with the names of those of logs and other types, and their texts; the others are as for
logs."""
