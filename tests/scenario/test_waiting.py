"""A reader in one process waits for what another process appends: it is woken soon, and does not spin."""

import statistics
import time

import pytest

import shoal
from shoal.testing.workers import Worker
from tests.scenario.waiting import STREAM, wait_for_each, wait_for_end, wait_idle

pytestmark = pytest.mark.alone

RECORDS = 8
PATIENCE_S = 30.0
WOKEN_S_MAX = 0.5
IDLE_S = 3.0
IDLE_SHARE_MAX = 0.03


@pytest.fixture
def hub_url(store_url: str) -> str:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
    return store_url


def test_a_waiting_reader_is_woken_by_an_append_of_another_process(hub_url: str) -> None:
    latencies_s = []
    with shoal.connect(hub_url) as hub, Worker(wait_for_each, hub_url, RECORDS) as reader:
        reader.wait_for_reports(1, PATIENCE_S)
        for number in range(RECORDS):
            time.sleep(0.1)  # So that most appends meet a reader that has been waiting for a while.
            hub.append(STREAM, 0, [str(number)])
            stored_ns = time.monotonic_ns()
            reader.wait_for_reports(number + 2, PATIENCE_S)
            latencies_s.append((reader.reports[-1] - stored_ns) / 1e9)
        reader.join(PATIENCE_S)
    _tell(f"woken after {statistics.median(latencies_s):.4f} s, at most {max(latencies_s):.4f} s")
    assert statistics.median(latencies_s) < WOKEN_S_MAX


def test_a_waiting_reader_is_woken_when_another_process_closes_the_shard(hub_url: str) -> None:
    with shoal.connect(hub_url) as hub, Worker(wait_for_end, hub_url) as reader:
        reader.wait_for_reports(1, PATIENCE_S)
        time.sleep(0.2)  # So that the split meets a reader that has been waiting for a while.
        hub.split_shard(STREAM, 0)
        closed_ns = time.monotonic_ns()
        woken_ns, records, is_end = reader.join(PATIENCE_S)[-1]
    assert (records, is_end) == (0, True)
    assert (woken_ns - closed_ns) / 1e9 < WOKEN_S_MAX * 4


def test_a_reader_that_waits_uses_next_to_nothing_of_a_core(hub_url: str) -> None:
    with Worker(wait_idle, hub_url, IDLE_S) as reader:
        records, share = reader.join(PATIENCE_S)[-1]
    _tell(f"waiting took {share:.2%} of a core")
    assert records == 0
    assert share < IDLE_SHARE_MAX


def _tell(measured: str) -> None:
    print(measured)  # noqa: T201 - seen with -s, and whenever the test fails
