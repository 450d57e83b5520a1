"""A checkpoint that knows what is done beyond it: an offset like any other, stored and read as it was."""

import copy
import pickle

from shoal.core.checkpoint import Checkpoint, beyond, checkpoint_of, is_same, later, marks_text, onward


def test_it_is_an_offset_like_any_other() -> None:
    at = Checkpoint(5, [(5, 9)])
    assert at == 5
    assert at + 1 == 6
    assert {5: "x"}[at] == "x"
    assert beyond(at) == ((5, 9),)
    assert beyond(5) == ()


def test_it_comes_back_from_the_store_as_it_was() -> None:
    at = Checkpoint(5, [(5, 9), (7, 5, 5)])
    assert is_same(checkpoint_of(5, at.text()), at)
    assert checkpoint_of(5, None) == 5
    assert marks_text(5) is None
    assert marks_text(Checkpoint(9, [(5, 9)])) is None


def test_marks_that_lie_behind_are_forgotten_and_only_a_few_sets_are_kept() -> None:
    assert beyond(Checkpoint(9, [(5, 9)])) == ()
    many = [(10,) * lanes for lanes in range(2, 9)]
    assert beyond(Checkpoint(5, many)) == tuple(many[-3:])


def test_marks_of_the_same_lanes_are_one_set_however_often_the_shard_has_moved() -> None:
    assert beyond(Checkpoint(5, [(5, 9), (7, 5, 5), (8, 5)])) == ((7, 5, 5), (8, 9))
    moved = Checkpoint(5, [(5, 9)])
    for _ in range(9):
        moved = Checkpoint(5, (*moved.beyond, (5, 6)))
    assert beyond(moved) == ((5, 9),)


def test_of_two_at_one_place_the_newer_counts() -> None:
    saved, newer = Checkpoint(5, [(5, 9)]), Checkpoint(5, [(8, 9)])
    assert is_same(later(saved, newer), newer)
    assert not is_same(saved, newer)
    assert is_same(later(Checkpoint(7), newer), 7)


def test_it_survives_a_copy_and_a_process() -> None:
    at = Checkpoint(5, [(5, 9)])
    assert is_same(pickle.loads(pickle.dumps(at)), at)  # noqa: S301 - our own bytes
    assert is_same(copy.deepcopy(at), at)


def test_one_that_moves_on_takes_along_what_still_lies_ahead() -> None:
    at = onward(Checkpoint(5, [(5, 9)]), 8)
    assert (at, beyond(at)) == (8, ((5, 9),))
    assert beyond(onward(at, 9)) == ()
    assert beyond(onward(5, 8)) == ()
