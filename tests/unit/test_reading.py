"""What one read returns: a plan against the batches laid out record by record."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InvalidInput, OffsetExpired, OffsetOutOfRange
from shoal.core.model import Shard, ShardId, StreamName
from shoal.core.reading import BatchMeta, ReadLimits, check_offset, plan_read, whole_offset

NAME = StreamName("default", "s")


@st.composite
def stored(draw: st.DrawFn) -> list[BatchMeta]:
    """Consecutive batches, the first perhaps not at offset 0."""
    base = draw(st.integers(0, 50))
    metas = []
    for _ in range(draw(st.integers(1, 8))):
        records = draw(st.integers(1, 20))
        metas.append(
            BatchMeta(
                base_offset=base,
                records=records,
                raw_bytes=records * draw(st.integers(8, 200)) + draw(st.integers(0, 7)),
                stored_bytes=1,
                appended_ms=0,
            )
        )
        base += records
    return metas


@given(stored(), st.integers(1, 60), st.integers(1, 5000), st.data())
def test_a_plan_is_a_beginning_of_what_is_there_within_the_limits_and_as_long_as_they_allow(
    metas: list[BatchMeta], max_records: int, max_bytes: int, data: st.DataObject
) -> None:
    first, end = metas[0].base_offset, metas[-1].next_offset
    offset = data.draw(st.integers(first, end - 1))
    plan = plan_read(metas, offset, ReadLimits(max_records=max_records, max_bytes=max_bytes))
    assert plan is not None
    held = {m.base_offset: m for m in metas}
    assert plan.first_base in held
    assert plan.last_base in held
    assert plan.first_base <= offset < held[plan.first_base].next_offset
    assert plan.last_base < plan.end <= held[plan.last_base].next_offset
    assert offset < plan.end <= end
    count = plan.end - offset
    assert count <= max_records

    def weight(low: int, high: int) -> float:
        """Bytes of a range by each batch's average record."""
        return sum(
            m.raw_bytes / m.records * max(0, min(high, m.next_offset) - max(low, m.base_offset))
            for m in metas
        )

    assert count == 1 or weight(offset, plan.end) < max_bytes + len(metas)
    if count < max_records and plan.end < end:
        # It ended for the bytes: one more record, or where it ended between batches the next whole one,
        # would be over.
        more = plan.end + 1
        following = held.get(plan.end)
        if following is not None:
            more = following.next_offset
        assert weight(offset, more) > max_bytes - len(metas)


@given(stored())
def test_nothing_at_or_after_the_offset_is_no_plan(metas: list[BatchMeta]) -> None:
    assert plan_read(metas, metas[-1].next_offset, ReadLimits()) is None
    assert plan_read([], 0, ReadLimits()) is None


@given(stored(), st.integers(1, 60), st.integers(1, 3000))
def test_reading_on_and_on_visits_every_record_once(
    metas: list[BatchMeta], max_records: int, max_bytes: int
) -> None:
    limits = ReadLimits(max_records=max_records, max_bytes=max_bytes)
    offset, reads = metas[0].base_offset, 0
    while (plan := plan_read(metas, offset, limits)) is not None:
        assert plan.offset == offset < plan.end
        offset, reads = plan.end, reads + 1
        assert reads <= sum(meta.records for meta in metas)
    assert offset == metas[-1].next_offset


@given(st.integers(0, 20), st.integers(0, 20), st.integers(-5, 50))
def test_an_offset_is_kept_expired_or_out_of_range(gone: int, kept: int, offset: int) -> None:
    shard = Shard(id=ShardId(1), begin=0, end=1, first_offset=gone, next_offset=gone + kept)
    if gone <= offset <= gone + kept:
        assert check_offset(NAME, shard, offset) == offset
    elif 0 <= offset < gone:
        with pytest.raises(OffsetExpired) as expired:
            check_offset(NAME, shard, offset)
        assert expired.value.first_offset == gone
    else:
        with pytest.raises(OffsetOutOfRange) as out:
            check_offset(NAME, shard, offset)
        assert out.value.next_offset == gone + kept


@pytest.mark.parametrize(
    "limits",
    [
        {"max_records": 0},
        {"max_records": True},
        {"max_bytes": 0},
        {"max_bytes": 1.0},
        {"wait_s": -0.1},
        {"wait_s": 3601},
        {"wait_s": float("nan")},
        {"wait_s": "1"},
    ],
)
def test_limits_that_make_no_sense_are_refused_by_name(limits: dict[str, Any]) -> None:
    (field,) = limits
    with pytest.raises(InvalidInput, match=field.removesuffix("_s")):
        ReadLimits(**limits)


def test_an_offset_of_numpy_is_an_offset() -> None:
    assert whole_offset(np.int64(7)) == 7
    assert type(whole_offset(np.int64(7))) is int
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(InvalidInput):
            whole_offset(wrong)
