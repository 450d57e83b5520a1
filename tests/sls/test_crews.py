"""Several workers of Aliyun's own library in one group, over eight shards: they join, stop, are killed, and
follow splits and merges. SHOAL_SLS_ROUNDS says how often; `make soak` does it for long, on every store.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shoal import Hub
from shoal.core.group import ShardState
from shoal.server.sls.records import SCHEMA
from shoal.testing.members import eventually
from shoal.testing.serving import served
from tests.sls.running import (
    STREAM,
    Reader,
    Start,
    Writer,
    check_order,
    deaths,
    held,
    lag,
    reading,
    repeats,
)

ROUNDS = int(os.environ.get("SHOAL_SLS_ROUNDS", "1"))
WITHIN_S = 40


@pytest.fixture(params=("sqlite", "postgresql", "mariadb") if ROUNDS > 1 else ("sqlite",))
def store(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    with served(store_url) as url:
        yield url


@pytest.mark.timeout(120 + 120 * ROUNDS)
def test_three_workers_over_eight_shards_join_stop_die_and_follow_splits_and_merges(
    hub: Hub, url: str, start: Start
) -> None:
    hub.create_stream(STREAM, shards=8, schema=SCHEMA)
    hub.create_group(STREAM, "g", timeout=2.0, in_order=True)
    crew: list[Reader] = []
    with ExitStack() as opened:

        def join(expected: list[int]) -> Reader:
            words = ("g", f"worker-{len(crew)}", "in_order")
            crew.append(opened.enter_context(reading(start, url, *words)))
            shared(expected)
            return crew[-1]

        def shared(expected: list[int]) -> None:
            eventually(lambda: held(hub) == expected, f"{expected} are shared", WITHIN_S)

        writer = Writer(hub, keys=16)
        opened.callback(writer.end)
        first = join([8])
        for _ in range(ROUNDS):
            second = join([4, 4])
            third = join([2, 3, 3])
            planned = [one.seen for one in crew]
            assert not repeats(*planned) or deaths(hub), "a planned move repeats nothing"
            # One more shard, then one less: neighbours that are there now, whatever was split before.
            opens = sorted(hub.describe_stream(STREAM).open_shards, key=lambda shard: shard.begin)
            hub.split_shard(STREAM, opens[0].id)
            hub.merge_shards(STREAM, opens[3].id, opens[4].id)
            shared([2, 3, 3])
            second.stop()
            shared([4, 4])
            third.kill()
            shared([8])
        sent = writer.end()
        eventually(lambda: sent <= {t for one in crew for t in one.texts}, "everything is read", WITHIN_S)
        eventually(lambda: lag(hub) == 0, "everything is saved", WITHIN_S)
        first.stop()
    check_order(*(one.seen for one in crew))
    closed = {shard.id for shard in hub.describe_stream(STREAM).shards if not shard.is_open}
    over = {s.id for s in hub.describe_group(STREAM, "g").shards if s.state is ShardState.OVER}
    assert over == closed
