"""Eight shared consumers in processes of their own, killed at any moment: every record is settled once.

Defends invariant 4 for shared groups. Releases and rejects come between; what a killed one had in hand comes
back by itself.
"""

import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import shoal
from shoal.testing.workers import Worker, WorkerFailed
from tests.scenario.shared_consumer import GROUP, STREAM, VISIBILITY_S, bury_and_die, consume

pytestmark = pytest.mark.alone

CONSUMERS = 8
RECORDS = 200_000
KILLS = 12
DEADLINE_S = 120.0


def test_every_record_is_acknowledged_once_or_dead_through_kills_releases_and_rejects(tmp_path: Path) -> None:
    url, rng, numbers = f"sqlite:///{tmp_path / 'shoal.db'}", random.Random(5), count()
    with shoal.connect(url) as hub, ExitStack() as stack:
        hub.create_stream(STREAM, shards=2)
        for shard in (0, 1):
            for _ in range(10):
                hub.append(STREAM, shard, [b"x" * 20] * (RECORDS // 20))
        hub.create_group(STREAM, GROUP, delivery="shared", visibility=VISIBILITY_S, max_attempts=50)

        def start() -> Worker:
            number = next(numbers)
            return stack.enter_context(Worker(consume, url, tmp_path / f"{number}.log", number))

        workers = [start() for _ in range(CONSUMERS)]
        for worker in workers:
            worker.wait_for_reports(1, 60)
        killed, until = 0, time.monotonic() + DEADLINE_S
        while hub.describe_group(STREAM, GROUP).lag and time.monotonic() < until:
            if killed < KILLS:
                at = rng.randrange(CONSUMERS)
                workers[at].send_signal(signal.SIGKILL)
                workers[at] = start()
                killed += 1
            time.sleep(rng.uniform(0.0, 0.4))
        info = hub.describe_group(STREAM, GROUP)
        letters = Counter((one.origin.shard, one.origin.offset) for one in hub.dead_letters(STREAM, GROUP))
    dead = sum(shard.dead for shard in info.shards)
    acknowledged = sum(shard.acknowledged for shard in info.shards)
    assert (info.lag, acknowledged + dead) == (0, RECORDS), info
    assert sum(shard.lost for shard in info.shards) == 0
    assert killed == KILLS
    assert letters.total() == len(letters) == dead > 0, "each dead record is in the dead stream, once"
    written = _written(tmp_path)
    assert max(written.values()) == 1, "nothing is acknowledged twice"
    assert not written.keys() & letters.keys()
    # What a process acknowledged just before it was killed it had no time to write down.
    assert acknowledged - 500 * KILLS <= written.total() <= acknowledged


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_dead_letter_is_there_once_whenever_the_hub_that_writes_it_is_killed(
    store_url: str, moment: str
) -> None:
    with shoal.connect(store_url) as hub:
        hub.create_stream(STREAM, shards=1)
        hub.append(STREAM, 0, [b"poison", b"good"])
        hub.create_group(STREAM, GROUP, delivery="shared", visibility=VISIBILITY_S)
        with Worker(bury_and_die, store_url, moment) as victim, pytest.raises(WorkerFailed, match="-9"):
            victim.join(60)
        assert len(hub.dead_letters(STREAM, GROUP)) == (moment == "after the commit")
        consumer = shoal.SharedConsumer(hub, STREAM, GROUP)
        until = time.monotonic() + DEADLINE_S
        while hub.describe_group(STREAM, GROUP).lag and time.monotonic() < until:
            received = consumer.receive(wait=0.2)
            assert not received or [record.value for record in received] == [b"good"]
            consumer.ack(received)
        assert [letter.value for letter in hub.dead_letters(STREAM, GROUP)] == [b"poison"]
        (shard,) = hub.describe_group(STREAM, GROUP).shards
        assert (shard.dead, shard.acknowledged, shard.lag) == (1, 1, 0)


def _written(folder: Path) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for log in folder.glob("*.log"):
        # The last line of one that was killed may be torn.
        for line in log.read_text().split("\n")[:-1]:
            shard, _, run = line.partition(":")
            low, _, high = run.partition("-")
            found.update((int(shard), offset) for offset in range(int(low), int(high) + 1))
    return found
