"""The explorer's states of a leased group, and what makes two of them one.

Times are relative to now. Of births and epochs only their order counts. A row's revision is made from the one
before it by adding one, so besides the order it counts which of them are neighbours. A mark counts as long
as what it has seen still stands: values that are gone never come again. `lease_id`, counters and the highest
number seen follow from the rest, as long as the table forgets nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.core.lease import Change, InstanceRow, LeaseRow, Row, SequenceRow
from shoal.core.leasing import LeasedConsumer, Outcome
from shoal.core.model import Shard, ShardId
from sim.ranks import Ranks, Steps

TICK_MS: Final = 1000
INTERVAL_MS: Final = 800
"""So that what misses one renewal is watched from the first tick on: a watch and a deadline take two each."""
TIMEOUT_MS: Final = 2 * INTERVAL_MS

Answer = tuple[Outcome, Row | None]
"""How a change went, and the row that was found if it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows. Each version of it is a value."""

    leases: Mapping[ShardId, LeaseRow] = field(default_factory=dict)
    instances: Mapping[str, InstanceRow] = field(default_factory=dict)
    sequence: SequenceRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The changes of one round, under way: to the table, or their answers from it."""

    changes: tuple[Change, ...]
    answers: tuple[Answer, ...] | None = None
    """None: they are not at the table yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One process: its member, which is never changed but replaced by a copy, and what it waits for."""

    is_up: bool = True
    member: LeasedConsumer | None = None
    """None: it has not tried to join."""
    is_joined: bool = False
    taking: Sent | None = None
    renewing: Sent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The world at one instant."""

    table: Table
    shards: tuple[Shard, ...]
    consumers: tuple[Consumer, ...]
    wire: tuple[tuple[str, tuple[Change, ...]], ...] = ()
    """Given up by whoever sent them, and still to come in, or never."""
    lives: Mapping[str, int] = field(default_factory=dict)
    """Incarnations of a name so far."""
    done: frozenset[ShardId] = frozenset()
    """Closed shards that were consumed to their end."""
    fault: str | None = None
    """What a commit broke."""
    crashes: int = 0
    splits: int = 0
    faults: int = 0
    """Messages that were late or lost so far."""


def copied(member: LeasedConsumer) -> LeasedConsumer:
    """Another one of the same mind: what happens to it does not happen to the first."""
    twin = copy(member)
    twin._held, twin._lettings = dict(member._held), dict(member._lettings)
    return twin


def ticked(state: State) -> State:
    """One tick passes for everyone: what lay ahead is nearer, and what was seen is older."""
    return replace(state, consumers=tuple(_older(consumer) for consumer in state.consumers))


def _older(consumer: Consumer) -> Consumer:
    member = consumer.member
    if member is not None:
        member = copied(member)
        for shard, held in member._held.items():
            deadline_ms = max(0, held.lease.deadline_ms - TICK_MS)
            member._held[shard] = replace(held, lease=replace(held.lease, deadline_ms=deadline_ms))
        member._marks = {
            key: replace(mark, since_ms=max(mark.since_ms - TICK_MS, -TIMEOUT_MS))
            for key, mark in member._marks.items()
        }
    return replace(consumer, member=member, taking=_late(consumer.taking), renewing=_late(consumer.renewing))


def _late(sent: Sent | None) -> Sent | None:
    if sent is None:
        return None
    changes = tuple(
        replace(
            change,
            asked_ms=max(change.asked_ms - TICK_MS, -2 * TIMEOUT_MS),
            watched_ms=max(change.watched_ms - TICK_MS, -TIMEOUT_MS),
        )
        for change in sent.changes
    )
    return replace(sent, changes=changes)


def key_of(state: State) -> Hashable:
    """What tells two states apart."""
    numbers = _Numbers(state)
    row = numbers.row
    return (
        tuple(row(lease) for lease in state.table.leases.values()),
        tuple(row(instance) for instance in state.table.instances.values()),
        tuple((shard.status, shard.next_offset) for shard in state.shards),
        tuple(_consumer_key(one, state.table, numbers) for one in state.consumers),
        tuple((who, tuple(_change_key(one, numbers) for one in changes)) for who, changes in state.wire),
        tuple(state.lives.items()),
        state.done,
        state.fault,
        (state.crashes, state.splits, state.faults),
    )


class _Numbers:
    """The numbers of a state, in the words of a key."""

    def __init__(self, state: State) -> None:
        self.order, self.steps = Ranks(), Steps()
        for row in _rows(state):
            if isinstance(row, LeaseRow):
                self.order.add(row.born, row.epoch, row.owner_epoch, *row.parents_born)
                self.steps.add((row.shard, row.born), row.revision)
            elif isinstance(row, InstanceRow):
                self.steps.add(row.incarnation, row.revision)
        for one in state.consumers:
            if one.member is not None:
                self.order.add(*(held.lease.epoch for held in one.member._held.values()))
                self.order.add(*(letting.epoch for letting in one.member._lettings.values()))

    def row(self, row: Row | None) -> Hashable:
        order = self.order
        match row:
            case LeaseRow():
                return (
                    row.shard,
                    order(row.born),
                    self.steps((row.shard, row.born), row.revision),
                    row.lease_owner,
                    row.consumer_owner,
                    row.checkpoint,
                    order(row.epoch),
                    order(row.owner_epoch),
                    tuple(order(born) for born in row.parents_born),
                    row.stood_ms,
                    min(row.waited_ms, 2 * TIMEOUT_MS),
                    row.lapse_ms,
                    row.is_over,
                )
            case InstanceRow():
                place = self.steps(row.incarnation, row.revision)
                return (row.incarnation, place, row.stood_ms, row.is_taking, row.former)
            case _:
                return None


def _rows(state: State) -> Iterator[Row | None]:
    yield from state.table.leases.values()
    yield from state.table.instances.values()
    for one in state.consumers:
        if one.member is not None:
            yield one.member.me
            for held in one.member._held.values():
                yield held.row
            if one.member._tried is not None:
                yield from (one.member._tried.old, one.member._tried.new)
        for sent in (one.taking, one.renewing):
            if sent is not None:
                yield from _rows_of(sent.changes)
                yield from (found for _, found in sent.answers or ())
    for _, changes in state.wire:
        yield from _rows_of(changes)


def _rows_of(changes: tuple[Change, ...]) -> Iterator[Row | None]:
    for change in changes:
        yield from (change.old, change.new)


def _consumer_key(one: Consumer, table: Table, numbers: _Numbers) -> Hashable:
    member = one.member
    return (
        one.is_up,
        one.is_joined,
        member
        and (
            type(member.error),
            numbers.row(member.me),
            member._former,
            member._is_back,
            member._tried and _change_key(member._tried, numbers),
            tuple(
                (
                    numbers.order(held.lease.epoch),
                    held.lease.deadline_ms,
                    held.lease.is_wanted,
                    held.lease.is_extended,
                    numbers.row(held.row),
                )
                for held in member._held.values()
            ),
            tuple(
                (shard, numbers.order(letting.epoch), letting.checkpoint)
                for shard, letting in sorted(member._lettings.items())
            ),
            tuple(_marks_that_stand(member, table)),
        ),
        _sent_key(one.taking, numbers),
        _sent_key(one.renewing, numbers),
    )


def _marks_that_stand(member: LeasedConsumer, table: Table) -> Iterator[Hashable]:
    """What has changed since it was seen first counts for nothing: it might as well not have been seen."""
    for (what, key), mark in sorted(member._marks.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        value: object
        if what == "instance":
            instance = table.instances.get(str(key))
            value = instance and (instance.incarnation, instance.counter, instance.stood_ms)
        else:
            row = table.leases.get(ShardId(int(key)))
            stood = row and (row.born, row.lease_id, row.stood_ms)
            waited = row and (row.born, row.epoch, row.lease_owner, row.lapse_ms, row.waited_ms)
            value = stood if what == "stood" else waited
            if what == "waited" and waited and mark.value[:2] == waited[:2]:
                yield what, key, mark.since_ms, mark.value[2:]  # A steal that was undone may come again.
                continue
        if value == mark.value:
            yield what, key, mark.since_ms


def _sent_key(sent: Sent | None, numbers: _Numbers) -> Hashable:
    if sent is None:
        return None
    answers = sent.answers
    return (
        tuple((_change_key(one, numbers), one.asked_ms, one.watched_ms) for one in sent.changes),
        None if answers is None else tuple((outcome, numbers.row(found)) for outcome, found in answers),
    )


def _change_key(change: Change, numbers: _Numbers) -> Hashable:
    return change.kind, numbers.row(change.old), numbers.row(change.new)
