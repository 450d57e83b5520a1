"""Leases that a task works under, while another process holds and renews them: the driver's, of the query.

A task cannot see the holder's deadline, which is on the clock of another machine. It looks at the group
instead, again and again: as long as the group says that the holder is alive and the epoch is current, no one
else can be given the shard before the holder has been silent for its timeout; and how long it has been silent
already, the group says too. So each look gives the task a deadline on its own clock.

Invariant: nothing is saved but under the epoch that the task was given.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

from shoal.consumer.membership import boot_ms, insist
from shoal.core.checkpoint import Save, is_same, last_positions, whole_positions
from shoal.core.describing import GroupInfo
from shoal.core.errors import Fenced, NotOwner, ShoalError, StoreError
from shoal.core.group import Coordination, check_beside
from shoal.core.holding import Lease
from shoal.core.model import ShardId, StreamName
from shoal.ports import Fence, GroupSaves, HubService
from shoal.spark.plan.stays import borrowed

_log: Final = logging.getLogger("shoal.spark")

OUTAGE_S: Final = 60.0
"""How long a task waits for a store that is away, to save what is done."""
_LOOKS: Final = 10
"""So often in the group's timeout a task looks."""
_LOOK_S_MIN: Final = 0.05


class BorrowedLeases:
    """See Membership: it joins nothing and beats for nobody. Writer of `_leases`: its thread, and savers."""

    def __init__(
        self,
        service: HubService,
        stream: StreamName,
        group: str,
        name: str,
        *,
        owners: Mapping[int, Fence],
        changed: Callable[[], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`name`: of the consumer that holds the shards. `owners`: what to show, by shard. `check` raises
        Fenced once another attempt of the task has its turn.

        `changed` is called, from another thread, when something is not ours any more or is asked back.
        """
        self.name, self.stream, self.group = name, stream, group
        self.refused: ShoalError | None = None
        """Why what was done could not be saved in the end: the store was away for too long."""
        self._service, self._owners, self._changed, self._check = service, owners, changed, check
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_beside: bool | None = None
        """Whether the rows of a leased group are in the log's database, once that was asked for."""
        seen = insist(self._see, StoreError, OUTAGE_S)
        self.info: Final = seen[0]
        """The group as it was at first."""
        self._leases: dict[ShardId, Lease] = seen[1]
        timeout_ms = self.info.settings.timeout_ms
        self._look_s = max(_LOOK_S_MIN, timeout_ms / 1000 / _LOOKS)
        self._thread = threading.Thread(target=self._run, name="shoal-borrowed", daemon=True)
        self._thread.start()

    # --- What it shows. ---

    @property
    def group_id(self) -> int:
        return next(iter(self._owners.values())).group_id

    @property
    def incarnation(self) -> str:
        return ""

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        return self._leases

    @property
    def error(self) -> ShoalError | None:
        return None

    @property
    def has_left(self) -> bool:
        return self._ended.is_set()

    def may_act(self, shard: int, epoch: int) -> bool:
        lease = self._leases.get(ShardId(shard))
        return lease is not None and lease.epoch == epoch and boot_ms() < lease.deadline_ms

    def fence(self, shard: int) -> Fence:
        return self._owners[shard]

    def wait(self, seen: int, timeout: float) -> int:
        self._ended.wait(timeout)
        return seen

    # --- What it does. ---

    def checkpoint(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> None:
        self._service.groups.save(self.stream, self.group_id, self.saves(positions, epochs=epochs).saves)

    def saves(self, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None) -> GroupSaves:
        del epochs
        if not all(self.may_act(shard, self._owners[shard].epoch) for shard in positions):
            self._check()  # What the last look said holds no more.
        saves = [
            Save(shard=ShardId(shard), epoch=self._owners[shard].epoch, offset=offset)
            for shard, offset in whole_positions(positions).items()
        ]
        return GroupSaves(stream=self.stream, group_id=self.group_id, saves=saves)

    def check_pledge(self) -> None:
        if self.info.settings.coordination is not Coordination.LEASED:
            return
        if self._is_beside is None:
            groups = self._service.groups
            self._is_beside = groups.leased(groups.find(self.stream, self.group)).is_beside
        check_beside(self.group, is_beside=self._is_beside)

    def hand_back(self, shards: set[int]) -> None:
        """The task is done with these: user code is told so."""
        with self._lock:
            self._leases = {
                shard: replace(lease, is_wanted=lease.is_wanted and shard not in shards)
                for shard, lease in self._leases.items()
            }
        self._changed()

    def release(
        self, checkpoints: Mapping[int, int | None], *, epochs: Mapping[int, int] | None = None
    ) -> None:
        """Save the last checkpoints. The lease itself is the holder's to let go of."""
        del epochs
        for shard, offset in last_positions(checkpoints).items():
            lease = self._leases.get(shard)
            try:
                if offset is not None and not (lease is not None and is_same(offset, lease.checkpoint)):
                    insist(partial(self.checkpoint, {shard: offset}), StoreError, OUTAGE_S)
            except (NotOwner, Fenced) as error:
                _log.info("shard %s of %s is another's, or over: %s", shard, self.stream, error)
            except ShoalError as error:
                self.refused = error
                raise
            finally:
                with self._lock:
                    self._leases = {one: kept for one, kept in self._leases.items() if one != shard}
        self._changed()

    def retire(self) -> None:
        """That is the holder's to say."""

    def leave(self, checkpoints: Mapping[int, int | None] | None = None) -> None:
        del checkpoints
        self.abandon()

    def abandon(self) -> None:
        self._ended.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    # --- Looking. ---

    def _run(self) -> None:
        while not self._ended.wait(self._look_s):
            try:
                _, seen = self._see()
            except ShoalError as error:
                _log.info("%s looks at its group: %s", self.name, error)
                continue  # The deadline runs meanwhile.
            with self._lock:
                before = self._leases
                # What was asked back once is finished with, whatever becomes of who asked for it.
                self._leases = {
                    shard: replace(seen[shard], is_wanted=seen[shard].is_wanted and lease.is_wanted)
                    for shard, lease in before.items()
                    if shard in seen
                }
                is_news = before.keys() != self._leases.keys() or any(
                    lease.is_wanted != before[shard].is_wanted for shard, lease in self._leases.items()
                )
            if is_news:
                self._changed()

    def _see(self) -> tuple[GroupInfo, dict[ShardId, Lease]]:
        asked_ms = boot_ms()
        try:
            self._check()
        except Fenced as error:
            _log.warning("%s: another attempt of the task has its turn: %s", self.name, error)
            return self._service.groups.describe(self.stream, self.group), {}
        info = self._service.groups.describe(self.stream, self.group)
        epochs = {shard: owner.epoch for shard, owner in self._owners.items()}
        return info, borrowed(info, self.name, epochs, asked_ms)
