"""What breaks a world: one act after another, as the swarm allows, at random times.

Every act is something that happens to real systems. None of them reaches into the rules: processes die and
freeze, calls are made by people, the store and the network fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shoal.core.errors import ShoalError
from shoal.core.group import RULES, GroupSettings
from shoal.core.model import ShardId
from sim.loop import MS, Process, Steps

if TYPE_CHECKING:
    from sim.world import World

FORGETS_MAX: Final = 3
"""Of one world."""


class Nemesis:
    """One world's misfortunes."""

    def __init__(self, world: World) -> None:
        self._world, self._rng, self._loop = world, world.rng, world.loop
        self._store, self._history = world.store, world.history
        self._calls = 0
        self._forgets = 0
        self._acts: dict[str, Callable[[], None]] = {
            "crash": self._crash,
            "pause": lambda: self._freeze(is_suspended=False),
            "suspend": lambda: self._freeze(is_suspended=True),
            "stall": self._stall,
            "cut": self._cut,
            "unanswered commits": self._leave_unanswered,
            "outage": self._outage,
            "stop": self._stop,
            "newcomer": self._newcomer,
            "twin": self._twin,
            "fork": self._fork,
            "split": self._split,
            "merge": self._merge,
            "empty chain": self._empty_chain,
            "rewind": self._rewind,
            "reset": self._reset,
            "timeout": self._timeout,
            "in order": lambda: self._update("in order", lambda s: replace(s, in_order=not s.in_order)),
            "handover": self._handover,
            "recreate group": self._recreate_group,
            "recreate stream": self._recreate_stream,
            "forget": self._forget,
            "retention": self._retention,
            "other rules": self._other_rules,
            "server crash": self._crash_server,
            "server pause": self._pause_server,
        }

    def start(self) -> None:
        self._world.admin.spawn(self._go())

    def _go(self) -> Steps[None]:
        acts = self._world.swarm.acts
        names, weights = list(acts), list(acts.values())
        while True:
            yield self._rng.randrange(10, 2 * self._world.swarm.pace_ms) * MS
            if self._world.stage.is_healed:
                return
            self._acts[self._rng.choices(names, weights)[0]]()

    def _span(self, low: float, high: float) -> int:
        """A random duration in timeouts, in microseconds."""
        rows = self._store.group
        settings = self._world.settings if rows is None else rows.settings
        return int(self._rng.uniform(low, high) * settings.timeout_ms * MS)

    def _about_a_timeout(self) -> int:
        """Any duration; often one that ends just when the watch runs out."""
        return self._span(0.85, 1.15) if self._rng.random() < 0.5 else self._span(0.1, 2.5)

    # --- Processes. ----------------------------------------------------------------------------------

    def _victim(self) -> Process | None:
        working = self._world.working()
        return self._rng.choice(working).process if working else None

    def _crash(self) -> None:
        working = self._world.working()
        if not working:
            return
        victim = self._rng.choice(working)
        self._history.fault("crash", victim.process.name)
        victim.process.crash()
        if self._rng.random() < 0.8:
            self._later(self._span(0, 2), lambda: self._world.add_consumer(victim.name))

    def _freeze(self, *, is_suspended: bool) -> None:
        victim = self._victim()
        if victim is not None:
            span = self._about_a_timeout()
            kind = "suspend" if is_suspended else "pause"
            self._history.fault(kind, victim.name, f"for {span // MS} ms")
            victim.freeze(span, is_suspended=is_suspended)

    def _stall(self) -> None:
        """The whole machine stands still, and its clocks do not."""
        if self._loop.now < self._world.stage.stalled_until:
            return
        span = self._span(0.5, 3)
        self._history.fault("stall", detail=f"for {span // MS} ms")
        self._store.outages.append((self._loop.now, self._loop.now + span))
        self._world.stage.stalled_until = self._loop.now + span
        for process in self._world.processes():
            process.thaw()
            process.freeze(span, is_suspended=False)

    def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            span = self._about_a_timeout()
            self._history.fault("cut", victim.name, f"for {span // MS} ms")
            victim.cut_until = self._loop.now + span

    def _leave_unanswered(self) -> None:
        """What it commits is in, and it never hears so."""
        victim = self._victim()
        if victim is not None:
            span = self._about_a_timeout()
            self._history.fault("unanswered commits", victim.name, f"for {span // MS} ms")
            victim.unanswered_until = self._loop.now + span

    def _outage(self) -> None:
        span = self._span(0.3, 3)
        self._history.fault("outage", detail=f"for {span // MS} ms")
        self._store.outage(span)

    def _stop(self) -> None:
        working = self._world.working()
        if len(working) > 1:
            victim = self._rng.choice(working)
            self._history.fault("clean stop", victim.process.name)
            victim.stop()
            if self._rng.random() < 0.7:
                self._later(self._span(0, 1.5), lambda: self._world.add_consumer(victim.name))

    def _newcomer(self) -> None:
        """One that lives shorter than the timeout, as often as not."""
        if len(self._world.working()) > 5:
            return
        newcomer = self._world.add_consumer(f"n{self._rng.randrange(3)}")
        self._history.fault("newcomer", newcomer.process.name)
        end = newcomer.stop if self._rng.random() < 0.5 else newcomer.process.crash
        if self._rng.random() < 0.8:
            self._later(self._span(0.1, 1.5), end)

    def _twin(self) -> None:
        working = self._world.working()
        if working:
            twin = self._world.add_consumer(self._rng.choice(working).name)
            self._history.fault("twin", twin.process.name)

    def _fork(self) -> None:
        """A copy of a process, with all that it knew and none of its threads. It does not live long."""
        working = self._world.working()
        if working:
            parent = self._rng.choice(working)
            child = self._world.stage.process(f"{parent.process.name}'")
            self._history.fault("fork", parent.process.name)
            parent.fork(child)
            self._loop.after(self._span(0.2, 1.5), child.crash)

    def _crash_server(self) -> None:
        servers = self._world.kind.servers()
        if servers:
            victim = self._rng.choice(servers)
            self._history.fault("server crash", victim.name)
            victim.crash()
            self._world.kind.restart_server(victim, self._span(0, 1.5))

    def _pause_server(self) -> None:
        servers = self._world.kind.servers()
        if servers:
            victim = self._rng.choice(servers)
            self._history.fault("server pause", victim.name)
            victim.freeze(self._span(0.1, 2), is_suspended=self._rng.random() < 0.5)

    def _later(self, span: int, act: Callable[[], object]) -> None:
        def unless_healed() -> None:
            if not self._world.stage.is_healed:
                act()

        self._loop.after(span, unless_healed)

    # --- The stream. ---------------------------------------------------------------------------------

    def _split(self) -> None:
        stream = self._store.stream
        if stream is not None and len(stream.open) < 7:
            shard = self._rng.choice(stream.open)
            self._history.fault("split", detail=f"shard {shard.id}")
            stream.split(shard)

    def _merge(self) -> None:
        stream = self._store.stream
        if stream is not None and stream.merge(self._rng):
            self._history.fault("merge", detail=f"into shard {stream.shards[-1].id}")

    def _empty_chain(self) -> None:
        """Splits and merges with nothing appended between: shards that never hold a thing."""
        stream = self._store.stream
        if stream is None:
            return
        self._history.fault("empty chain")
        for _ in range(self._rng.randrange(2, 4)):
            shard = stream.open[-1]
            if len(stream.open) < 7:
                stream.split(shard)
            stream.merge(self._rng)

    def _retention(self) -> None:
        stream = self._store.stream
        if stream is not None:
            shard = self._rng.choice(stream.shards)
            offset = self._rng.randint(shard.first_offset, shard.next_offset)
            self._history.fault("retention", detail=f"shard {shard.id} to {offset}")
            stream.trim(shard.id, offset)

    # --- People. -------------------------------------------------------------------------------------

    def _call(self, made: Callable[[int], Steps[None]]) -> None:
        """Somebody makes this call on the group that is there now."""
        rows = self._store.group
        if rows is None:
            return
        group = rows.id

        def call() -> Steps[None]:
            self._calls += 1
            try:
                yield from made(group)
            except ShoalError as error:
                self._history.say("admin", f"failed: {error}")
            finally:
                self._calls -= 1

        self._world.admin.spawn(call())

    def _rewind(self) -> None:
        stream = self._store.stream
        if stream is None or self._store.group is None:
            return
        shard = self._rng.choice(stream.shards)
        offset = self._rng.randint(shard.first_offset, shard.next_offset)
        self._history.fault("forced checkpoint", detail=f"shard {shard.id} to {offset}")
        self._call(lambda group: self._world.kind.rewind(group, {shard.id: offset}, "forced"))

    def _reset(self) -> None:
        stream = self._store.stream
        if stream is None or self._store.group is None:
            return
        to_end = self._rng.random() < 0.3
        positions: dict[ShardId, int] = {
            shard.id: shard.next_offset if to_end else shard.first_offset for shard in stream.shards
        }
        self._history.fault("reset", detail="to the end" if to_end else "to the beginning")
        self._call(lambda group: self._world.kind.rewind(group, positions, "reset"))

    def _update(self, kind: str, change: Callable[[GroupSettings], GroupSettings]) -> None:
        rows = self._store.group
        if rows is not None:
            settings = change(rows.settings)
            self._history.fault(kind, detail=f"{settings.timeout_ms} ms, in_order={settings.in_order}")
            self._call(lambda group: self._world.kind.update(group, settings))

    def _timeout(self) -> None:
        timeout_ms = self._rng.choice((400, 800, 1600, 2400))
        self._update("timeout", lambda settings: replace(settings, timeout_ms=timeout_ms))

    def _handover(self) -> None:
        bound = self._rng.choice((None, 50, 200))
        self._update("handover", lambda settings: replace(settings, handover_timeout_ms=bound))

    def _other_rules(self) -> None:
        self._update("other rules", lambda settings: replace(settings, rules=RULES + 1))

        def return_to_ours() -> None:
            self._call(lambda group: self._world.kind.update(group, self._world.settings))

        self._later(self._span(0.5, 2), return_to_ours)

    def _recreate_group(self) -> None:
        if self._calls or self._store.group is None:
            return
        self._history.fault("recreate group")
        self._world.drop_group()
        start_at_end = self._rng.random() < 0.3
        self._later(self._span(0, 1), lambda: self._made_again(start_at_end=start_at_end))

    def _made_again(self, *, start_at_end: bool) -> None:
        if self._store.group is None:
            self._world.make_group(start_at_end=start_at_end)

    def _recreate_stream(self) -> None:
        if self._calls:
            return
        self._history.fault("recreate stream")
        self._world.make_stream()
        self._made_again(start_at_end=False)

    def _forget(self) -> None:
        """A fail-over: the store is away for a moment, and comes back without its last commits.

        Half of the time all hubs are started afresh with it, and remember nothing either: then only consumers
        can show it. Where nobody is left who has seen more, or a group is stepped beyond that before they say
        so, a store's forgetting cannot be told from a past that never was: the promise ends there, and
        checkers look away for as long as nobody has shown it.

        What was decided before it does not arrive after it, since no promise covers that: versions and
        revisions come again until somebody has shown it, and then a decision meets rows that it was not made
        for; in a leased group it could also make the row of a shard of which the parents' rows have been
        forgotten, so that nobody reads the parents any more. A store must not fail over under a decision.
        """
        if self._forgets < FORGETS_MAX and self._store.forget():
            self._forgets += 1
            self._history.fault("forget")
            self._world.stage.afresh += self._rng.random() < 0.5
            self._store.outage(self._span(0, 0.5))
            self._world.facts.forgot()
