"""Records that a worker set aside, and then died: whoever is left tries them again."""

from __future__ import annotations

import threading

import shoal
from shoal.testing import workers
from shoal.testing.members import eventually
from tests.scenario.worker_process import GROUP, STREAM, refuse_until_killed

RECORDS = 5
DELAY_S = 0.5
RETRY = f"{STREAM}.{GROUP}.retry"


def test_what_a_killed_worker_had_set_aside_is_tried_again_by_another(store_url: str) -> None:
    values = [b"%d" % number for number in range(RECORDS)]
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
        hub.append(STREAM, 0, [shoal.Record(0, 0, value, value) for value in values])
        with workers.Worker(refuse_until_killed, store_url, DELAY_S) as victim:
            eventually(lambda: max(victim.reports, default=0) >= RECORDS, "all are set aside")
            victim.kill()
        came: dict[str, set[bytes]] = {STREAM: set(), RETRY: set()}
        lock = threading.Lock()

        def take(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            with lock:
                came[batch.stream] |= {record.value for record in batch}
            checkpointer.save()

        def is_done() -> bool:
            left = hub.retrying(STREAM, GROUP)
            return (left.waiting, left.due) == (0, 0)

        rules = shoal.FailureRules(policy=shoal.Policy.BEST_TRIED, delays_s=(DELAY_S,))
        with shoal.Worker(hub, STREAM, GROUP, take, name="heir", failure=rules):
            eventually(lambda: came[RETRY] == set(values), "all that was set aside is tried again")
            eventually(is_done, "and nothing of it is left")
