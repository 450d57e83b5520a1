"""The workers of one world: what they are told, the program they run, and where it sets records aside."""

from __future__ import annotations

from collections.abc import Callable

from sim.loop import Process
from sim.places import Places
from sim.seat import Seat
from sim.stage import Stage
from sim.user_code import UserCode
from sim.worker import Worker
from sim.worker_swarm import workers_chosen


class Staff:
    """What all workers have in common. `focus`: see `worker_swarm`."""

    def __init__(self, stage: Stage, admin: Process, focus: tuple[str, ...]) -> None:
        self._stage = stage
        self.swarm = workers_chosen(stage.rng, focus)
        self._code = UserCode(stage, self.swarm)
        self.places = Places(stage, admin, self.swarm.max_attempts)
        self.places.is_poison = self._code.is_poison

    def worker(self, process: Process, seat: Seat, name: str, ended: Callable[[str], None]) -> Worker:
        """Another one."""
        return Worker(
            self._stage,
            process,
            seat,
            name,
            swarm=self.swarm,
            code=self._code,
            places=self.places,
            ended=ended,
        )
