"""The lines of the table that concern groups: heartbeats, and how soon everyone knows of a change."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import shoal
from shoal.consumer import Membership
from shoal.core.events import Letting
from shoal.core.holding import Answered, Lease
from shoal.core.membership import Beat
from shoal.core.model import ShardId
from shoal.core.names import stream_name
from shoal.ports import Newcomer

CONSUMERS = 10
SHARDS = 100
STREAM, GROUP = "moves", "billing"


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
    """Consumers in processes of their own, which hand over at once whatever they are asked for.

    They tell what they hold whenever it changes, with the time on a clock that all processes share.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._processes: dict[str, tuple[BaseProcess, Pipe]] = {}
        self._held: dict[str, list[Lease]] = {}
        self._knows_ns: dict[str, int] = {}
        self._called_ns = 0

    def connect(self, name: str) -> None:
        """A process with a hub, for one more consumer: ready before anything is measured."""
        here, there = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_consume, args=(self._url, name, there), daemon=True
        )
        process.start()
        there.close()
        self._processes[name] = (process, here)
        assert here.recv() == "ready"

    def join(self, name: str) -> None:
        """One more consumer."""
        self._held[name] = []
        self._order(name, "join")

    def leave(self, name: str) -> None:
        """One goes, and its process with it."""
        self._order(name, "leave")
        del self._held[name]
        self._knows_ns.pop(name, None)
        process, pipe = self._processes.pop(name)
        pipe.close()
        process.join(10)

    def _order(self, name: str, what: str) -> None:
        """Have it done. What others tell meanwhile waits in their pipes."""
        pipe = self._processes[name][1]
        pipe.send(what)
        while True:
            heard = pipe.recv()
            if isinstance(heard, int):
                self._called_ns = heard
                return
            self._hear(name, heard)

    def _hear(self, name: str, heard: tuple[int, list[Lease]]) -> None:
        self._knows_ns[name], self._held[name] = heard

    def settled(self, hub: shoal.Hub, since_ns: int | None = None) -> float:
        """Wait until nothing moves, and everyone knows; ms from the call to the last one knowing.

        The hub is asked only once the consumers themselves believe that it is over: asking costs, too.
        """
        since_ns = since_ns or self._called_ns
        names = {pipe: name for name, (_, pipe) in self._processes.items()}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            heard = wait(list(names), 0.1)
            for pipe, name in names.items():
                if pipe in heard:
                    self._hear(name, pipe.recv())
            if not heard and self._is_settled(hub):
                return (max([*self._knows_ns.values(), since_ns]) - since_ns) / 1e6
        raise TimeoutError("the group did not settle within 30 s")

    def _is_settled(self, hub: shoal.Hub) -> bool:
        leases = [lease for held in self._held.values() for lease in held]
        counts = [len(held) for held in self._held.values()]
        if not all(lease.is_wanted for lease in leases) or max(counts) - min(counts) > 1:
            return False
        info = hub.describe_group(STREAM, GROUP)
        held = {(shard.id, shard.epoch) for shard in info.shards if shard.owner is not None}
        return info.state == "stable" and held == {(lease.shard, lease.epoch) for lease in leases}

    def close(self) -> None:
        """All end, without a word."""
        for process, pipe in self._processes.values():
            pipe.close()
            process.join(10)


def _consume(url: str, name: str, pipe: Pipe) -> None:
    """A consumer's process. It does as it is told until nobody tells it any more."""
    joined = threading.Event()
    members: list[Membership] = []

    def heard(outcome: Answered) -> None:
        now_ns = time.monotonic_ns()
        joined.wait(10)
        (member,) = members
        asked = [lease.shard for lease in outcome.closing]
        if asked:
            member.release({shard: None for shard in asked if shard in member.leases})
        pipe.send((now_ns, list(member.leases.values())))

    with shoal.connect(url) as hub, suppress(EOFError, OSError):
        pipe.send("ready")
        while True:
            what = pipe.recv()
            called_ns = time.monotonic_ns()
            if what == "join":
                members.append(hub.join_group(STREAM, GROUP, name, listener=heard))
                joined.set()
            else:
                members[0].leave()
            pipe.send(called_ns)


def changes(url: str, rounds: int) -> dict[str, tuple[float, float]]:
    """p50 and p99 in ms, from the call to the last affected consumer knowing: joins, leaves, splits."""
    took: dict[str, list[float]] = {"join": [], "split": [], "leave": []}
    with shoal.connect(url) as hub:
        hub.create_stream(STREAM, shards=SHARDS)
        hub.create_group(STREAM, GROUP)
        crowd = Crowd(url)
        try:
            for i in range(CONSUMERS - 1):
                crowd.connect(f"c{i}")
                crowd.join(f"c{i}")
            crowd.settled(hub)
            for i in range(rounds):
                crowd.connect(f"extra-{i}")
                crowd.join(f"extra-{i}")
                took["join"].append(crowd.settled(hub))
                began_ns = time.monotonic_ns()
                hub.split_shard(STREAM, _widest(hub))
                took["split"].append(crowd.settled(hub, began_ns))
                crowd.leave(f"extra-{i}")
                took["leave"].append(crowd.settled(hub))
        finally:
            crowd.close()
    return {what: _percentiles(times) for what, times in took.items()}


def _widest(hub: shoal.Hub) -> int:
    """The widest open shard."""
    shards: Sequence[shoal.Shard] = hub.describe_stream(STREAM).open_shards
    return max(shards, key=lambda shard: shard.end - shard.begin).id


def _percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return cuts[49], cuts[98]
