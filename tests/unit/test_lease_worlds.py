"""Whole histories of leased consumers, and rules switched off on purpose, which the histories must catch.

Defends 1 (one holder within its deadline), 2 (checkpoints only under the current epoch), 3 (children
after their ancestors) and 6 (settles when faults are over) of what must always hold.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core import lease, leasing, renewing, succession, taking
from shoal.core.lease import ChangeKind, LeaseRow
from shoal.core.sharing import Theft
from tests.unit import (
    test_lease_renewer,
    test_lease_settling,
    test_lease_sql,
    test_lease_succession,
    test_lease_taker,
    test_tenure,
)
from tests.unit.lease_world import Options, lived, swarm
from tests.unit.reference_cases import CASES


@settings(max_examples=60)
@given(st.integers(0, 10**9))
def test_whatever_happens_a_shard_has_one_holder_and_the_group_settles(seed: int) -> None:
    lived(swarm(seed))


def test_the_worlds_are_not_empty() -> None:
    """Over a few seeds everything happens that the rules are about."""
    counted: Counter[ChangeKind] = Counter()
    handed_out = 0
    for seed in range(30):
        world = lived(swarm(seed))
        counted += world.counted
        handed_out += world.handed_out
    assert handed_out > 1000
    rare = {ChangeKind.DISTRUST, ChangeKind.JOIN}
    not_by_consumers = {ChangeKind.REWIND, ChangeKind.LINK}
    assert set(counted) >= set(ChangeKind) - rare - not_by_consumers


def test_a_quiet_world_moves_nothing_twice() -> None:
    """Without trouble a shard is granted once, and once more if it moved."""
    world = lived(
        Options(seed=1, consumers=4, shards=12, faults=False, crashes=False, pauses=False, splits=False)
    )
    assert world.counted[ChangeKind.TAKE] <= 12 + world.counted[ChangeKind.STEAL]
    assert world.counted[ChangeKind.BURY] == 0
    assert world.counted[ChangeKind.FORCE] == 0


# --- Planted bugs. -----------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def deadline_longer_than_the_timeout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewing, "usable_ms", lambda timeout_ms: int(timeout_ms * 1.5))


def watch_that_adds_double(patch: pytest.MonkeyPatch) -> None:
    def watched(row: LeaseRow, stood_ms: int, waited_ms: int) -> LeaseRow:
        return replace(
            row,
            revision=row.revision + 1,
            stood_ms=row.stood_ms + 2 * stood_ms,
            waited_ms=row.waited_ms + waited_ms,
        )

    patch.setattr(taking, "watched", watched)


def watch_that_does_not_look_at_the_lease_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(taking, "_stood", lambda row: (row.born,))


def steal_that_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    real = lease.stolen
    patch.setattr(
        taking, "stolen", lambda row, thief: replace(real(row, thief), consumer_owner=thief, owner_epoch=0)
    )


def renewal_that_extends_a_frozen_deadline(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseRow, "is_extended", property(lambda _: True))


def children_that_do_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(succession.Standing, "is_waiting", lambda *_, **__: False)


def steals_up_to_the_ceiling(patch: pytest.MonkeyPatch) -> None:
    def levelled(counts: dict[str, int]) -> list[Theft]:
        most = -(-sum(counts.values()) // len(counts))
        thief = min(counts, key=lambda name: (counts[name], name))
        victim = max(counts, key=lambda name: (counts[name], name))
        need = most - counts[thief]
        return [Theft(victim, thief, need)] if need > 0 and victim != thief else []

    patch.setattr(taking, "levelled", levelled)


def losses_that_are_not_learned(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(renewing, "learned", lambda held, _row: held)


@pytest.mark.parametrize(
    "plant",
    [
        deadline_longer_than_the_timeout,
        watch_that_adds_double,
        watch_that_does_not_look_at_the_lease_id,
        steal_that_does_not_wait,
        renewal_that_extends_a_frozen_deadline,
        children_that_do_not_wait,
        steals_up_to_the_ceiling,
        losses_that_are_not_learned,
    ],
)
def test_a_rule_switched_off_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(60):
        try:
            lived(swarm(seed))
        except AssertionError:
            return
    pytest.fail(f"60 worlds did not notice: {plant.__name__}")


# --- The reference cases are all there. --------------------------------------------------------------


def test_every_reference_case_has_its_verdict() -> None:
    rooms = (test_lease_taker, test_lease_renewer, test_lease_succession, test_lease_settling, leasing)
    assert all((*rooms, test_lease_sql, test_tenure))
    names = {word for case in CASES for word in case.name.split()}
    wanted = (
        {f"T{n}" for n in range(1, 16)}
        | {f"R{n}" for n in range(1, 14)}
        | {f"S{n}" for n in range(1, 18)}
        | {f"D{n}" for n in range(1, 10)}
        | {f"A{n}" for n in range(8)}
        | {f"B{n}" for n in range(4)}
        | {"C0"}
    )
    assert wanted <= names
    assert all(case.reason for case in CASES if case.verdict != "ours")
