"""When a server gives free pages back."""

import pytest

from shoal.server.memory import GROWN, MOVED, Trimmer, held

START = 100_000_000


class Pages:
    """A process of `held` bytes, of which a trim frees `free`."""

    def __init__(self) -> None:
        self.held, self.free, self.trims = START, 0, 0

    def trim(self) -> None:
        self.held -= self.free
        self.free = 0
        self.trims += 1


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def trimmer(pages: Pages) -> Trimmer:
    return Trimmer(lambda: pages.held, pages.trim)


def test_a_little_growth_is_left(pages: Pages, trimmer: Trimmer) -> None:
    pages.held += GROWN - 1
    trimmer.look()
    assert pages.trims == 0


def test_growth_is_given_back_once(pages: Pages, trimmer: Trimmer) -> None:
    pages.held += GROWN
    trimmer.look()
    trimmer.look()
    assert pages.trims == 1


def test_slow_growth_adds_up(pages: Pages, trimmer: Trimmer) -> None:
    for _ in range(4):
        pages.held += GROWN // 4
        trimmer.look()
    assert pages.trims == 1


def test_what_is_in_use_is_not_asked_for_again(pages: Pages, trimmer: Trimmer) -> None:
    pages.held, pages.free = START + 3 * GROWN, GROWN
    for _ in range(3):
        trimmer.look()
    assert (pages.trims, pages.held) == (1, START + 2 * GROWN)


def test_after_it_has_shrunk_by_itself_growth_counts_from_there(pages: Pages, trimmer: Trimmer) -> None:
    pages.held = START - GROWN
    trimmer.look()
    pages.held = START + MOVED
    trimmer.look()
    assert pages.trims == 1


def test_what_was_freed_after_it_was_trimmed_is_given_back(pages: Pages, trimmer: Trimmer) -> None:
    pages.held = START + 3 * GROWN
    trimmer.look()
    pages.held += MOVED
    pages.free = 3 * GROWN
    trimmer.look()
    assert (pages.trims, pages.held) == (2, START + MOVED)


def test_what_this_process_holds() -> None:
    before = held()
    much = bytearray(b"x" * GROWN)
    assert held() - before > GROWN // 2
    del much
