"""Four processes append by key while another splits, merges and reshards.

Defends 3, 4 and 7 of the design's section 10, as far as the log goes.
"""

import random
import time
from contextlib import ExitStack

import pytest

import shoal
from shoal.testing.history import Ack, find_faults, read_history
from shoal.testing.workers import Worker
from tests.scenario.writers import STREAM, Follower, change_until, write_by_key

WRITERS = 4
CHANGES = 40


@pytest.mark.timeout(120)
def test_per_key_the_order_of_append_is_the_order_of_reading_through_splits_and_merges(
    store_url: str,
) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    chance = random.Random(seed)
    with ExitStack() as stack:
        hub = stack.enter_context(shoal.connect(store_url))
        upto = hub.create_stream(STREAM, shards=3).version + CHANGES
        writers = [
            stack.enter_context(Worker(write_by_key, store_url, f"w{i}", chance.random(), upto))
            for i in range(WRITERS)
        ]
        changer = stack.enter_context(Worker(change_until, store_url, chance.random(), upto))

        follower = Follower(hub, STREAM)
        deadline = time.monotonic() + 100
        while any(writer.is_alive for writer in (*writers, changer)):
            follower.advance()
            assert time.monotonic() < deadline
        while follower.advance():
            assert time.monotonic() < deadline

        done = changer.join(10)
        acks: list[Ack] = [ack for writer in writers for report in writer.join(10) for ack in report]
        shards, stored = read_history(hub, STREAM)
    assert {"split", "merge", "reshard"} <= set(done)
    assert len({ack.writer for ack in acks}) == WRITERS
    assert len(stored) == len(acks), f"seed {seed}: as many are stored as were acknowledged"
    for told, what in ((stored, "read afterwards"), (follower.stored, "read meanwhile")):
        faults = find_faults(shards, told, acks)
        assert not faults, f"seed {seed}, {what}:\n" + "\n".join(faults)
