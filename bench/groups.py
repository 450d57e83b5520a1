"""The lines of the table that concern groups: heartbeats, and how soon everyone knows of a change."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import shoal
from shoal.consumer import Membership
from shoal.core.events import Letting
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.ports import Newcomer

CONSUMERS = 10
SHARDS = 100


class Beater:
    """A member that beats as often as it is told to, and reports what it holds."""

    def __init__(self, hub: shoal.Hub, stream: str, name: str) -> None:
        self._groups = hub.service.groups
        self._stream = stream_name(stream)
        self._incarnation = f"{name}-{time.monotonic_ns()}"
        newcomer = Newcomer(name=name, incarnation=self._incarnation)
        self._joined = self._groups.join(self._stream, "billing", newcomer)
        self._number = self._seen = 0
        self._held: dict[ShardId, int] = {}
        self._asked: dict[ShardId, int] = {}

    def beat(self) -> None:
        """One heartbeat, answered."""
        self._number += 1
        answer = self._groups.beat(
            self._stream,
            self._joined.group_id,
            Beat(
                incarnation=self._incarnation,
                number=self._number,
                timeout_ms=self._joined.timeout_ms,
                interval_ms=self._joined.interval_ms,
                held=self._held,
                seen=self._seen,
            ),
        )
        self._seen = answer.version
        if answer.granted is not None:
            self._held = {grant.shard: grant.epoch for grant in answer.granted}
            self._asked = {grant.shard: grant.epoch for grant in answer.granted if not grant.is_wanted}

    def hand_over(self) -> None:
        """Release what it is asked for."""
        if self._asked:
            lettings = [Letting(shard=shard, epoch=epoch) for shard, epoch in self._asked.items()]
            self._groups.release(self._joined.group_id, self._incarnation, lettings)
            self._asked = {}


def heartbeats(hubs: Sequence[shoal.Hub], shards: int, members: int, seconds: float) -> float:
    """Heartbeats a second that change nothing but the counter; members are spread over the hubs."""
    stream = f"beats-{shards}-{members}"
    hubs[0].create_stream(stream, shards=shards)
    hubs[0].create_group(stream, "billing", timeout=60)
    beaters = [Beater(hubs[i % len(hubs)], stream, f"c{i}") for i in range(members)]
    for _ in range(3):
        for beater in beaters:
            beater.beat()
            beater.hand_over()
    stop = threading.Event()
    counts = [0] * members

    def run(place: int) -> None:
        while not stop.is_set():
            beaters[place].beat()
            counts[place] += 1

    threads = [threading.Thread(target=run, args=(place,)) for place in range(members)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


class Crowd:
    """Consumers that hand over at once whatever they are asked for, each with a hub of its own."""

    def __init__(self, new_hub: Callable[[], shoal.Hub], stream: str) -> None:
        self._new_hub = new_hub
        self._stream = stream
        self._hubs: list[shoal.Hub] = []
        self.members: dict[str, Membership] = {}
        self._knows_s: dict[str, float] = {}

    def connect(self) -> shoal.Hub:
        """A hub for one more consumer: opened before anything is measured."""
        self._hubs.append(self._new_hub())
        return self._hubs[-1]

    def join(self, hub: shoal.Hub, name: str) -> None:
        """One more consumer."""

        def drain(outcome: object) -> None:
            self._knows_s[name] = time.perf_counter()
            asked = [lease.shard for lease in outcome.closing]  # type: ignore[attr-defined]
            member = self.members.get(name)
            if asked and member is not None:
                member.release({shard: None for shard in asked if shard in member.leases})

        self.members[name] = hub.join_group(self._stream, "billing", name, listener=drain)

    def settled(self, hub: shoal.Hub, began: float) -> float:
        """Wait until nothing moves, and everyone knows; seconds from `began` to the last one knowing.

        The hub is asked only once the consumers themselves believe that it is over: asking costs, too.
        """
        deadline = time.perf_counter() + 30
        while time.perf_counter() < deadline:
            leases = [lease for member in self.members.values() for lease in member.leases.values()]
            counts = [len(member.leases) for member in self.members.values()]
            quiet_s = time.perf_counter() - max([*self._knows_s.values(), began])
            if all(lease.is_wanted for lease in leases) and max(counts) - min(counts) <= 1 and quiet_s > 0.05:
                info = hub.describe_group(self._stream, "billing")
                held = {(shard.id, shard.epoch) for shard in info.shards if shard.owner is not None}
                if info.state == "stable" and held == {(lease.shard, lease.epoch) for lease in leases}:
                    return max([*self._knows_s.values(), began]) - began
            time.sleep(0.005)
        raise TimeoutError("the group did not settle within 30 s")

    def leave(self, name: str) -> None:
        """One goes, and its hub with it once it has left."""
        self.members.pop(name).leave()
        self._knows_s.pop(name, None)

    def disconnect(self, hub: shoal.Hub) -> None:
        """A hub that nobody uses any more."""
        self._hubs.remove(hub)
        hub.close()

    def close(self) -> None:
        """All go."""
        for hub in self._hubs:
            hub.close()


def changes(hub: shoal.Hub, new_hub: Callable[[], shoal.Hub], rounds: int) -> dict[str, tuple[float, float]]:
    """p50 and p99 in ms, from the call to the last affected consumer knowing: joins, leaves, splits."""
    stream = "moves"
    hub.create_stream(stream, shards=SHARDS)
    hub.create_group(stream, "billing")
    crowd = Crowd(new_hub, stream)
    took: dict[str, list[float]] = {"join": [], "leave": [], "split": []}
    try:
        for i in range(CONSUMERS - 1):
            crowd.join(crowd.connect(), f"c{i}")
        crowd.settled(hub, time.perf_counter())
        for i in range(rounds):
            extra = crowd.connect()
            crowd.settled(hub, time.perf_counter())
            for what, act in (
                ("join", partial(crowd.join, extra, f"extra-{i}")),
                ("split", lambda: hub.split_shard(stream, _middle(hub, stream))),
                ("leave", partial(crowd.leave, f"extra-{i}")),
            ):
                began = time.perf_counter()
                act()
                took[what].append(crowd.settled(hub, began) * 1000)
            crowd.disconnect(extra)
    finally:
        crowd.close()
    return {what: _percentiles(times) for what, times in took.items()}


def _middle(hub: shoal.Hub, stream: str) -> int:
    """The widest open shard."""
    shards: Sequence[shoal.Shard] = hub.describe_stream(stream).open_shards
    return max(shards, key=lambda shard: shard.end - shard.begin).id


def _percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return cuts[49], cuts[98]
