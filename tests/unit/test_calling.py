"""An answer that had to be asked for twice: what began to come the first time is not taken for the second."""

from typing import Any, cast

import pytest

from shoal.native.forms import FurtherRead, KeptBatch, ReadLabel
from shoal.remote.ahead import Coming
from shoal.remote.calling import Part
from shoal.remote.hub import _coming
from shoal.remote.transport import Transport
from shoal.wire.frame import packed


def answer(end: int, payload: bytes) -> bytes:
    kept = KeptBatch(base_offset=0, records=end, layout=1, bytes=len(payload))
    label = ReadLabel(stream_id=7, first_offset=0, end=end, tail=100, end_of_shard=False, batches=[kept])
    return b"".join(packed(ReadLabel, label, [payload]))


class Breaking:
    """A way to a server. The first answer breaks off after its beginning; the second may come without one."""

    def __init__(self, *beginnings: bytes) -> None:
        self._beginnings = beginnings

    def call(self, *_: object, begun: Any, **__: object) -> memoryview:
        for beginning in self._beginnings:
            begun(beginning)
        return memoryview(bytearray(answer(20, b"second")))


@pytest.mark.parametrize("begins_again", [False, True])
def test_the_label_is_that_of_the_answer_that_came(begins_again: bool) -> None:
    first, second = answer(10, b"first one"), answer(20, b"second")
    way = Breaking(first, second) if begins_again else Breaking(first)
    told: list[int] = []
    label, payloads = Part(cast("Transport", way), "hub").ask_for_batches(
        "read", labelled=lambda label: told.append(label.end), name="orders", shard=0, offset=0
    )
    assert (label.end, bytes(payloads)) == (20, b"second")
    assert told == [10, 20]


def test_each_read_of_an_answer_says_what_its_shard_ended_at_then() -> None:
    def read(end: int, tail: int) -> FurtherRead:
        return FurtherRead(end=end, tail=tail, end_of_shard=False, batches=[])

    def coming(*further: FurtherRead) -> Coming:
        label = ReadLabel(
            stream_id=7, first_offset=0, end=10, tail=30, end_of_shard=False, batches=[], further=further
        )
        return _coming(label)

    assert coming() == Coming([], 10, 0)
    assert coming(read(20, 30), read(30, 40)) == Coming([10, 20], 30, 0), "more has come meanwhile"
    assert coming(read(20, 30), read(30, 30)) == Coming([10, 20], None, 0)
