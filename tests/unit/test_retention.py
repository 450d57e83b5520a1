"""What may be forgotten, against a model that removes one batch at a time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput
from shoal.core.model import ShardId, StreamSettings
from shoal.core.reading import BatchMeta
from shoal.core.retention import ShardFront, checked_retention, plan_cuts

Fronts = dict[ShardId, ShardFront]


@st.composite
def fronts(draw: st.DrawFn) -> Fronts:
    """Some shards with batches whose times do not go down."""
    found: Fronts = {}
    for shard in range(draw(st.integers(0, 4))):
        base, at = draw(st.integers(0, 9)), 0
        metas = []
        for _ in range(draw(st.integers(1, 6))):
            records, at = draw(st.integers(1, 5)), at + draw(st.integers(0, 3))
            metas.append(
                BatchMeta(
                    base_offset=base,
                    records=records,
                    raw_bytes=1,
                    stored_bytes=draw(st.integers(1, 100)),
                    appended_ms=at,
                )
            )
            base += records
        hidden = draw(st.integers(0, 3))  # Batches beyond the front that the store did not show.
        found[ShardId(shard)] = ShardFront(next_offset=base + hidden, oldest=metas)
    return found


def plain_cuts(fronts: Fronts, stream_bytes: int, settings: StreamSettings, now_ms: int) -> dict[int, int]:
    """Shard -> first kept offset: remove the oldest batch that may go, again and again."""
    left = {shard: list(front.oldest) for shard, front in fronts.items()}
    first: dict[int, int] = {}
    while True:
        heads = sorted((metas[0].appended_ms, shard) for shard, metas in left.items() if metas)
        for at, shard in heads:
            head = left[shard][0]
            is_old = settings.retention_ms is not None and at <= now_ms - settings.retention_ms
            is_over = settings.retention_bytes is not None and stream_bytes > settings.retention_bytes
            is_last = head.next_offset == fronts[shard].next_offset
            if is_old or (is_over and not is_last):
                left[shard].pop(0)
                stream_bytes -= head.stored_bytes
                first[shard] = head.next_offset
                break
        else:
            return first


@given(
    fronts(),
    st.integers(0, 100),
    st.none() | st.integers(1, 8),
    st.none() | st.integers(1, 200),
    st.integers(0, 16),
)
def test_cuts_are_those_of_removing_the_oldest_again_and_again(
    found: Fronts, hidden_bytes: int, age: int | None, size: int | None, now_ms: int
) -> None:
    settings = StreamSettings(retention_ms=age, retention_bytes=size)
    total = hidden_bytes + sum(meta.stored_bytes for front in found.values() for meta in front.oldest)
    cuts = plan_cuts(found, total, settings, now_ms)
    assert {shard: cut.first_offset for shard, cut in cuts.items()} == plain_cuts(
        found, total, settings, now_ms
    )
    for shard, cut in cuts.items():
        gone = [meta for meta in found[shard].oldest if meta.next_offset <= cut.first_offset]
        assert cut.first_offset == gone[-1].next_offset
        assert cut.records == sum(meta.records for meta in gone) > 0
        assert cut.bytes == sum(meta.stored_bytes for meta in gone)


@given(fronts(), st.integers(0, 10**6))
def test_without_a_limit_nothing_is_cut(found: Fronts, now_ms: int) -> None:
    assert plan_cuts(found, 10**9, StreamSettings(), now_ms) == {}


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1", 2**70])
def test_a_limit_that_makes_no_sense_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match="retention_bytes="):
        checked_retention("retention_bytes", value)


def test_a_limit_may_be_left_out() -> None:
    assert checked_retention("retention_bytes", None) is None
    assert checked_retention("retention_bytes", 1) == 1
