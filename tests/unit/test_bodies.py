"""Memory for long answers that is used again: only when nobody looks at it any more, and within bounds."""

import gc

import numpy as np
import pyarrow as pa
import pytest

from shoal.remote.bodies import KEPT, KEPT_S, LEAST, MOST, ROUND, Bodies


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_when_the_last_part_of_an_answer_is_gone() -> None:
    bodies = Bodies()
    memory, body = bodies.take(2 * LEAST)
    memory[:] = b"x" * len(memory)
    at = address(memory)
    part = pa.py_buffer(body)[LEAST : LEAST + 3]
    del memory, body
    other, other_body = bodies.take(2 * LEAST)
    assert address(other) != at, "a part of it is still looked at"
    other[:] = b"y" * len(other)
    assert part.to_pybytes() == b"xxx"
    del part
    gc.collect()
    again, again_body = bodies.take(2 * LEAST - 7)
    assert address(again) == address(again_body) == at
    assert (len(again), len(again_body)) == (2 * LEAST - 7, 2 * LEAST - 7)
    del other_body


def test_what_is_written_is_what_is_read() -> None:
    memory, body = Bodies().take(LEAST)
    memory[:4] = b"\x00\x7f\x80\xff"
    assert bytes(body[:4]) == b"\x00\x7f\x80\xff"
    assert body.readonly


def test_a_few_bytes_more_find_room_in_what_was_kept() -> None:
    bodies = Bodies()
    at = address(bodies.take(2 * LEAST + 1)[0])
    assert address(bodies.take(2 * LEAST + ROUND)[0]) == at


def test_a_short_answer_does_not_keep_memory_for_a_much_longer_one() -> None:
    bodies = Bodies()
    at = address(bodies.take(MOST)[0])
    _, short = bodies.take(LEAST)
    assert address(short) != at
    assert address(bodies.take(MOST)[0]) == at, "that is kept for the next long one"


@pytest.mark.parametrize("length", [0, LEAST - 1, MOST + 1])
def test_short_answers_and_enormous_ones_have_memory_of_their_own(length: int) -> None:
    bodies = Bodies()
    memory, _ = bodies.take(length)
    del memory, _
    assert (len(bodies.take(length)[0]), len(bodies._free)) == (length, 0)


def test_so_much_is_kept_and_no_more_and_nothing_once_it_is_dropped() -> None:
    bodies = Bodies()
    taken = [bodies.take(LEAST) for _ in range(3 * KEPT)]
    taken.clear()
    assert len(bodies._free) == KEPT
    late = bodies.take(LEAST)
    bodies.drop()
    assert not bodies._free
    del late
    assert not bodies._free, "nor what comes back later"


def test_what_nothing_was_written_to_for_a_while_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies, now_s = Bodies(), 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    both = [bodies.take(LEAST), bodies.take(LEAST)]
    both.pop()
    now_s += KEPT_S - 1
    both.pop()
    bodies.tidy()
    assert len(bodies._free) == 2
    now_s += 2
    bodies.tidy()
    assert len(bodies._free) == 1, "the one that came back last"
