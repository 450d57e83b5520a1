"""Groups without owners as people want to see them, and which of their shards may be received from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.core.describing import ConsumerInfo, GroupInfo, GroupShard
from shoal.core.group import Group, GroupSettings, Note, ShardState
from shoal.core.limits import RECEIVE_ATTEMPTS
from shoal.core.lineage import ancestors, ended
from shoal.core.listening import DROPPED, Listener
from shoal.core.listening import described as described_positions
from shoal.core.model import Shard, ShardId, StreamInfo
from shoal.core.share import ShareRules, ShareState, is_at_bound, is_over, passed, settled_below


def rules_of(settings: GroupSettings) -> ShareRules:
    """What a group says about its records."""
    return ShareRules(
        max_attempts=settings.max_attempts or RECEIVE_ATTEMPTS, key_ordered=settings.key_ordered
    )


def missing(
    shards: Sequence[Shard], states: Mapping[ShardId, ShareState], starts: Mapping[ShardId, int]
) -> dict[ShardId, int]:
    """Shards that have no row yet, with the offset to begin from: a shard born later begins at its first."""
    return {shard.id: starts.get(shard.id, 0) for shard in shards if shard.id not in states}


def receivable(
    shards: Sequence[Shard], states: Mapping[ShardId, ShareState], rules: ShareRules
) -> list[Shard]:
    """Shards that are not over; where keys are kept one at a time, only those whose ancestors are."""
    live = [shard for shard in shards if shard.id in states and not is_over(states[shard.id], shard)]
    if not rules.key_ordered:
        return live
    done = _ended(shards, states)
    return [shard for shard in live if all(parent in done for parent in shard.parents)]


def described_shared(
    group: Group,
    stream: StreamInfo,
    states: Mapping[ShardId, ShareState],
    *,
    since_ms: Mapping[ShardId, int],
    oldest_ms: Mapping[ShardId, int],
    now_ms: int,
) -> GroupInfo:
    """`oldest_ms`: for shards that lag, when the first record that is not settled was appended."""
    rules = rules_of(group.settings)
    ready = {shard.id for shard in receivable(stream.shards, states, rules)}
    shards = tuple(
        _shard(
            stream,
            shard,
            passed(states[shard.id], shard, {}),
            is_ready=shard.id in ready,
            done=_ended(stream.shards, states),
            since_ms=since_ms.get(shard.id, group.created_ms),
            lag_s=max(0.0, (now_ms - oldest_ms[shard.id]) / 1000) if shard.id in oldest_ms else 0.0,
        )
        for shard in stream.shards
        if shard.id in states
    )
    consumers = _consumers(states)
    return GroupInfo(
        stream=str(stream.full_name),
        name=group.name,
        state="active" if consumers else "empty",
        version=group.version,
        settings=group.settings,
        members=(),
        shards=shards,
        lag=sum(shard.lag for shard in shards),
        created_ms=group.created_ms,
        consumers=consumers,
    )


def described_broadcast(
    group: Group,
    stream: StreamInfo,
    starts: Mapping[ShardId, int],
    listeners: Sequence[Listener],
    history: Sequence[tuple[int, Note]],
) -> GroupInfo:
    """A broadcast group: its consumers' positions, and for each shard who is furthest behind."""
    positions = described_positions(stream, starts, listeners)
    shards = []
    for shard in stream.shards:
        places = [one.offsets[shard.id] for one in positions] or [starts.get(shard.id, 0)]
        checkpoint = min(places)
        lag = max(0, shard.next_offset - max(checkpoint, shard.first_offset))
        is_done = not shard.is_open and not lag
        shards.append(
            GroupShard(
                id=shard.id,
                state=ShardState.OVER if is_done else ShardState.NOT_ALLOC,
                owner=None,
                next=None,
                epoch=0,
                checkpoint=checkpoint,
                lag=lag,
                lag_s=0.0,
                since_ms=group.created_ms,
            )
        )
    return GroupInfo(
        stream=str(stream.full_name),
        name=group.name,
        state="active" if positions else "empty",
        version=group.version,
        settings=group.settings,
        members=(),
        shards=tuple(shards),
        lag=max((one.lag for one in positions), default=sum(shard.lag for shard in shards)),
        created_ms=group.created_ms,
        positions=positions,
        dropped=tuple(note.consumer for _, note in history if note.kind == DROPPED and note.consumer),
    )


def _ended(shards: Sequence[Shard], states: Mapping[ShardId, ShareState]) -> set[ShardId]:
    return ended(
        shards,
        {shard.id: settled_below(states[shard.id], shard) for shard in shards if shard.id in states},
    )


def _shard(
    stream: StreamInfo,
    shard: Shard,
    state: ShareState,
    *,
    is_ready: bool,
    done: set[ShardId],
    since_ms: int,
    lag_s: float,
) -> GroupShard:
    waiting_for = ""
    if is_over(state, shard):
        kind = ShardState.OVER
    elif not is_ready:
        kind = ShardState.WAIT
        open_ones = [one for one in ancestors(stream.shards, shard.id) if one not in done]
        waiting_for = f"its ancestors {open_ones} to end"
    else:
        kind = ShardState.ALREADY_ALLOC if state.in_flight else ShardState.NOT_ALLOC
        waiting_for = full_text(state, shard)
    return GroupShard(
        id=shard.id,
        state=kind,
        owner=None,
        next=None,
        epoch=0,
        checkpoint=state.start,
        lag=state.unsettled(shard),
        lag_s=lag_s,
        since_ms=since_ms,
        waiting_for=waiting_for,
        in_flight=state.in_flight,
        gaps=len(state.open),
        acknowledged=state.acknowledged,
        dead=state.dead,
        lost=state.lost,
    )


def full_text(state: ShareState, shard: Shard) -> str:
    """Why nothing new is handed out of a shard; empty if it is."""
    if not is_at_bound(state) or state.next >= shard.next_offset:
        return ""
    return (
        f"some of {len(state.open)} gaps from offset {state.start} on to be settled: "
        "nothing new is handed out until then"
    )


def holder(name: str, incarnation: str) -> str:
    """Who has a hold: two consumers of one name do not settle each other's records."""
    return f"{name}#{incarnation}"


def consumer_name(held_by: str) -> str:
    """What people call it. No name has the character between."""
    return held_by.partition("#")[0]


def _consumers(states: Mapping[ShardId, ShareState]) -> tuple[ConsumerInfo, ...]:
    held: dict[str, tuple[int, int]] = {}
    for state in states.values():
        for span in state.open:
            if span.hold:
                name = consumer_name(state.holders.get(span.hold, "?"))
                rest = state.left.get(span.pledge, 0)
                many, ends = held.get(name, (0, rest))
                held[name] = (many + span.high - span.low, min(ends, rest))
    return tuple(
        ConsumerInfo(name=name, in_flight=many, ends_ms=max(0, ends))
        for name, (many, ends) in sorted(held.items())
    )
