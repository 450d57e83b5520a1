"""One database and all that happens to it: rounds of writers that are killed, and the check after each.

Chance comes in as a seed. Not for: how a victim writes (`victims.py`), or what a fault is
(`shoal.testing.history`).
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from multiprocessing.connection import Client
from typing import Any

import shoal
from shoal.testing.history import Ack, Mark, find_faults, read_history
from shoal.testing.workers import Worker
from tests.crash import victims

PATIENCE_S = 30.0


class Story:
    """Rounds on one database. `acks` is everything that any writer was told, over all rounds."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.kills = 0
        self.acks: list[Ack] = []
        self._chance = random.Random(seed)
        self._writers = count()
        self._counter = Counter()
        with shoal.connect(url) as hub:
            hub.create_stream(victims.STREAM, shards=3)

    def __enter__(self) -> "Story":
        self._counter.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._counter.close()

    def play(self, *, with_resharding: bool, disturb: Callable[[], None] | None = None) -> None:
        """Start four victims, let them write, `disturb` the store, kill them at random moments, check."""
        with ExitStack() as stack:
            holder = stack.enter_context(Worker(victims.hold, self.url))
            writers = [self._start(stack, victims.produce), self._start(stack, victims.append)]
            if with_resharding:
                fourth = stack.enter_context(Worker(victims.reshard, self.url, self._chance.random()))
            else:
                fourth = self._start(stack, self._chance.choice([victims.produce, victims.append]))
                writers.append(fourth)
            all_victims = list(dict.fromkeys([holder, *writers, fourth]))
            holder.wait_for_reports(1, PATIENCE_S)
            self._counter.point_to(holder.reports[0])
            if disturb is not None:
                self._let_all_write(all_victims, 5)
                disturb()
                self._let_all_write(all_victims, 5)
            self._chance.shuffle(all_victims)
            for victim in all_victims:
                # Sometimes before it has done anything, sometimes well under way.
                further = self._chance.choice([0, self._chance.randrange(10), self._chance.randrange(60)])
                victim.wait_for_reports(len(victim.reports) + further, PATIENCE_S)
                time.sleep(self._chance.uniform(0.0, 0.01))  # Not to fall always just after a report.
                victim.kill()
                self.kills += 1
            self.acks += [ack for writer in writers for report in writer.reports for ack in report]
        self.acks += self._counter.lose()
        self.check()

    def check(self) -> None:
        """Everything the writers were told is true, for a hub that begins from what is stored."""
        with shoal.connect(self.url) as hub:
            faults = find_faults(*read_history(hub, victims.STREAM), self.acks)
        assert not faults, "\n".join(faults)

    def _start(self, stack: ExitStack, target: Callable[..., None]) -> Worker:
        writer = f"{target.__name__}-{next(self._writers)}"
        return stack.enter_context(Worker(target, self.url, writer, self._chance.random()))

    def _let_all_write(self, all_victims: list[Worker], more: int) -> None:
        targets = [(victim, len(victim.reports) + more) for victim in all_victims]
        for victim, target in targets:
            victim.wait_for_reports(target, PATIENCE_S)


class Counter:
    """Clients of the process that holds the hub. They live on when it dies, and go to the next one.

    Two let the holder's producer number their records and do not repeat what got no answer; one numbers its
    batches itself, and repeats.
    """

    def __init__(self) -> None:
        self._clients = [_Sender("counter-0"), _Sender("counter-1"), _Repeater("counter-2")]
        self._taken = [0] * len(self._clients)

    def open(self) -> None:
        for client in self._clients:
            client.start()

    def close(self) -> None:
        for client in self._clients:
            client.point_to(None)
        for client in self._clients:
            client.join(PATIENCE_S)
            assert not client.is_alive(), f"{client.name} hangs"

    def point_to(self, address: tuple[str, int]) -> None:
        """There is a holder at this address."""
        for client in self._clients:
            client.point_to(address)

    def lose(self) -> list[Ack]:
        """The holder is dead: wait until every client has noticed, and give what they were told since."""
        found: list[Ack] = []
        for i, client in enumerate(self._clients):
            client.wait_until_lost()
            if client.failure is not None:
                raise client.failure
            found += client.acks[self._taken[i] :]
            self._taken[i] = len(client.acks)
        return found


class _HolderClient(threading.Thread):
    """Writer of `acks`: this thread, while it has a holder. Reader: the test, while it has none."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acks: list[Ack] = []
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        self._address: tuple[str, int] | None = None
        self._is_over = False
        self._incarnation = 0
        self._chance = random.Random(name)

    def point_to(self, address: tuple[str, int] | None) -> None:
        with self._changed:
            self._address = address
            self._is_over = address is None
            self._changed.notify_all()

    def wait_until_lost(self) -> None:
        with self._changed:
            lost = self._changed.wait_for(
                lambda: self._address is None or self.failure is not None, PATIENCE_S
            )
        assert lost, f"{self.name} still waits for a holder that was killed"

    def run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._address is not None or self._is_over)
                if self._address is None:
                    return
                address = self._address
            self._incarnation += 1
            try:
                with Client(address, authkey=b"shoal") as holder:
                    self.work(holder)
            except (EOFError, ConnectionError):
                with self._changed:
                    self._address = None
                    self._changed.notify_all()
            except BaseException as error:  # noqa: BLE001 - a thread's top; the test raises it
                with self._changed:
                    self.failure = error
                    self._changed.notify_all()
                return

    def work(self, holder: Any) -> None:
        """Write until the holder is no more."""
        raise NotImplementedError


class _Sender(_HolderClient):
    def work(self, holder: Any) -> None:
        # What got no answer from the last holder may be stored or not, so this one gets another name.
        writer = f"{self.name}.{self._incarnation}"
        keys = [f"{writer}.{i}".encode() for i in range(victims.KEYS)]
        numbers = dict.fromkeys(keys, 0)
        while True:
            key = self._chance.choice(keys)
            new = range(numbers[key], numbers[key] + self._chance.randrange(1, 6))
            numbers[key] = new.stop
            holder.send(("send", key, [Mark.single(writer, number).value() for number in new]))
            places = holder.recv()
            self.acks += [Ack(writer, key, number, *at) for number, at in zip(new, places, strict=True)]


class _Repeater(_HolderClient):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._appender = victims.Appender(name, self._ask)
        self._holder: Any = None
        self._chance_before: Any = None

    def work(self, holder: Any) -> None:
        self._holder = holder
        if self._chance_before is None:
            holder.send(("map",))
            self._appender.use(holder.recv())
        else:
            # The same choices and the map of then: the same batch to the same shard. By a newer map it would
            # go to a child that has not seen it, when only the answer was lost: the shard itself must say so.
            self._chance.setstate(self._chance_before)
        while True:
            self._chance_before = self._chance.getstate()
            self.acks += self._appender.append(self._chance)

    def _ask(self, shard: int, values: list[shoal.Record], stamp: shoal.ProducerStamp) -> Any:
        rows = [(record.key, record.value) for record in values]
        self._holder.send(("append", shard, rows, stamp))
        return self._holder.recv()
