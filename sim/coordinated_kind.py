"""Worlds of coordinated groups: hubs in servers behind a balancer or in consumers, each with its watch."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.events import Rewind, Update
from shoal.core.group import Claim, GroupSettings, ShardState
from shoal.core.model import ShardId
from sim.coordinated import CoordinatedSeat
from sim.hub import Hub
from sim.loop import Process, Steps
from sim.network import Network
from sim.rows import GroupRows, Rows
from sim.stage import Stage
from sim.watcher import Watcher


class CoordinatedKind:
    """See Kind."""

    cleans_up = False
    generation_ms = 0

    def __init__(self, stage: Stage, admin: Process) -> None:
        self._stage = stage
        self._admin = Hub(stage, admin)
        """Who makes calls, by people or by scripts. It never fails itself."""
        self._keeper = Hub(stage, stage.process("keeper"))
        """In worlds with hubs of an older release, somebody who knows the strategy and decides."""
        self._servers: list[Hub] = []
        self._born = 0

    def begin(self) -> None:
        is_mixed = bool(self._stage.swarm.habit("old server"))
        for place in range(self._stage.swarm.servers):
            self._add_server(knows_all=place == 0 or not is_mixed)
        if is_mixed:
            self._watch(self._keeper)

    def made(self, settings: GroupSettings, *, start_at_end: bool) -> Rows:
        store = self._stage.store
        assert store.stream is not None
        rows = GroupRows(
            id=store.next_id(),
            stream_id=store.stream.id,
            version=0,
            epoch=0 if "epochs restart" in self._stage.switches else store.sequence,
            settings=settings,
        )
        for shard in store.stream.shards:
            start = shard.next_offset if start_at_end else shard.first_offset
            is_over = not shard.is_open and start >= shard.next_offset
            rows.claims.append(
                Claim(
                    shard=shard.id,
                    state=ShardState.OVER if is_over else ShardState.WAIT,
                    checkpoint=start,
                    is_bound=settings.in_order,
                )
            )
        return rows

    def dropped(self, rows: Rows) -> None:
        """Its members and claims go with it in one transaction."""

    def seat(self, process: Process, name: str) -> CoordinatedSeat:
        own = None
        if self._stage.rng.random() < self._stage.swarm.embedded or not self._servers:
            own = Hub(self._stage, process, knows_all=not self._stage.is_so("old server"))
            self._watch(own)
        self._stage.history.say(process.name, f"is served {'on its own' if own else 'by servers'}")
        return CoordinatedSeat(self._stage, process, Network(self._stage, process, own, self._servers), name)

    def update(self, group: int, settings: GroupSettings) -> Steps[None]:
        yield from self._admin.step(group, Update(settings=settings))

    def rewind(self, group: int, positions: Mapping[ShardId, int], why: str) -> Steps[None]:
        yield from self._admin.step(group, Rewind(positions=positions, why=why))

    def servers(self) -> list[Process]:
        return [hub.process for hub in self._servers]

    def restart_server(self, process: Process, after_us: int) -> None:
        place = self.servers().index(process)
        victim = self._servers.pop(place)
        knows_all = bool(victim.strategies)
        self._stage.loop.after(after_us, lambda: self._add_server(knows_all=knows_all))

    def others(self) -> list[Process]:
        return [*self.servers(), self._keeper.process]

    def _add_server(self, *, knows_all: bool) -> None:
        self._born += 1
        hub = Hub(self._stage, self._stage.process(f"server{self._born}"), knows_all=knows_all)
        self._servers.append(hub)
        self._watch(hub)
        self._stage.history.say(hub.process.name, "starts" if knows_all else "starts, of an older release")

    def _watch(self, hub: Hub) -> None:
        hub.process.spawn(Watcher(self._stage, hub).run())
