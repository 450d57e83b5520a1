"""Which consumer should hold which shard. Dry: a pure function of shards, members and what is held now.

Strategies answer for all shards at once. `balanced` keeps counts within one of each other and, of all
assignments that do, moves the fewest shards; asked again about its own answer, it changes nothing.

Invariant: an assignment gives every shard to exactly one living member; `checked` says where one does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from shoal.core.errors import StrategyRefused, text_of
from shoal.core.model import ShardId

Members = Sequence[str]
Assignment = dict[ShardId, str]
Strategy = Callable[[Sequence[ShardId], Members, Mapping[ShardId, str]], Mapping[ShardId, str]]


def balanced(shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]) -> Assignment:
    """Counts within one, the fewest moves, the same answer for the same question.

    With n shards on m members, n % m of them hold one more than the others. Giving that one more to those
    who hold most already is what moves the fewest: any other choice takes a shard from one of them.
    """
    count = Counter(held[shard] for shard in shards if shard in held)
    return _by_rank(shards, sorted(members, key=lambda member: (-count[member], member)), held)


def spread(shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]) -> Assignment:
    """Counts within one, and the one more for the first of `members`, whoever holds most.

    For groups of one name on several streams. Each stream puts its members in another order (`in_turn`), so
    that nobody is the fuller one everywhere; `balanced` would leave it with whoever came first. That may move
    one shard more when a member comes or goes.
    """
    return _by_rank(shards, members, held)


def in_turn(members: Sequence[str], stream_id: int) -> list[str]:
    """The members in an order of the stream's own: rotated, and evenly so over streams in a row.

    By a multiple of the golden ratio: however regular the ids are, the places fall evenly into the circle.
    """
    start = (stream_id * _GOLDEN % _CIRCLE) * len(members) // _CIRCLE
    return [*members[start:], *members[:start]]


def quotas(ranked: Members, shards: int) -> dict[str, int]:
    """How many of so many shards each gets: the first of the members one more than the others."""
    least, fuller = divmod(shards, max(1, len(ranked)))
    return {member: least + (rank < fuller) for rank, member in enumerate(ranked)}


def _by_rank(shards: Sequence[ShardId], ranked: Members, held: Mapping[ShardId, str]) -> Assignment:
    """The first of the members get one more than the others; all keep what they may."""
    if not ranked:
        return {}
    holdings: dict[str, list[ShardId]] = {member: [] for member in sorted(ranked)}
    free: list[ShardId] = []
    for shard in sorted(shards):
        owner = held.get(shard)
        if owner in holdings:
            holdings[owner].append(shard)
        else:
            free.append(shard)
    quota = quotas(ranked, len(shards))
    assignment: Assignment = {}
    for member, mine in holdings.items():
        # What is given up are the youngest shards: they have the least behind them.
        free.extend(mine[quota[member] :])
        assignment.update(dict.fromkeys(mine[: quota[member]], member))
    waiting = iter(sorted(free))
    for member, mine in holdings.items():
        for _ in range(quota[member] - len(mine)):
            assignment[next(waiting)] = member
    return assignment


def ranges(shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]) -> Assignment:
    """Runs of consecutive shards, in the order of names: neighbours stay together."""
    del held
    ordered, names = sorted(shards), sorted(members)
    if not names:
        return {}
    cuts = [len(ordered) * i // len(names) for i in range(len(names) + 1)]
    return {
        shard: name
        for name, low, high in zip(names, cuts[:-1], cuts[1:], strict=True)
        for shard in ordered[low:high]
    }


def round_robin(shards: Sequence[ShardId], members: Members, held: Mapping[ShardId, str]) -> Assignment:
    """Shards dealt out in turn, in the order of names."""
    del held
    names = sorted(members)
    return {shard: names[i % len(names)] for i, shard in enumerate(sorted(shards))} if names else {}


def checked(strategy: str, answer: object, shards: Sequence[ShardId], members: Members) -> dict[ShardId, str]:
    """A strategy's answer, if it gives every shard to one living member; otherwise what is wrong with it."""
    if not isinstance(answer, Mapping):
        raise StrategyRefused(strategy, f"it returned {type(answer).__name__}, not a dict of shard to member")
    try:
        return _checked(strategy, dict(answer), shards, members)
    except StrategyRefused:
        raise
    except Exception as error:  # Around user code: the mapping, its keys and its values are the strategy's.
        detail = f"its {type(answer).__name__} cannot be read: {type(error).__name__}: {text_of(error)}"
        raise StrategyRefused(strategy, detail) from error


def _checked(
    strategy: str, answer: dict[object, object], shards: Sequence[ShardId], members: Members
) -> dict[ShardId, str]:
    wanted, known = set(shards), set(members)
    if lost := sorted(wanted - answer.keys()):
        raise StrategyRefused(strategy, f"it left out the shards {lost[:5]}")
    if invented := sorted(str(shard) for shard in answer.keys() - wanted):
        raise StrategyRefused(strategy, f"it invented the shards {invented[:5]}")
    # Looked at as it is, not as text: a number that reads like a name is no member.
    given: dict[ShardId, str] = {}
    strangers: set[str] = set()
    for shard in shards:
        who = answer[shard]
        if isinstance(who, str) and who in known:
            given[shard] = who
        else:
            strangers.add(str(who))
    if strangers:
        raise StrategyRefused(strategy, f"it gave shards to {sorted(strangers)[:5]}, who are no members")
    return given


_CIRCLE: Final = 1 << 32
_GOLDEN: Final = 2_654_435_769
"""Of the circle: 0.618…"""
SPREAD: Final = "spread"
STRATEGIES: Final[dict[str, Strategy]] = {
    "balanced": balanced,
    SPREAD: spread,
    "range": ranges,
    "round_robin": round_robin,
}
