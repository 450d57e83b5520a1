"""Where records are set aside in a world of whole workers: a retry place and a dead one, both durable.

What is set aside for another attempt is tried again after a while, by user code that has nothing to do with
the shard any more, until it succeeds or has had all its attempts.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.core.errors import StoreUnavailable
from sim.loop import MS, Process, Steps
from sim.stage import Stage


class Places:
    """Retry and dead streams of the one group."""

    def __init__(self, stage: Stage, process: Process, max_attempts: int) -> None:
        self._stage, self._process, self._attempts_max = stage, process, max_attempts
        self.waiting = 0
        """Records that wait for another attempt."""
        self.is_poison: Callable[[int, int], bool] = lambda _shard, _offset: False

    def put(self, by: Process, aside: Callable[[], None], shard: int, offset: int) -> Steps[None]:
        """Durable at the instant of the commit, whether or not the answer comes. `aside` is told then."""

        def commit() -> None:
            aside()
            self._commit(shard, offset, 1)

        yield from self._stage.store.write(by, commit)

    def _commit(self, shard: int, offset: int, attempts: int) -> None:
        if attempts >= self._attempts_max:
            self._stage.history.counts["dead letters"] += 1
            return
        self.waiting += 1
        self._process.spawn(self._try_again(shard, offset, attempts))

    def _try_again(self, shard: int, offset: int, attempts: int) -> Steps[None]:
        yield self._stage.rng.randrange(20, 120) * MS
        if not self.is_poison(shard, offset):
            self._stage.history.counts["retried"] += 1
            self.waiting -= 1
            return
        while True:
            try:
                yield from self._stage.store.write(
                    self._process, lambda: self._commit(shard, offset, attempts + 1)
                )
            except StoreUnavailable:
                yield 50 * MS
            else:
                self.waiting -= 1
                return
