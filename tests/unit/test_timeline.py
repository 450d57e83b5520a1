"""Where a time lies in a shard, against a look at every record."""

from bisect import bisect_right
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.model import Shard, ShardId
from shoal.core.reading import BatchMeta
from shoal.core.timeline import find_appended, find_offset

Batches = list[list[int]]
batches_of_stamps = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), max_size=12)


@given(batches_of_stamps, st.integers(0, 12), st.integers(0, 55))
def test_a_time_is_found_at_the_first_record_that_reaches_it(batches: Batches, gone: int, at: int) -> None:
    gone = min(gone, len(batches))
    bases = [0, *accumulate(len(batch) for batch in batches)]
    flat = [stamp for batch in batches for stamp in batch]
    tops = [max(flat[: bases[i + 1]]) for i in range(len(batches))]
    shard = Shard(id=ShardId(0), begin=0, end=1, first_offset=bases[gone], next_offset=bases[-1])

    def batch_at(offset: int) -> tuple[BatchMeta, int] | None:
        i = bisect_right(bases[:-1], offset) - 1
        assert gone <= i < len(batches), "asked for an offset that is not there"
        meta = BatchMeta(
            base_offset=bases[i], records=len(batches[i]), raw_bytes=1, stored_bytes=1, appended_ms=0
        )
        return meta, tops[i]

    def timestamps(base: int) -> list[int]:
        return batches[bases.index(base)]

    kept = flat[bases[gone] :]
    found = find_offset(shard, at, batch_at, timestamps)
    exact = next((bases[gone] + i for i, stamp in enumerate(kept) if stamp >= at), bases[-1])
    if any(stamp >= at for stamp in flat[: bases[gone]]):
        # A record of that time has expired: nothing that is still there and may belong to it is skipped.
        assert bases[gone] <= found <= exact
    else:
        assert found == exact


@given(batches_of_stamps, st.integers(0, 55))
def test_a_shard_that_is_trimmed_meanwhile_is_searched_from_what_is_left(batches: Batches, at: int) -> None:
    bases = [0, *accumulate(len(batch) for batch in batches)]
    shard = Shard(id=ShardId(0), begin=0, end=1, next_offset=bases[-1])
    assert find_offset(shard, at, lambda _: None, lambda _: []) == bases[-1]
    assert find_appended(shard, at, lambda _: None) == bases[-1]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=12), st.integers(0, 55))
def test_when_batches_were_appended_is_looked_for_whatever_times_their_records_carry(
    appended: list[tuple[int, int]], at: int
) -> None:
    batches = [(ms, records) for (ms, _), (_, records) in zip(sorted(appended), appended, strict=True)]
    bases = [0, *accumulate(records for _, records in batches)]
    shard = Shard(id=ShardId(0), begin=0, end=1, next_offset=bases[-1])

    def batch_at(offset: int) -> tuple[BatchMeta, int]:
        i = bisect_right(bases[:-1], offset) - 1
        ms, records = batches[i]
        return BatchMeta(
            base_offset=bases[i], records=records, raw_bytes=1, stored_bytes=1, appended_ms=ms
        ), 0

    wanted = next((base for base, (ms, _) in zip(bases, batches, strict=False) if ms >= at), bases[-1])
    assert find_appended(shard, at, batch_at) == wanted
