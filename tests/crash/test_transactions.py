"""Consume, transform, produce: nothing is lost and nothing is there twice, whoever is killed, and when."""

import os
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

import pytest

import shoal
from shoal.testing.reading import values_by_key
from shoal.testing.workers import Report, Worker
from tests.crash.victims import change_shards

CHARGES: Final = int(os.environ.get("SHOAL_CHARGES", "900"))
KILLS: Final = int(os.environ.get("SHOAL_BILLING_KILLS", "8"))
KEYS: Final = 23
PATIENCE_S: Final = 120.0


def bill(report: Report, url: str, name: str) -> None:
    """A worker that makes a bill of each charge, until it is killed."""
    with shoal.connect(url) as hub, hub.producer("bills") as producer:

        def process(batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> None:
            with producer.transaction() as transaction:
                for record in batch:
                    transaction.send(record.value, key=record.key)
                    time.sleep(0.0005)  # So that some are killed in the middle of it.
                transaction.checkpoint(checkpointer)
            report(len(batch))

        worker = shoal.Worker(hub, "charges", "billing", process, name=name, batch_records=10, parallelism=2)
        worker.run()


@pytest.mark.parametrize("coordination", ["leased", "coordinated"])
def test_every_charge_is_billed_once_whichever_worker_is_killed(
    fresh_store_url: Callable[[], str], crash_seed: int, coordination: str
) -> None:
    chance = random.Random(crash_seed)
    url = fresh_store_url()
    with shoal.connect(url) as hub, ExitStack() as running:
        hub.create_stream("charges", shards=3)
        hub.create_stream("bills", shards=2)
        hub.create_group("charges", "billing", coordination=coordination, timeout=1.0)
        workers = [running.enter_context(Worker(bill, url, f"w{number}")) for number in range(2)]
        with hub.producer("charges") as producer:
            for number in range(CHARGES):
                producer.send(b"%d" % number, key=b"%d" % (number % KEYS))
        deadline = time.monotonic() + PATIENCE_S
        for number in range(KILLS):
            place = chance.randrange(len(workers))
            seen = len(workers[place].reports)
            # Not before it has done something, unless the others have it all: then it dies idle.
            while len(workers[place].reports) == seen and not _is_done(hub):
                assert time.monotonic() < deadline, f"nothing is billed: --crash-seed={crash_seed}"
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.02))
            workers[place].kill()
            if chance.random() < 0.4:
                change_shards(hub, "charges", chance)
            workers[place] = running.enter_context(Worker(bill, url, f"w{number + 2}"))
        while not _is_done(hub):
            assert time.monotonic() < deadline, f"it does not come to an end: --crash-seed={crash_seed}"
            time.sleep(0.05)
        for worker in workers:
            worker.kill()
        wanted = {b"%d" % key: [b"%d" % n for n in range(key, CHARGES, KEYS)] for key in range(KEYS)}
        assert values_by_key(hub, "bills") == wanted, f"--crash-seed={crash_seed}"


def _is_done(hub: shoal.Hub) -> bool:
    """By what is stored: once all is there, more of it would be wrong."""
    return hub.stats("bills").appended >= CHARGES
