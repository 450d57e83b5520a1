"""Which consumer should hold which shard. Dry: a pure function of shards, members and what is held now.

Strategies answer for all shards at once. `balanced` keeps counts within one of each other and, of all
assignments that do, moves the fewest shards; asked again about its own answer, it changes nothing.

Invariant: an assignment gives every shard to exactly one living member; `checked` says where one does not.
"""

from __future__ import annotations

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
    if not members:
        return {}
    holdings: dict[str, list[ShardId]] = {member: [] for member in sorted(members)}
    free: list[ShardId] = []
    for shard in sorted(shards):
        owner = held.get(shard)
        if owner in holdings:
            holdings[owner].append(shard)
        else:
            free.append(shard)
    least, fuller = divmod(len(shards), len(holdings))
    by_count = sorted(holdings, key=lambda member: (-len(holdings[member]), member))
    quota = {member: least + (rank < fuller) for rank, member in enumerate(by_count)}
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


STRATEGIES: Final[dict[str, Strategy]] = {
    "balanced": balanced,
    "range": ranges,
    "round_robin": round_robin,
}
