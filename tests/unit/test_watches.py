"""What an observer knows of waits: it takes off what it measured since it saw them, and nothing else."""

from shoal.core.model import ShardId
from shoal.core.share import ShareState
from shoal.hub.watches import Watches

SHARD = ShardId(0)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_wait_is_shorter_by_the_time_since_it_was_seen_and_an_unknown_one_is_not_spoken_of() -> None:
    clock = Clock()
    watches = Watches(clock)
    assert watches.left(1, SHARD) == {}
    watches.see(1, SHARD, ShareState(pledges=1, left={1: 500}))
    clock.now += 0.2
    watches.see(1, SHARD, ShareState(pledges=2, left={1: 500, 2: 500}))
    assert watches.left(1, SHARD) == {1: 300, 2: 500}
    clock.now += 0.4
    assert watches.left(1, SHARD) == {1: -100, 2: 100}


def test_what_others_told_counts_if_it_is_more() -> None:
    clock = Clock()
    watches = Watches(clock)
    watches.see(1, SHARD, ShareState(pledges=1, left={1: 500}))
    clock.now += 0.1
    watches.see(1, SHARD, ShareState(pledges=1, left={1: 50}))
    assert watches.left(1, SHARD) == {1: 50}


def test_one_that_read_the_row_earlier_and_comes_later_takes_no_knowledge_away() -> None:
    clock = Clock()
    watches = Watches(clock)
    watches.see(1, SHARD, ShareState(pledges=2, left={2: 500}))
    clock.now += 0.1
    watches.see(1, SHARD, ShareState(pledges=1, left={1: 500}))
    assert watches.left(1, SHARD) == {1: 500, 2: 400}
    watches.see(1, SHARD, ShareState(pledges=3, left={3: 10}))
    assert watches.left(1, SHARD) == {3: 10}, "what the newest row does not have is over"


def test_a_forked_child_begins_anew() -> None:
    watches = Watches(Clock())
    watches.see(1, SHARD, ShareState(pledges=1, left={1: 500}))
    watches.renew()
    assert watches.left(1, SHARD) == {}
