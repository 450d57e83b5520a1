"""When to try again, where to, and what a record carries that was set aside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.consumer.options import OnExpired, OnStuck, WorkerOptions
from shoal.core.aside import Origin, dead_stream, origin_of, own_headers, retry_shards, retry_stream
from shoal.core.errors import InvalidInput
from shoal.core.limits import RETRY_SHARDS_MAX
from shoal.core.model import StreamInfo, StreamName, StreamSettings
from shoal.core.resharding import first_shards
from shoal.core.retry import NO_STREAK, Backoff, FailureRules, Policy, is_outage


@given(
    attempt=st.integers(1, 10**6),
    dice=st.floats(0, 1),
    first_s=st.floats(0, 100),
    factor=st.floats(1, 100),
    max_s=st.floats(0, 1000),
    jitter=st.floats(0, 1),
)
def test_a_delay_is_within_its_bound_and_its_jitter_however_often_it_failed(
    *, attempt: int, dice: float, first_s: float, factor: float, max_s: float, jitter: float
) -> None:
    backoff = Backoff(first_s=first_s, factor=factor, max_s=max_s, jitter=jitter)
    delay_ms = backoff.delay_ms(attempt, dice)
    assert 0 <= delay_ms <= max_s * (1 + jitter) * 1000 + 1
    assert delay_ms >= min(first_s, max_s) * (1 - jitter) * 1000 - 1


def test_delays_grow_up_to_their_bound() -> None:
    backoff = Backoff(first_s=0.1, factor=2.0, max_s=1.0, jitter=0.5)
    assert [backoff.delay_ms(attempt, 0.5) for attempt in range(1, 7)] == [100, 200, 400, 800, 1000, 1000]
    assert [backoff.delay_ms(1, dice) for dice in (0.0, 1.0)] == [50, 150]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Backoff, "first_s", -1),
        (Backoff, "first_s", "1"),
        (Backoff, "factor", 0.5),
        (Backoff, "max_s", float("inf")),
        (Backoff, "max_s", float("nan")),
        (Backoff, "jitter", 1.5),
        (FailureRules, "policy", "lenient"),
        (FailureRules, "max_attempts", 0),
        (FailureRules, "max_attempts", True),
        (FailureRules, "outage_after", 0),
        (FailureRules, "delays_s", ()),
        (FailureRules, "delays_s", (-1,)),
        (FailureRules, "delays_s", 5),
        (FailureRules, "delays_s", "10"),
        (FailureRules, "backoff", 1.0),
        (WorkerOptions, "failure", "strict"),
        (WorkerOptions, "outages", OSError),
        (WorkerOptions, "outages", (OSError, "TimeoutError")),
        (WorkerOptions, "on_stuck", "wait"),
        (WorkerOptions, "on_expired", "skip"),
        (WorkerOptions, "until", "tomorrow"),
        (WorkerOptions, "parallelism", 0),
        (WorkerOptions, "parallelism", 10_000),
        (WorkerOptions, "fetchers", 0),
        (WorkerOptions, "ahead_bytes", 1.5),
        (WorkerOptions, "stop_timeout", 0),
        (WorkerOptions, "persist_interval", None),
        (WorkerOptions, "process_timeout", -1),
        (WorkerOptions, "call_when_idle", "1"),
        (WorkerOptions, "fetch_interval", 0),
        (WorkerOptions, "timeout", -1),
        (WorkerOptions, "handover_timeout", "1m"),
        (WorkerOptions, "coordination", "none"),
        (WorkerOptions, "strategy", 3),
        (WorkerOptions, "start", "tomorrow"),
        (WorkerOptions, "start", None),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(kind: Any, field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        kind(**{field: value})
    assert caught.value.field == field


def test_choices_may_be_given_as_plain_words() -> None:
    """`is` would be false for a word that is only equal, and the choice would be passed over in silence."""
    words: dict[str, Any] = {"on_stuck": "release", "on_expired": "jump"}
    options = WorkerOptions(**words)
    assert options.on_stuck is OnStuck.RELEASE
    assert options.on_expired is OnExpired.JUMP
    policy: Any = "best_tried"
    assert FailureRules(policy=policy).policy is Policy.BEST_TRIED


def test_each_further_attempt_has_its_delay_and_after_the_last_there_is_none() -> None:
    rules = FailureRules(delays_s=(1, 2.5), max_attempts=4)
    assert [rules.delay_ms(attempts) for attempts in range(1, 6)] == [1000, 2500, 2500, None, None]
    assert FailureRules(delays_s=(), max_attempts=1).delay_ms(1) is None


def test_an_outage_is_said_by_the_error_or_seen_in_a_row_of_failures_alike() -> None:
    rules = FailureRules(outage_after=2)
    assert is_outage(rules, NO_STREAK, is_said=True)
    row = NO_STREAK.failed("A").failed("A")
    assert not is_outage(rules, row, is_said=False)
    assert is_outage(rules, row.failed("A"), is_said=False)
    assert not is_outage(rules, row.failed("B"), is_said=False)


@given(
    stream=st.text(max_size=20),
    shard=st.integers(0, 10**6),
    offset=st.integers(0, 2**63),
    attempts=st.integers(1, 100),
    error=st.text(max_size=50),
    own=st.dictionaries(st.sampled_from(["a", "trace", "SHOAL-x"]), st.binary(max_size=5)),
)
def test_where_a_record_came_from_is_told_by_its_headers(
    *, stream: str, shard: int, offset: int, attempts: int, error: str, own: dict[str, bytes]
) -> None:
    origin = Origin(stream=stream, shard=shard, offset=offset, timestamp=7, attempts=attempts, error=error)
    headers = {**own, **origin.headers()}
    assert origin_of(headers) == origin
    assert own_headers(headers) == own


@pytest.mark.parametrize(
    "broken",
    [{"shoal-shard": b"x"}, {"shoal-stream": b"\xff"}, {"shoal-attempts": b""}, {"shoal-offset": None}],
)
def test_headers_that_are_not_ours_or_broken_tell_nothing(broken: dict[str, bytes | None]) -> None:
    whole = Origin(stream="s", shard=0, offset=0, timestamp=0, attempts=1, error="").headers()
    headers = {name: value for name, value in {**whole, **broken}.items() if value is not None}
    assert origin_of(headers) is None
    assert origin_of({}) is None


def test_an_error_that_no_text_holds_still_tells_the_rest() -> None:
    odd = Origin(stream="s", shard=1, offset=2, timestamp=3, attempts=4, error="half \ud800 of a character")
    assert origin_of(odd.headers()) is not None
    headers = Origin(stream="s", shard=1, offset=2, timestamp=3, attempts=4, error="").headers()
    found = origin_of({**headers, "shoal-error": b"\xff\xfe"})
    assert found is not None
    assert found.attempts == 4


def test_the_streams_aside_are_named_for_the_stream_and_the_group() -> None:
    main = StreamName("shop", "orders")
    assert str(retry_stream(main, "billing")) == "shop/orders.billing.retry"
    assert str(dead_stream(main, "billing")) == "shop/orders.billing.dead"


@pytest.mark.parametrize(("shards", "wanted"), [(1, 1), (3, 3), (64, RETRY_SHARDS_MAX)])
def test_a_retry_stream_has_few_shards_and_no_more_than_the_main_one(shards: int, wanted: int) -> None:
    main = StreamInfo(
        full_name=StreamName("shop", "orders"),
        id=1,
        version=1,
        settings=StreamSettings(),
        shards=first_shards(shards, 0),
    )
    assert retry_shards(main) == wanted
