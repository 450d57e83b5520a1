"""The machine of one shard: the founding document's nine transitions, two of ours, and nothing else."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.claims import (
    ALREADY_ALLOC,
    NOT_ALLOC,
    OVER,
    TRANSFER,
    TRANSITIONS,
    WAIT,
    By,
    born,
    diagram,
    ended_shards,
    is_at_end,
    kept,
    lineage_of,
    moved,
    vacated,
)
from shoal.core.group import Claim, ShardState
from shoal.core.lineage import ancestors, descendants, ended
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.resharding import first_shards, split
from tests.unit.lineages import Shards, lineages

DOCUMENT: dict[By, set[tuple[ShardState | None, ShardState]]] = {
    By.BIRTH: {(None, WAIT), (None, NOT_ALLOC)},
    By.ANCESTORS_ENDED: {(WAIT, NOT_ALLOC)},
    By.ASSIGNED: {(NOT_ALLOC, ALREADY_ALLOC)},
    By.OWNER_GONE: {(ALREADY_ALLOC, NOT_ALLOC)},
    By.TAKEN_BACK: {(ALREADY_ALLOC, TRANSFER)},
    By.HANDED_OVER: {(TRANSFER, ALREADY_ALLOC)},
    By.FORCED_BACK: {(OVER, NOT_ALLOC)},
    # What nobody holds is over at once when it is closed and nothing in it is left for the group.
    By.ENDED: {(ALREADY_ALLOC, OVER), (TRANSFER, OVER), (NOT_ALLOC, OVER), (WAIT, OVER)},
    By.OWNER_GONE_IN_TRANSFER: {(TRANSFER, NOT_ALLOC)},
}
"""The nine transitions, written down from the document and not from the table under test."""

OURS: dict[By, set[tuple[ShardState | None, ShardState]]] = {
    By.BORN_OVER: {(None, OVER)},
    By.ANEW: {
        (source, target) for source in (WAIT, NOT_ALLOC, TRANSFER, OVER) for target in (WAIT, NOT_ALLOC)
    },
}

ARROWS = {**DOCUMENT, **OURS}


def closed(shard: Shard, next_offset: int, first_offset: int = 0) -> Shard:
    return replace(
        shard, status=ShardStatus.CLOSED, next_offset=next_offset, first_offset=first_offset, closed_ms=1
    )


def one_shard(next_offset: int = 0, *parents: int) -> Shard:
    return Shard(id=ShardId(9), begin=0, end=1, parents=tuple(map(ShardId, parents)), next_offset=next_offset)


def test_the_table_has_the_nine_transitions_of_the_document_and_two_of_ours() -> None:
    table = {arrow.by: set(product(arrow.sources, arrow.targets)) for arrow in TRANSITIONS}
    assert table == ARROWS
    assert [arrow.by for arrow in TRANSITIONS] == [*"123456789", "a", "b"]


@pytest.mark.parametrize("by", By)
def test_a_claim_moves_along_the_arrows_of_the_table_and_along_no_other(by: By) -> None:
    for source, target in product(ShardState, ShardState):
        claim = Claim(shard=ShardId(3), state=source, checkpoint=7, epoch=5)
        if (source, target) in ARROWS[by]:
            assert moved(claim, by, target) == replace(claim, state=target)
        else:
            with pytest.raises(AssertionError, match=f"{by.name} does not lead from {source} to {target}"):
                moved(claim, by, target)


def test_every_transition_is_in_the_diagram_and_in_its_table() -> None:
    printed = diagram()
    for by, arrows in ARROWS.items():
        for source, target in arrows:
            assert f"    {source or '[*]'} --> {target}: {by}\n" in printed
        assert f"\n| {by} | " in printed
    assert printed.count("-->") == sum(len(arrows) for arrows in ARROWS.values())
    for arrow in TRANSITIONS:
        assert f"| {arrow.when} |" in printed


def test_who_lets_go_takes_along_what_was_asked_of_it_and_leaves_what_was_saved() -> None:
    claim = Claim(
        shard=ShardId(1),
        state=TRANSFER,
        checkpoint=40,
        epoch=9,
        owner="a",
        owner_epoch=8,
        next="b",
        is_bound=False,
        restart=3,
        handover_ms=100,
        lapse_ms=20,
    )
    assert vacated(claim) == Claim(
        shard=ShardId(1), state=TRANSFER, checkpoint=40, epoch=9, is_bound=False, restart=3
    )


def test_an_owner_that_keeps_its_shard_keeps_its_epoch() -> None:
    claim = Claim(
        shard=ShardId(1), state=TRANSFER, epoch=8, owner="a", owner_epoch=8, next="b", handover_ms=100
    )
    after = kept(claim)
    assert after == Claim(shard=ShardId(1), state=ALREADY_ALLOC, epoch=8, owner="a", owner_epoch=8)
    with pytest.raises(AssertionError):
        kept(after)


def test_who_is_fenced_is_not_extended_and_nobody_fences_a_free_shard() -> None:
    held = Claim(shard=ShardId(1), state=ALREADY_ALLOC, epoch=8, owner="a", owner_epoch=8)
    assert (held.is_fenced, held.is_extended, held.intended) == (False, True, "a")
    rewound = replace(held, epoch=9)
    assert (rewound.is_fenced, rewound.is_extended) == (True, False)
    frozen = replace(held, state=TRANSFER, next="b", lapse_ms=1)
    assert (frozen.is_fenced, frozen.is_extended, frozen.intended) == (False, False, "b")
    free = Claim(shard=ShardId(1), state=NOT_ALLOC, epoch=8)
    assert (free.is_fenced, free.intended) == (False, None)


@pytest.mark.parametrize(
    ("shard", "checkpoint", "at_end"),
    [
        (one_shard(0), 0, False),
        (one_shard(5), 5, False),  # Open: more may come.
        (closed(one_shard(), 5), 4, False),
        (closed(one_shard(), 5), 5, True),
        (closed(one_shard(), 0), 0, True),  # Never held a record: needs no checkpoint.
        (closed(one_shard(), 5, first_offset=5), 0, False),  # Retention does not make a shard empty.
        (closed(one_shard(), 5, first_offset=5), 5, True),
    ],
)
def test_a_shard_is_at_its_end_when_it_is_closed_and_nothing_in_it_is_left(
    shard: Shard, checkpoint: int, at_end: bool
) -> None:
    assert is_at_end(shard, checkpoint) is at_end


@pytest.mark.parametrize(
    ("shard", "checkpoint", "is_bound", "ended", "state"),
    [
        (one_shard(5), 3, True, set(), NOT_ALLOC),
        (one_shard(5, 1, 2), 0, True, {1, 2}, NOT_ALLOC),
        (one_shard(5, 1, 2), 0, True, {1}, WAIT),
        (one_shard(5, 1), 0, True, set(), WAIT),
        (one_shard(5, 1), 0, False, set(), NOT_ALLOC),
        (closed(one_shard(0, 1), 0), 0, True, set(), OVER),
        (closed(one_shard(0, 1), 0), 0, False, set(), OVER),
        (closed(one_shard(0, 1), 5), 5, True, {1}, OVER),  # A group that starts behind it.
        (closed(one_shard(0, 1), 5), 4, True, {1}, NOT_ALLOC),
        (closed(one_shard(0, 1), 5), 4, True, set(), WAIT),
    ],
)
def test_a_shard_is_born_waiting_free_or_over(
    shard: Shard, checkpoint: int, is_bound: bool, ended: set[ShardId], state: ShardState
) -> None:
    claim = born(shard, checkpoint, is_bound=is_bound, is_told=False, ended=ended)
    assert claim == Claim(shard=shard.id, state=state, checkpoint=checkpoint, is_bound=is_bound)
    arrows = ARROWS[By.BORN_OVER if state is OVER else By.BIRTH]
    assert (None, claim.state) in arrows


@given(lineages(changes_max=5, shards_max=4), st.integers(0, 2**60))
def test_a_shard_has_ended_when_it_and_every_ancestor_are_over(shards: Shards, mask: int) -> None:
    over = {shard.id for shard in shards if mask >> shard.id & 1}
    others = [state for state in ShardState if state is not OVER]
    claims = [
        Claim(shard=shard.id, state=OVER if shard.id in over else others[shard.id % 4]) for shard in shards
    ]
    assert ended_shards(shards, claims) == {
        shard.id for shard in shards if {shard.id, *ancestors(shards, shard.id)} <= over
    }


@given(lineages(changes_max=5, shards_max=4), st.integers(0, 3**40), st.integers(0, 3**40))
def test_what_has_ended_by_states_is_what_has_ended_by_checkpoints(
    shards: Shards, ends: int, saved: int
) -> None:
    filled = tuple(replace(shard, next_offset=ends // 3**shard.id % 3) for shard in shards)
    checkpoints = {int(shard.id): saved // 3**shard.id % 3 for shard in shards}
    claims = [born(shard, checkpoints[shard.id], is_bound=True, is_told=False, ended=()) for shard in filled]
    assert ended_shards(filled, claims) == ended(filled, checkpoints)


def test_a_shard_that_has_no_claim_yet_has_not_ended() -> None:
    shards = split(first_shards(1, 0), first_shards(1, 0)[0], None, 1)
    over = Claim(shard=ShardId(0), state=OVER)
    assert ended_shards(shards, [over]) == {0}


@given(lineages(), st.data())
def test_a_lineage_is_the_shards_named_and_all_their_descendants(shards: Shards, data: st.DataObject) -> None:
    roots = data.draw(st.sets(st.sampled_from([shard.id for shard in shards]), max_size=3))
    expected = set(roots)
    for root in roots:
        expected |= set(descendants(shards, root))
    assert lineage_of(shards, roots) == expected
