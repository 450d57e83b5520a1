"""The rules of an outbox's relay: how rows are noted, and what makes a stream stall."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import (
    DeliveryTimeout,
    HubClosed,
    InvalidInput,
    ProducerFenced,
    ShoalError,
    StoreFailure,
    StoreUnavailable,
    TooLarge,
    UnknownStream,
)
from shoal.core.relaying import (
    RETRY_MOST_S,
    as_text,
    fitting,
    ids_of,
    is_streams_own,
    pairs_as_text,
    pairs_of,
    retry_after_s,
)

IDS = st.lists(st.integers(1, 60), unique=True)


@given(IDS)
def test_ids_are_noted_in_their_order(ids: list[int]) -> None:
    assert ids_of(as_text(ids)) == ids


@given(IDS, st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_rows_are_noted_with_their_numbers(ids: list[int], steps: list[int]) -> None:
    number, pairs = 100, []
    for one, step in zip(ids, steps, strict=False):
        number += 1 + step
        pairs.append((one, number))
    assert pairs_of(pairs_as_text(pairs)) == tuple(pairs)


def test_runs_of_rows_and_numbers_are_noted_as_one() -> None:
    assert pairs_as_text([(3, 10), (4, 11), (5, 12), (7, 13), (8, 15)]) == "3-5@10,7@13,8@15"
    assert pairs_as_text([]) == ""
    assert pairs_of("") == ()


def test_a_batch_has_a_row_however_large_it_is() -> None:
    assert fitting([(1, 500), (2, 1)], 100) == [1]
    assert fitting([(1, 50), (2, 50), (3, 1)], 100) == [1, 2]


@pytest.mark.parametrize(
    ("error", "is_own"),
    [
        (UnknownStream("orders"), True),
        (InvalidInput("value", "much", "a whole number"), True),
        (TooLarge("record", size=2, limit=1, remedy="send less"), True),
        (StoreUnavailable("away"), False),
        (StoreFailure("broken"), False),
        (HubClosed(), False),
        (ProducerFenced(producer="outbox", held=1, current=2), False),
        (DeliveryTimeout(shard=0, records=1, waited_s=1.0, last="away"), False),
    ],
)
def test_a_stream_stalls_for_what_it_refuses_and_not_for_a_hub_that_is_away(
    error: ShoalError, is_own: bool
) -> None:
    assert is_streams_own(error) == is_own


def test_a_stream_that_stalls_is_tried_again_less_and_less_often_up_to_a_bound() -> None:
    waits = [retry_after_s(1.0, tries) for tries in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, RETRY_MOST_S, RETRY_MOST_S, RETRY_MOST_S]
    assert retry_after_s(1.0, 100_000) == RETRY_MOST_S
    assert retry_after_s(60.0, 3) == 60.0
