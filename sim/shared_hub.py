"""The shell of shared groups in a simulated process: look, step in a transaction, bury; as `hub.shared` does.

The rules are the real ones, and so are the clocks of shards, on the process's own clock. `switches` are
planted bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.share import ShareRules, ShareState, outlook, step
from shoal.core.share_acts import Act, Answer, Given, Granted, How, Receive, Settle, Settled
from shoal.core.share_view import receivable
from shoal.core.spans import Range, without
from shoal.hub.watches import Watches
from sim.loop import Process, Steps
from sim.shared_facts import SharedFacts
from sim.store import Store

BURY_MS = 400
GROUP = 1


@dataclass(slots=True, kw_only=True)
class Table:
    """What is committed: the stream's shards, their keys, and the rows of the group."""

    rules: ShareRules
    facts: SharedFacts
    shards: list[Shard] = field(default_factory=list)
    keys: list[list[int]] = field(default_factory=list)
    rows: dict[ShardId, ShareState] = field(default_factory=dict)

    def append(self, shard: int, key: int) -> None:
        old = self.shards[shard]
        self.facts.appended(shard, old.next_offset, key)
        self.keys[shard].append(key)
        self.shards[shard] = replace(old, next_offset=old.next_offset + 1)

    def split(self, shard: int) -> None:
        self.shards[shard] = replace(self.shards[shard], status=ShardStatus.CLOSED)
        for _ in range(2):
            child = ShardId(len(self.shards))
            self.shards.append(Shard(id=child, begin=0, end=1, parents=(ShardId(shard),)))
            self.facts.parents[child] = (shard,)
            self.keys.append([])

    def trim(self, shard: int, first: int) -> None:
        self.facts.trimmed(shard, first)
        self.shards[shard] = replace(self.shards[shard], first_offset=first)


class SharedHub:
    """A hub in a process: a server's, or a consumer's own."""

    def __init__(self, process: Process, store: Store, table: Table, switches: frozenset[str]) -> None:
        self.process, self._store, self._table, self._switches = process, store, table, switches
        self._watches = Watches(lambda: process.watch_us() / 1_000_000)
        self._turn = 0

    def receive(self, asked: Receive) -> Steps[tuple[ShardId, Granted, int | None]]:
        """What was handed out, of which shard; if nothing, how long until time brings something, in ms."""
        table, seen_before = self._table, self.process.watch_us()
        shards, rows = yield from self._store.read(
            self.process, lambda: (tuple(table.shards), dict(table.rows))
        )
        if len(rows) < len(shards):
            rows = yield from self._store.write(self.process, self._make_rows)
        self._see(rows, seen_before)
        self._turn += 1
        found = receivable(shards, rows, table.rules)
        due: int | None = None
        for place in range(len(found)):
            shard = found[(place + self._turn) % len(found)]
            look = outlook(rows[shard.id], shard, self._watches.left(GROUP, shard.id))
            if look.has_some:
                granted = yield from self._take(shard, rows[shard.id], asked)
                if granted.given:
                    return shard.id, granted, None
            due = look.due_ms if due is None or (look.due_ms or due) < due else due
        return ShardId(0), Granted(), due

    def _take(self, shard: Shard, row: ShareState, asked: Receive) -> Steps[Granted]:
        if self._table.rules.key_ordered:
            asked = replace(asked, keys=(row.next, self._table.keys[shard.id][row.next :]))
        answer = yield from self._commit(shard.id, asked)
        assert isinstance(answer, Granted)
        if answer.doomed:
            yield from self._bury(shard.id, (asked.consumer, answer.hold), answer.doomed)
        return answer

    def settle(self, shard: ShardId, act: Settle, *, is_over: bool) -> Steps[Settled]:
        """`is_over`: for the checkers, whether the caller's time with the records had run out by then."""
        answer = yield from self._commit(shard, act, is_over=is_over)
        assert isinstance(answer, Settled)
        if answer.doomed:
            yield from self._bury(shard, (act.consumer, act.hold), answer.doomed)
        return answer

    def reject(self, shard: ShardId, act: Settle) -> Steps[None]:
        how = How.EXTEND if "rejected may come again" in self._switches else How.DOOM
        answer = yield from self._commit(
            shard,
            replace(act, how=how, for_ms=BURY_MS),
            also=lambda answer: self._table.facts.rejected(_places(shard, _taken(act, answer))),
        )
        assert isinstance(answer, Settled)
        mine = _taken(act, answer)
        yield from self._bury(shard, (act.consumer, act.hold), [Given(*part, 1) for part in mine])

    def _bury(self, shard: ShardId, held_by: tuple[str, int], given: Sequence[Given]) -> Steps[None]:
        ranges = [(one.low, one.high) for one in given]
        act = Settle(consumer=held_by[0], hold=held_by[1], ranges=ranges, how=How.DEAD)
        if "settled before it is buried" in self._switches:
            yield from self._commit(shard, act)
        if "buried before it is settled" in self._switches:
            places = _places(shard, ranges)
            yield from self._store.write(self.process, lambda: self._table.facts.buried(places))
            yield from self._commit(shard, act)
            return
        while ranges:
            whole = replace(act, ranges=ranges, is_whole=True)
            answer = yield from self._commit(shard, whole, also=partial(self._write_letters, shard, ranges))
            assert isinstance(answer, Settled)
            if answer.taken:
                return
            ranges = without(ranges, [part for part, _ in answer.refused])

    def _write_letters(self, shard: ShardId, ranges: Sequence[Range], answer: Settled) -> None:
        if answer.taken:
            self._table.facts.buried(_places(shard, ranges))

    def _commit(
        self,
        shard: ShardId,
        act: Act,
        *,
        is_over: bool = False,
        also: Callable[[Settled], None] = lambda _: None,
    ) -> Steps[Answer]:
        """`also`: of what is settled, in the same transaction."""
        left = self._watches.left(GROUP, shard)
        if "an ack looks at no clock" in self._switches and isinstance(act, Settle):
            left = {}

        def body() -> tuple[ShareState, Answer]:
            table = self._table
            row = table.rows[shard]
            told = left
            if "everyone takes off its own time" in self._switches:
                told = {pledge: rest - (row.left.get(pledge, rest) - rest) for pledge, rest in left.items()}
            after, answer = step(row, act, table.shards[shard], table.rules, told)
            table.rows[shard] = after
            if isinstance(answer, Settled):
                also(answer)
            _note(table.facts, shard, act, answer, is_over=is_over)
            return after, answer

        before_us = self.process.watch_us()
        after, answer = yield from self._store.write(self.process, body)
        self._see({shard: after}, before_us)
        return answer

    def _see(self, rows: dict[ShardId, ShareState], before_us: int) -> None:
        early = 0
        if "seen before the answer" in self._switches:
            early = (self.process.watch_us() - before_us) // 1000
        for shard, row in rows.items():
            left = {pledge: rest - early for pledge, rest in row.left.items()}
            self._watches.see(GROUP, shard, replace(row, left=left) if early else row)

    def _make_rows(self) -> dict[ShardId, ShareState]:
        for shard in self._table.shards:
            self._table.rows.setdefault(shard.id, ShareState())
        return dict(self._table.rows)


def _note(facts: SharedFacts, shard: ShardId, act: Act, answer: Answer, *, is_over: bool) -> None:
    """Tell the checkers what was committed."""
    if isinstance(answer, Granted):
        assert isinstance(act, Receive)
        for of, is_doomed in ((answer.given, False), (answer.doomed, True)):
            for place in _places(shard, [(one.low, one.high) for one in of]):
                facts.handed(place, answer.hold, act.visibility_ms, is_doomed=is_doomed)
        return
    assert isinstance(act, Settle)
    refused = sorted([part for part, _ in answer.refused] + [(one.low, one.high) for one in answer.doomed])
    for place in _places(shard, without(list(act.ranges), refused)):
        match act.how:
            case How.ACK:
                facts.acknowledged(place, act.hold, is_over=is_over)
            case How.DEAD:
                facts.died(place, act.hold)
            case How.RELEASE:
                facts.given_back(place, act.hold)
            case How.RETURN:
                facts.given_back(place, act.hold, is_counted=False)
            case How.EXTEND | How.DOOM:
                facts.extended(place, act.hold, act.for_ms)


def _taken(act: Settle, answer: Settled) -> list[Range]:
    return without(list(act.ranges), [part for part, _ in answer.refused])


def _places(shard: ShardId, ranges: Sequence[Range]) -> list[tuple[int, int]]:
    return [(int(shard), offset) for low, high in ranges for offset in range(low, high)]
