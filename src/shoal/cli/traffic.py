"""The demo's traffic, and the check of what became of it.

`verify` shares no code with what it checks: it knows only what was sent and what was read.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from shoal import Producer, StreamInfo
from shoal.core.ring import place
from shoal.core.routing import ShardMap

_CUSTOMERS: Final = 120
_BURST: Final = 100
_BURST_EVERY_S: Final = 0.005
_HEAT: Final = 8


class Traffic:
    """A thread that sends numbered records of many keys while the story goes on.

    Writer of `sent`: the thread. Readers: anyone, after the traffic has ended.
    """

    def __init__(self, producer: Producer) -> None:
        self.sent: dict[str, list[int]] = defaultdict(list)
        self.count = 0
        self._producer = producer
        self._chance = random.Random(7)
        self._keys = [f"customer-{n:03}" for n in range(_CUSTOMERS)]
        self._is_ending = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="demo-traffic", daemon=True)

    def heat(self, stream: StreamInfo) -> int:
        """Make the customers of one shard busy. Returns the shard."""
        shards = ShardMap.of(stream)
        hot = shards.ids[1]
        busy = [key for key in self._keys if shards.shard_at(place(key.encode())) == hot]
        self._keys = self._keys + busy * _HEAT
        return hot

    def run_for(self, seconds: float) -> None:
        """Let it run on for a while."""
        if self._is_ending.wait(seconds) and self._failure is not None:
            raise self._failure

    @property
    def busiest(self) -> str:
        return max(self.sent, key=lambda key: len(self.sent[key]))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._is_ending.is_set():
                for key in self._chance.choices(self._keys, k=_BURST):
                    self.count += 1
                    self._producer.send(str(self.count), key=key)
                    self.sent[key].append(self.count)
                time.sleep(_BURST_EVERY_S)
            self._producer.flush()
        except Exception as error:  # noqa: BLE001 - a thread's top: the story's own thread raises it
            self._failure = error
            self._is_ending.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a comparison of sent and read found."""

    sent: int = 0
    read: int = 0
    lost: int = 0
    twice: int = 0
    unknown: int = 0
    keys: int = 0
    keys_out_of_order: int = 0

    @property
    def is_good(self) -> bool:
        return self.sent > 0 and not (self.lost or self.twice or self.unknown or self.keys_out_of_order)

    def lines(self) -> list[tuple[str, int, bool]]:
        """Name, count, and whether any is a fault."""
        return [
            ("records sent", self.sent, False),
            ("records read", self.read, False),
            ("lost", self.lost, True),
            ("read twice", self.twice, True),
            ("never sent", self.unknown, True),
            ("keys", self.keys, False),
            ("keys out of order", self.keys_out_of_order, True),
        ]

    def as_json(self) -> dict[str, int | bool]:
        """For machines."""
        return {
            "ok": self.is_good,
            "sent": self.sent,
            "read": self.read,
            "lost": self.lost,
            "twice": self.twice,
            "unknown": self.unknown,
            "keys": self.keys,
            "keys_out_of_order": self.keys_out_of_order,
        }


def verify(sent: Mapping[str, Sequence[int]], read: Iterable[tuple[str, int]]) -> Verdict:
    """Compare what was sent, by key and in order, with what was read."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in read:
        by_key[key].append(number)
    lost = twice = unknown = out_of_order = 0
    for key in sent.keys() | by_key.keys():
        wanted, found = list(sent.get(key, ())), by_key.get(key, [])
        times = Counter(found)
        lost += sum(1 for number in wanted if number not in times)
        twice += sum(count - 1 for count in times.values())
        unknown += len(times.keys() - set(wanted))
        known = set(wanted)
        firsts = [number for number in dict.fromkeys(found) if number in known]
        out_of_order += firsts != [number for number in wanted if number in times]
    return Verdict(
        sent=sum(map(len, sent.values())),
        read=sum(map(len, by_key.values())),
        lost=lost,
        twice=twice,
        unknown=unknown,
        keys=len(sent),
        keys_out_of_order=out_of_order,
    )
