"""How soon a consumer knows what it was given: by waiting, in process, across processes, on every store."""

import statistics
import time

import pytest

import shoal
from shoal.testing.members import PATIENCE_S, eventually
from shoal.testing.workers import Report, Worker

STREAM, GROUP, ROUNDS = "orders", "billing", 9
BOUND_S = {"sqlite": 0.05, "postgresql": 0.05, "mysql": 0.25}
"""From the commit of the decision to the consumer knowing, the median of some rounds."""


@pytest.fixture(params=["coordinated", "leased"])
def hub_url(store_url: str, request: pytest.FixtureRequest) -> str:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
        hub.create_group(STREAM, GROUP, timeout=20, coordination=request.param)
    return store_url


def bound_of(url: str) -> float:
    return BOUND_S[url.partition(":")[0]]


def take_turns(report: Report, url: str) -> None:
    """Join, wait for the shard, say when it came, leave; again. Its name comes first, so it is given it."""
    with shoal.connect(url) as hub:
        while True:
            with hub.join_group(STREAM, GROUP, "a-worker") as member:
                report("joined")
                seen = 0
                while 0 not in member.leases:
                    seen = member.wait(seen, PATIENCE_S)
                report(time.monotonic())


def test_a_consumer_in_the_same_hub_knows_at_once(hub_url: str) -> None:
    with shoal.connect(hub_url) as hub:
        took = []
        for i in range(ROUNDS):
            first = hub.join_group(STREAM, GROUP, f"a{i}")
            eventually(lambda first=first: 0 in first.leases, "the first has it")  # type: ignore[misc]
            second = hub.join_group(STREAM, GROUP, f"b{i}")
            first.leave()
            decided = time.monotonic()
            eventually(lambda second=second: 0 in second.leases, "the second has it")  # type: ignore[misc]
            took.append(time.monotonic() - decided)
            second.leave()
    assert statistics.median(took) < bound_of(hub_url), took


def test_a_consumer_in_another_process_knows_as_soon(hub_url: str) -> None:
    with shoal.connect(hub_url) as hub:
        took = []
        holder = hub.join_group(STREAM, GROUP, "p0")
        with Worker(take_turns, hub_url) as other:
            for i in range(ROUNDS):
                eventually(lambda holder=holder: 0 in holder.leases, "it is ours")  # type: ignore[misc]
                other.wait_for_reports(2 * i + 1, PATIENCE_S)
                following = hub.join_group(STREAM, GROUP, f"p{i + 1}")
                holder.leave()
                decided = time.monotonic()
                other.wait_for_reports(2 * i + 2, PATIENCE_S)
                took.append(other.reports[2 * i + 1] - decided)
                holder = following
    assert statistics.median(took) < bound_of(hub_url), took
