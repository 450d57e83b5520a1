"""The demo's chapter on groups without owners: a work queue, and screens that see everything."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from shoal import BroadcastConsumer, Hub, Record, SharedConsumer
from shoal.cli.hushing import hushed
from shoal.cli.patience import PATIENCE_S, until
from shoal.core.model import StreamInfo

CONSUMERS: Final = 8
_AT_ONCE: Final = 100
_VISIBILITY_S: Final = 0.5
_POISON: Final = b"1729"


@dataclass(frozen=True, slots=True)
class Queued:
    """What became of the records."""

    records: int
    acknowledged: int
    dead: int
    again: int
    """Handed out a second time: who had them was gone."""
    lag: int
    shown: tuple[int, ...]
    """What each screen has seen."""

    @property
    def is_good(self) -> bool:
        is_settled = self.acknowledged + self.dead == self.records and self.lag == 0
        return is_settled and self.dead == 1 and self.again > 0 and set(self.shown) == {self.records}


def queue_up(hub: Hub, stream: str, group: str) -> Queued:
    """Consumers share every shard; one takes its records and is never heard of again; one record is bad."""
    hub.create_group(stream, group, delivery="shared", visibility=_VISIBILITY_S)
    lost = SharedConsumer(hub, stream, group, "gone").receive(_AT_ONCE)
    again: list[Record] = []
    is_over = threading.Event()

    def work(number: int) -> None:
        with SharedConsumer(hub, stream, group, f"consumer-{number}") as consumer:
            while not is_over.is_set():
                received = consumer.receive(_AT_ONCE, wait=_VISIBILITY_S, visibility=PATIENCE_S)
                bad = [record for record in received if record.value == _POISON]
                again.extend(record for record in received if received.attempts(record) > 1)
                if bad:
                    consumer.reject(received, bad, reason="no card number")
                if len(received) > len(bad):
                    consumer.ack(received, [record for record in received if record.value != _POISON])

    # A dead letter is logged; here it is part of the story.
    with hushed("shoal.hub.shared"), ThreadPoolExecutor(CONSUMERS) as threads:
        try:
            working = [threads.submit(work, number) for number in range(CONSUMERS)]
            until(lambda: not hub.describe_group(stream, group).lag)
        finally:
            is_over.set()  # Or whoever waits for the threads would wait for ever.
        for one in working:
            one.result()
    info = hub.describe_group(stream, group)
    hub.create_group(stream, f"{group}-screens", delivery="broadcast")
    now = hub.describe_stream(stream)
    return Queued(
        records=sum(shard.next_offset - shard.first_offset for shard in now.shards),
        acknowledged=sum(shard.acknowledged for shard in info.shards),
        dead=len(hub.dead_letters(stream, group)),
        again=len(again) if lost else 0,
        lag=info.lag,
        shown=tuple(_show(hub, now, f"{group}-screens", name) for name in ("hall", "roof")),
    )


def _show(hub: Hub, stream: StreamInfo, group: str, name: str) -> int:
    """How much a screen has seen that was switched off in between."""
    seen = 0
    for _ in range(2):
        with BroadcastConsumer(hub, str(stream.full_name), group, name, max_records=1000) as screen:
            for _ in range(4):
                seen += len(screen.poll() or ())
    with BroadcastConsumer(hub, str(stream.full_name), group, name) as screen:
        while (batch := screen.poll()) is not None:
            seen += len(batch)
    return seen
