"""Random lineages for tests: shards after any history of splits, merges and reshards."""

from hypothesis import strategies as st

from shoal.core.model import Shard
from shoal.core.resharding import first_shards, merge, reshard, split
from shoal.core.ring import RING_SIZE

Shards = tuple[Shard, ...]


@st.composite
def lineages(draw: st.DrawFn, changes_max: int = 8, shards_max: int = 12) -> Shards:
    """The shards of a stream some time after its birth."""
    shards = first_shards(draw(st.integers(1, shards_max)), 0)
    for now_ms in range(1, draw(st.integers(0, changes_max)) + 1):
        alive = sorted((shard for shard in shards if shard.is_open), key=lambda shard: shard.begin)
        kind = draw(st.sampled_from(["split", "split at", "merge", "reshard"]))
        one = draw(st.integers(0, len(alive) - 1))
        if kind == "split" and alive[one].end - alive[one].begin > 1:
            shards = split(shards, alive[one], None, now_ms)
        elif kind == "split at" and alive[one].end - alive[one].begin > 1:
            at = draw(st.integers(alive[one].begin + 1, alive[one].end - 1))
            shards = split(shards, alive[one], at, now_ms)
        elif kind == "merge" and one + 1 < len(alive):
            shards = merge(shards, alive[one], alive[one + 1], now_ms)
        elif kind == "reshard":
            shards = reshard(shards, draw(st.integers(1, shards_max)), now_ms)
    return shards


def cuts_of(shards: Shards) -> set[int]:
    """Where open shards begin, the ring's own beginning apart."""
    return {shard.begin for shard in shards if shard.is_open} - {0}


def covers(shards: Shards) -> bool:
    """Whether the open shards cover the ring exactly; written without the code under test."""
    alive = sorted((shard.begin, shard.end) for shard in shards if shard.is_open)
    edges = [edge for pair in alive for edge in pair]
    return (
        edges[0] == 0
        and edges[-1] == RING_SIZE
        and all(begin < end for begin, end in alive)
        and edges[1:-1:2] == edges[2::2]
    )
