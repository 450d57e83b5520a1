"""Whose turn it is on a server's threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from shoal.server.turns import Turns

Work = Callable[[str], Coroutine[Any, Any, str]]


def test_one_client_has_half_of_the_threads_and_the_next_is_served_beside_it() -> None:
    async def story(turns: Turns, begun: asyncio.Queue[str], work: Work) -> None:
        greedy = [asyncio.create_task(work("greedy")) for _ in range(20)]
        assert [await begun.get() for _ in range(4)] == ["greedy"] * 4
        modest = asyncio.create_task(work("modest"))
        assert await asyncio.wait_for(begun.get(), 5) == "modest", "though sixteen waited before it"
        assert begun.empty(), "and no fifth of the greedy one's is at work"
        gate.set()
        assert await modest == "modest"
        assert await asyncio.gather(*greedy) == ["greedy"] * 20

    gate = threading.Event()
    run(8, story, gate)


def test_whoever_comes_next_has_a_share_of_what_is_left() -> None:
    async def story(turns: Turns, begun: asyncio.Queue[str], work: Work) -> None:
        at_work: list[str] = []
        tasks = []
        for client, share in (("first", 16), ("second", 8), ("third", 4), ("fourth", 2), ("fifth", 1)):
            tasks += [asyncio.create_task(work(client)) for _ in range(40)]
            at_work += [await asyncio.wait_for(begun.get(), 5) for _ in range(share)]
            assert at_work.count(client) == share
            assert begun.empty()
        gate.set()
        await asyncio.gather(*tasks)

    gate = threading.Event()
    run(32, story, gate)


def test_clients_that_go_on_come_to_equal_shares() -> None:
    async def story(turns: Turns, begun: asyncio.Queue[str], work: Work) -> None:
        async def go_on(client: str) -> None:
            while not is_over:
                await work(client)

        is_over = False
        tasks = [asyncio.create_task(go_on(client)) for client in ("first", "second") for _ in range(40)]
        at_work = {"first": 0, "second": 0}
        for _ in range(500):
            at_work[await asyncio.wait_for(begun.get(), 5)] += 1
        assert max(turns._working.values()) <= 10, "a third of the threads each"
        assert min(at_work.values()) > 150
        is_over = True
        await asyncio.gather(*tasks)

    gate = threading.Event()
    gate.set()
    run(32, story, gate)


def test_a_call_that_is_given_up_while_it_waits_takes_nobodys_turn() -> None:
    async def story(turns: Turns, begun: asyncio.Queue[str], work: Work) -> None:
        first = asyncio.create_task(work("one"))
        await begun.get()
        given_up, last = (asyncio.create_task(work("one")) for _ in range(2))
        await asyncio.sleep(0)
        given_up.cancel()
        gate.set()
        assert await first == await asyncio.wait_for(last, 5) == "one"
        assert given_up.cancelled()

    gate = threading.Event()
    run(2, story, gate)


def test_the_servers_own_questions_wait_for_no_client() -> None:
    async def story(turns: Turns, begun: asyncio.Queue[str], work: Work) -> None:
        tasks = [asyncio.create_task(work(client)) for client in "abcdef"]
        await begun.get()
        assert await asyncio.wait_for(turns.run_own(lambda: "own"), 5) == "own"
        gate.set()
        await asyncio.gather(*tasks)

    gate = threading.Event()
    run(1, story, gate)


def run(
    threads: int,
    story: Callable[[Turns, asyncio.Queue[str], Work], Awaitable[None]],
    gate: threading.Event,
) -> None:
    """A story of calls, each of which says when it is at work, and ends once the gate is open."""

    async def tell() -> None:
        turns, begun = Turns(threads), asyncio.Queue[str]()
        loop = asyncio.get_running_loop()

        def call(client: str) -> str:
            loop.call_soon_threadsafe(begun.put_nowait, client)
            assert gate.wait(20)
            return client

        async def work(client: str) -> str:
            turns.are_of(client)
            return str(await turns.run(call, client))

        try:
            await story(turns, begun, work)
        finally:
            gate.set()
            turns.close()

    asyncio.run(tell())
