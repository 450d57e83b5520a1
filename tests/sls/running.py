"""Programs with a consumer of Aliyun's in them, what they have written, and the stream that they read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Final

from shoal import Hub
from shoal.core.errors import UnknownGroup
from shoal.testing.aliyun import Program

Start = Callable[..., Program]
"""`start(program, url, *words)`: the fixture of this folder."""

STREAM: Final = "proj/store"


class Reader:
    """A running program, and the lines that it has written: `shard nanoseconds text` for each log."""

    def __init__(self, process: Program) -> None:
        self.process = process
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())

    @property
    def seen(self) -> list[tuple[int, int, str]]:
        """When, of which shard, what."""
        found = [line.split(" ", 2) for line in list(self.lines) if line[:1].isdigit()]
        return [(int(at), int(shard), text) for shard, at, text in found]

    @property
    def texts(self) -> list[str]:
        return [text for *_, text in self.seen]

    def stop(self) -> None:
        stop(self)

    def ended(self) -> None:
        """Wait for its end, which has to be a good one."""
        assert self.process.wait(30) == 0, self.lines
        self._thread.join(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._thread.join(10)


def stop(*readers: Reader) -> None:
    """Stop them in order, all at once, and wait for their ends."""
    for reader in readers:
        assert reader.process.stdin is not None
        reader.process.stdin.write("\n")
        reader.process.stdin.flush()
    for reader in readers:
        reader.ended()


@contextmanager
def running(process: Program) -> Iterator[Reader]:
    """Read what a program writes; it is killed in the end, if it still runs."""
    reader = Reader(process)
    try:
        yield reader
    finally:
        reader.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def reading(start: Start, url: str, *words: str) -> Iterator[Reader]:
    """A worker of the Python library."""
    with running(start("worker_program.py", url, *words)) as reader:
        yield reader


class Writer:
    """Writes records of a few keys without rest, `key:number` each, in a thread."""

    def __init__(self, hub: Hub, keys: int) -> None:
        self.hub, self.keys, self.sent = hub, keys, 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with self.hub.producer(STREAM) as producer:
            while not self._ends.wait(0.05):
                for key in range(self.keys):
                    row = {"time": 1, "contents": [("text", f"{key}:{self.sent}".encode())]}
                    producer.send(row, key=str(key))
                self.sent += 1

    def end(self) -> set[str]:
        """Write no more; all that was written."""
        self._ends.set()
        self._thread.join()
        return {f"{key}:{number}" for key in range(self.keys) for number in range(self.sent)}


def send(hub: Hub, texts: Iterable[str]) -> None:
    """As a native producer, into the columns of a logstore."""
    with hub.producer(STREAM) as producer:
        for text in texts:
            producer.send({"time": 1, "contents": [("text", text.encode())]}, key=text)


def held(hub: Hub) -> list[int]:
    """Shards that each member holds, the fewest first."""
    try:
        return sorted(member.shards for member in hub.describe_group(STREAM, "g").members)
    except UnknownGroup:
        return []


def lag(hub: Hub) -> int:
    found = hub.describe_group(STREAM, "g").lag
    assert found is not None
    return found


def numbers(low: int, high: int) -> list[str]:
    return [str(i) for i in range(low, high)]


Seen = list[tuple[int, int, str]]


def check_order(*seen: Seen) -> None:
    """What was seen of each key for the first time came in the order in which it was written."""
    first = dict.fromkeys(text for *_, text in sorted(chain.from_iterable(seen)))
    last: dict[str, int] = {}
    for text in first:
        key, _, number = text.partition(":")
        assert int(number) > last.get(key, -1), (text, last[key])
        last[key] = int(number)


def repeats(*seen: Seen) -> dict[str, int]:
    """What was seen more than once, and how often."""
    counts = Counter(text for *_, text in chain.from_iterable(seen))
    return {text: count for text, count in counts.items() if count > 1}


def deaths(hub: Hub) -> int:
    """Members that were declared dead."""
    return sum(note.kind == "expired" for _, note in hub.group_history(STREAM, "g", limit=1000))
