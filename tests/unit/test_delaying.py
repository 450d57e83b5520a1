"""When delayed records are delivered, by whom, and what a wall clock that is set changes about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.delaying import OTHERS_MS, Clocks, Delay, Lookout, is_set_back, together


def test_what_waits_for_so_long_counts_from_when_the_hub_takes_it() -> None:
    assert Delay(0, 7, 250).begun(1_000) == Delay(1_250, 7, 250)
    assert Delay(77, 7).begun(1_000) == Delay(77, 7)


def test_those_of_one_time_and_one_place_wait_together_but_not_those_that_waited_differently() -> None:
    delays = [Delay(5, None), Delay(5, 1), Delay(5, None), Delay(5, None, 3)]
    assert together(delays) == {Delay(5, None): [0, 2], Delay(5, 1): [1], Delay(5, None, 3): [3]}


def test_a_clock_that_was_set_back_is_told_from_one_that_is_slow_or_was_set_ahead() -> None:
    before = Clocks(wall_ms=1_000_000, steady_ms=500)
    assert is_set_back(before, Clocks(wall_ms=990_000, steady_ms=600))
    assert is_set_back(before, Clocks(wall_ms=1_000_000, steady_ms=60_500)), "behind by a minute"
    assert not is_set_back(before, Clocks(wall_ms=1_000_000, steady_ms=1_000))
    assert not is_set_back(before, Clocks(wall_ms=9_000_000, steady_ms=600))


def test_a_hub_delivers_its_own_when_it_is_due_and_others_a_little_later() -> None:
    lookout = Lookout()
    assert lookout.upto_ms(1_000) == 1_000 - OTHERS_MS
    assert lookout.rest_ms(1_000, 1_000, 10_000) == OTHERS_MS
    lookout.add(1_500)
    lookout.add(1_200)
    assert lookout.rest_ms(1_200, 1_000, 10_000) == 200
    assert lookout.upto_ms(1_199) == 1_199 - OTHERS_MS
    assert lookout.upto_ms(1_200) == 1_200
    assert lookout.upto_ms(1_200) == 1_200 - OTHERS_MS, "once: if it is still there, it is as another's"
    assert lookout.rest_ms(1_500, 1_201, 10_000) == 299


@given(
    own=st.lists(st.integers(0, 5_000), max_size=5),
    others=st.lists(st.integers(0, 5_000), max_size=5),
    longest_ms=st.integers(1, 2_000),
)
def test_nothing_comes_before_its_time_nor_much_later_than_that(
    own: list[int], others: list[int], longest_ms: int
) -> None:
    lookout, now_ms = Lookout(), 0
    waiting = sorted([*own, *others])
    for due_ms in own:
        lookout.add(due_ms)
    while waiting:
        upto_ms = lookout.upto_ms(now_ms)
        assert upto_ms <= now_ms
        delivered = [due_ms for due_ms in waiting if due_ms <= upto_ms]
        for due_ms in delivered:
            assert now_ms - due_ms <= OTHERS_MS
            assert due_ms not in own or now_ms == due_ms, "its own is on time"
        waiting = waiting[len(delivered) :]
        if waiting:
            rest_ms = lookout.rest_ms(waiting[0], now_ms, longest_ms)
            assert 0 <= rest_ms <= longest_ms
            now_ms += max(1, rest_ms)


@dataclass
class SomeHub:
    """One of several that have a store open: it delivers, and may be killed."""

    dies_ms: int
    lookout: Lookout = field(default_factory=Lookout)
    wakes_ms: int = 0


_LOOK_MS = 1_000


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8_000)), max_size=12),
    deaths_ms=st.lists(st.integers(0, 10_000), min_size=2, max_size=2),
)
def test_of_several_hubs_one_is_left_and_all_comes_once_in_order_and_soon(
    rows: list[tuple[int, int]], deaths_ms: list[int]
) -> None:
    hubs = [SomeHub(dies_ms) for dies_ms in (*deaths_ms, 1 << 40)]
    waiting = sorted(due_ms for _, due_ms in rows)
    for number, due_ms in rows:
        hubs[number].lookout.add(due_ms)
    delivered: list[int] = []
    while waiting:
        hub = min(hubs, key=lambda one: one.wakes_ms)
        now_ms = hub.wakes_ms
        if now_ms >= hub.dies_ms:
            hubs.remove(hub)
            continue
        upto_ms = hub.lookout.upto_ms(now_ms)
        while waiting and waiting[0] <= upto_ms:
            delivered.append(waiting.pop(0))
            assert delivered[-1] <= now_ms, "not before its time"
            assert now_ms - delivered[-1] <= OTHERS_MS, "whoever took it"
        if waiting:
            hub.wakes_ms += hub.lookout.rest_ms(waiting[0], now_ms, _LOOK_MS) or 1
    assert delivered == sorted(due_ms for _, due_ms in rows)
