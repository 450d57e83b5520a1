"""Leased groups settle: counts end within one, in few rounds, and then nothing is written but renewals.

A round is one look by each consumer, one after the other or all at the same rows, then every owner that was
asked to let go does.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.core.balance import quotas
from shoal.core.group import GroupSettings
from shoal.core.lease import ChangeKind
from shoal.core.sharing import Theft, dealt, dealt_to, evened, levelled
from shoal.core.taking import View
from tests.unit.lease_table import GROUP, INTERVAL_MS, TIMEOUT_MS, Desk, MemoryTable, filled, owned, view_of
from tests.unit.reference_cases import ours

ROUNDS_MAX = 40


class Crowd:
    """Consumers of one group that look in rounds."""

    def __init__(self, consumers: int, *, at_once: bool, strategy: str = "balanced") -> None:
        self.table = MemoryTable()
        self.at_once = at_once
        self.settings = GroupSettings(timeout_ms=TIMEOUT_MS, strategy=strategy)
        self.desks: list[Desk] = []
        self.now_ms = 0
        self.stream_id = 1
        self.shards = filled(1)
        self.join(consumers)

    def join(self, consumers: int) -> None:
        for number in range(len(self.desks), len(self.desks) + consumers):
            self.desks.append(Desk(self.table, f"c{number:03}", settings=self.settings))
            self.desks[-1].join()

    def round(self) -> Counter[ChangeKind]:
        """One look by everyone; says what was done."""
        done: Counter[ChangeKind] = Counter()
        self.now_ms += INTERVAL_MS // 5
        if self.at_once:
            view = self.view()
            plans = [
                desk.consumer.look(view, now_ms=self.now_ms, watch_ms=self.now_ms) for desk in self.desks
            ]
            for desk, told in zip(self.desks, plans, strict=True):
                done.update(desk.carry_out(told.changes, self.shards))
        else:
            for desk in self.desks:
                told = desk.consumer.look(self.view(), now_ms=self.now_ms, watch_ms=self.now_ms)
                desk.hear(told)
                done.update(desk.carry_out(told.changes, self.shards))
        for desk in self.desks:
            desk.beat(self.now_ms, self.shards)
            desk.drain(self.shards)
        return done

    def view(self) -> View:
        return replace(view_of(self.table, self.shards), stream_id=self.stream_id)

    def settle(self) -> int:
        """Rounds until one does nothing."""
        for rounds in range(ROUNDS_MAX):
            if not self.round():
                return rounds
        raise AssertionError(f"not settled after {ROUNDS_MAX} rounds: {self.counts}")

    @property
    def counts(self) -> list[int]:
        return sorted(len(desk.held) for desk in self.desks)

    def check(self) -> None:
        held = [shard for desk in self.desks for shard in desk.held]
        assert sorted(held) == list(range(len(self.shards)))
        assert self.counts[-1] - self.counts[0] <= 1
        before = dict(self.table.rows)
        for _ in range(8):
            assert not self.round(), "settled, and still something was written"
        for key, row in self.table.rows.items():
            if key[1] == "lease":
                old = before[key]
                assert getattr(row, "epoch", 0) == getattr(old, "epoch", 0)


@ours("S13", "S14")
@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize(
    ("begin", "more", "rounds"),
    [
        ((10, 3), (0, 0), (2, 0)),
        ((100, 1), (30, 0), (2, 2)),
        ((100, 10), (55, 0), (2, 2)),
        ((100, 10), (0, 5), (2, 2)),
        ((100, 1), (0, 9), (2, 2)),
        ((4, 2), (0, 6), (2, 2)),
        ((7, 7), (1, 0), (2, 2)),
        ((300, 20), (0, 1), (2, 2)),
    ],
    ids=str,
)
def test_a_group_settles_in_so_many_rounds(
    begin: tuple[int, int], more: tuple[int, int], rounds: tuple[int, int], at_once: bool
) -> None:
    """From (shards, consumers), and again after so many more of each."""
    crowd = Crowd(begin[1], at_once=at_once)
    crowd.shards = filled(begin[0])
    assert crowd.settle() <= rounds[0]
    crowd.check()
    crowd.shards = filled(begin[0] + more[0])
    crowd.join(more[1])
    assert crowd.settle() <= rounds[1]
    crowd.check()


@pytest.mark.parametrize("at_once", [False, True], ids=["in turn", "at once"])
@pytest.mark.parametrize(("begin", "more"), [((10, 3), (0, 2)), ((40, 1), (0, 9)), ((7, 7), (1, 0))], ids=str)
def test_a_group_of_several_streams_settles_as_soon(
    begin: tuple[int, int], more: tuple[int, int], at_once: bool
) -> None:
    crowd = Crowd(begin[1], at_once=at_once, strategy="spread")
    crowd.shards = filled(begin[0])
    assert crowd.settle() <= 2
    crowd.check()
    crowd.shards = filled(begin[0] + more[0])
    crowd.join(more[1])
    assert crowd.settle() <= 2
    crowd.check()


def test_one_joining_moves_no_more_than_its_share() -> None:
    crowd = Crowd(10, at_once=True)
    crowd.shards = filled(100)
    crowd.settle()
    before = {row.shard: row.consumer_owner for row in crowd.table.list(GROUP)}
    crowd.join(1)
    crowd.settle()
    moved = [row.shard for row in crowd.table.list(GROUP) if row.consumer_owner != before[row.shard]]
    assert len(moved) == 9


# --- Numbers only. -----------------------------------------------------------------------------------

counts_of = st.dictionaries(st.sampled_from([f"c{n}" for n in range(8)]), st.integers(0, 30), min_size=1)


def after(counts: Mapping[str, int], thefts: Sequence[Theft] | None = None) -> dict[str, int]:
    level = dict(counts)
    for theft in levelled(counts) if thefts is None else thefts:
        level[theft.victim] -= theft.shards
        level[theft.thief] += theft.shards
    return level


@given(counts_of, st.integers(0, 40))
def test_dealing_and_levelling_end_within_one_and_are_then_left_alone(
    counts: dict[str, int], free: int
) -> None:
    given_out = dict(counts)
    for name in dealt(counts, free):
        given_out[name] += 1
    level = after(given_out)
    assert sum(level.values()) == sum(counts.values()) + free
    assert max(level.values()) - min(level.values()) <= 1
    assert max(level.values()) <= ceil(sum(level.values()) / len(level))
    assert levelled(level) == []


@given(counts_of, st.integers(0, 40), st.randoms(use_true_random=False))
def test_who_has_a_quota_ends_with_it_and_no_more_moves_than_must(
    counts: dict[str, int], free: int, chance: Random
) -> None:
    quota = quotas(chance.sample(sorted(counts), len(counts)), sum(counts.values()) + free)
    given_out = dict(counts)
    for name in dealt_to(quota, counts, free):
        assert given_out[name] < quota[name]
        given_out[name] += 1
    thefts = evened(quota, given_out)
    assert after(given_out, thefts) == quota
    assert max(quota.values()) - min(quota.values()) <= 1
    assert evened(quota, quota) == []
    must = sum(max(0, given_out[name] - quota[name]) for name in counts)
    assert sum(theft.shards for theft in thefts) == must


def test_consumers_of_many_streams_with_one_shard_each_get_their_part() -> None:
    """Levelled stream by stream, who came first would keep them all."""
    totals: Counter[str] = Counter()
    for stream in range(1, 11):
        crowd = Crowd(1, at_once=False, strategy="spread")
        crowd.stream_id = stream
        crowd.settle()
        crowd.join(1)
        crowd.settle()
        crowd.check()
        totals.update({desk.name: len(desk.held) for desk in crowd.desks})
    assert totals == {"c000": 5, "c001": 5}


@given(counts_of)
def test_nobody_is_both_robbed_and_a_thief_and_no_more_moves_than_must(counts: dict[str, int]) -> None:
    total = sum(counts.values())
    thefts = levelled(counts)
    assert {theft.victim for theft in thefts}.isdisjoint(theft.thief for theft in thefts)
    least, fuller = divmod(total, len(counts))
    by_count = sorted(counts.values(), reverse=True)
    must = sum(max(0, count - least - (rank < fuller)) for rank, count in enumerate(by_count))
    assert sum(theft.shards for theft in thefts) == must


def avg_left(others: list[int], need: int) -> list[int]:
    """The document's rule, written from its words: what is left with each of the others, fullest first.

    Of the first K, so many are taken that on average AVG_LEFT remain, which is more than the next one has;
    each of them keeps AVG_LEFT within one.
    """
    ordered = sorted(others, reverse=True)
    for k in range(1, len(ordered) + 1):
        left = sum(ordered[:k]) - need
        if k == len(ordered) or left / k > ordered[k]:
            return sorted([left // k + (place < left % k) for place in range(k)] + ordered[k:], reverse=True)
    return ordered


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7))
def test_a_batch_of_one_thief_leaves_the_others_as_the_document_says(others: list[int]) -> None:
    counts = {f"c{place}": count for place, count in enumerate(others)}
    counts["thief"] = 0
    thefts = levelled(counts)
    assume({theft.thief for theft in thefts} == {"thief"})  # Alone: then its batch is the whole story.
    level = after(counts)
    left = sorted((level[name] for name in counts if name != "thief"), reverse=True)
    assert left == avg_left(others, level["thief"])


def test_by_ceil_alone_ten_shards_on_three_consumers_would_swap_for_ever() -> None:
    assert ceil(10 / 3) == 4
    assert levelled({"a": 3, "b": 4, "c": 3}) == []  # Though two hold less than four.
    assert levelled({"a": 4, "b": 4, "c": 2}) == [("a", "c", 1)]


def test_takers_that_look_at_the_same_rows_never_want_the_same_row() -> None:
    table = MemoryTable()
    shards = filled(100)
    owned(table, {"full": 60, None: 40})
    desks = [Desk(table, f"c{number}") for number in range(9)]
    for desk in desks:
        desk.join()
    view = view_of(table, shards)
    wanted: Counter[int] = Counter()
    for desk in desks:
        for change in desk.consumer.look(view, now_ms=0, watch_ms=0).changes:
            row = change.old
            assert row is not None
            wanted[getattr(row, "shard", -1)] += 1
    assert max(wanted.values()) == 1
