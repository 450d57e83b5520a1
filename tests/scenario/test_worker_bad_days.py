"""Logs, groups, hubs and stores that are gone, for a while or for ever.

Shown each time: nothing is passed over in silence, nothing else is held up, and work goes on by itself, or
ends with the reason.
"""

from __future__ import annotations

import threading

import pytest

import shoal
from shoal import Batch, Checkpointer, Hub, Worker
from shoal.core.errors import HubClosed, NotFound, StoreUnavailable
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.testing.members import eventually
from shoal.testing.processing import Diary, append_numbers, checkpoints, save_now
from shoal.testing.server import Server
from tests.scenario.small_work import GROUP, QUICK, STREAM, Make


def test_records_that_retention_removed_stop_a_shard_or_are_jumped_as_the_user_says(
    hub: Hub, work: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hub.create_group(STREAM, GROUP)
    hub.set_retention(STREAM, retention_bytes=1)
    append_numbers(hub, STREAM, 0, range(5, 8))
    hub.enforce_retention(STREAM)
    assert hub.describe_stream(STREAM).shards[0].first_offset == 5
    diary = Diary()
    standing = work(diary.processor()).start()
    eventually(lambda: standing.stats.fetch_errors >= 2, "it stands still and says so")
    eventually(lambda: diary.offsets(1) == list(range(5)), "the other shard goes on")
    assert diary.offsets(0) == []
    eventually(lambda: _blocked(hub, 0).startswith("OffsetExpired: "), "whoever looks at the group sees it")
    assert _blocked(hub, 1) == ""
    assert "offset=0" in caplog.text
    standing.stop()
    jumping = work(diary.processor(), on_expired="jump").start()
    eventually(lambda: diary.offsets(0) == [5, 6, 7], "it goes on behind what is gone")
    assert jumping.stats.skipped == 5
    eventually(lambda: _blocked(hub, 0) == "", "nothing holds it up any more")
    assert "retention removed 5 records" in caplog.text
    jumping.stop()
    assert checkpoints(hub, STREAM, GROUP)[0] == 8


def _blocked(hub: Hub, shard: int) -> str:
    blocked = hub.describe_group(STREAM, GROUP).shards[shard].blocked
    return "" if blocked is None else blocked.error


def test_going_back_to_what_retention_removed_jumps_too(hub: Hub, work: Make) -> None:
    hub.set_retention(STREAM, retention_bytes=1)
    diary = Diary()

    def back(batch: Batch, checkpointer: Checkpointer) -> int | None:
        if batch.shard == 0 and len(diary.offsets(0)) == 5:
            append_numbers(hub, STREAM, 0, range(5, 8))
            hub.enforce_retention(STREAM)
            return 0
        checkpointer.save(persist=False)
        return None

    work(diary.processor(work=back), on_expired="jump").start()
    eventually(lambda: diary.offsets(0) == [0, 1, 2, 3, 4, 5, 6, 7], "it goes on")


@pytest.mark.parametrize("gone", ["stream", "group", "hub"])
def test_a_worker_whose_stream_group_or_hub_is_gone_ends_with_the_reason(
    hub: Hub, work: Make, sqlite_url: str, gone: str
) -> None:
    diary = Diary()
    own = shoal.connect(sqlite_url)
    worker = Worker(own, STREAM, GROUP, diary.processor(), timeout=1.0)
    if gone == "stream":
        hub.create_stream("short-lived", shards=1)
        worker = Worker(own, "short-lived", GROUP, diary.processor(), timeout=1.0)
    worker.start()
    eventually(lambda: bool(worker.shards), "it works")
    if gone == "stream":
        hub.delete_stream("short-lived")
    elif gone == "group":
        hub.delete_group(STREAM, GROUP, force=True)
    else:
        own.close()
    assert worker.wait(20), "it ends by itself"
    assert isinstance(worker.error, HubClosed if gone == "hub" else NotFound)
    own.close()


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("coordination", ["coordinated", "leased"])
@pytest.mark.timeout(120)
def test_a_worker_resumes_by_itself_when_the_database_was_away(
    postgres_server: Server, kind: str, coordination: str
) -> None:
    url = postgres_server.fresh_database()
    diary = Diary()
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=2)
        for shard in (0, 1):
            append_numbers(hub, STREAM, shard, range(5))
        rules = FailureRules(policy=Policy.BEST_TRIED, backoff=Backoff(first_s=0.05, max_s=0.2))
        with Worker(
            hub,
            STREAM,
            GROUP,
            diary.processor(work=save_now),
            timeout=1.0,
            coordination=coordination,
            failure=rules,
        ) as worker:
            diary.wait_for(10)
            postgres_server.stop("immediate")
            eventually(lambda: worker.stats.fetch_errors > 0 or not worker.is_running, "it is noticed")
            threading.Event().wait(2.0)  # Longer than the group's timeout: deadlines pass meanwhile.
            postgres_server.start()
            eventually(lambda: _append(hub, 0) and _append(hub, 1), "the store is back")
            eventually(lambda: {len(set(diary.offsets(s))) for s in (0, 1)} == {6}, "it goes on")
            eventually(lambda: hub.describe_group(STREAM, GROUP).lag == 0, "and saves")
            assert worker.is_running
            assert worker.stats.retries == worker.stats.dead == 0, "no record was to blame"
    for shard in (0, 1):
        assert diary.offsets(shard)[:5] == list(range(5))
    postgres_server.drop_database(url)


def _append(hub: Hub, shard: int) -> bool:
    if hub.describe_stream(STREAM).shards[shard].next_offset > 5:
        return True
    try:
        append_numbers(hub, STREAM, shard, [5])
    except StoreUnavailable:
        return False
    return True


def test_a_store_that_is_away_when_user_code_saves_is_no_fault_of_a_record(work: Make) -> None:
    tries: list[int] = []

    def process(batch: Batch, checkpointer: Checkpointer) -> None:
        if batch.shard == 0 and len(tries) < 8:
            tries.append(len(batch))
            raise StoreUnavailable("as a save would raise it")
        checkpointer.save()

    rules = FailureRules(policy=Policy.BEST_TRIED, backoff=QUICK.backoff, delays_s=(0.01,))
    worker = work(process, failure=rules).start()
    eventually(lambda: worker.stats.records == 10, "all is processed")
    assert (worker.stats.retries, worker.stats.dead) == (0, 0)
    assert tries == [5] * 8


def test_a_failed_part_ends_the_whole_worker(hub: Hub, work: Make) -> None:
    """With `stop` in one part (here: the retry stream is gone), the other does not go on alone."""
    rules = FailureRules(policy=Policy.BEST_TRIED, delays_s=(0.01,))
    worker = work(save_now, failure=rules, timeout=1.0).start()
    eventually(lambda: worker.stats.records == 10, "it works")
    hub.delete_stream(f"{STREAM}.{GROUP}.retry")
    assert worker.wait(20)
    with pytest.raises(NotFound):
        worker.stop()
