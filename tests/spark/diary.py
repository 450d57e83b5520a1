"""Processors for tests on executors, which write down what happens to them: a line of JSON each, in a file.

They live in a module of their own, which executors can import by its name.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import shoal


class Diary:
    """What was written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, *whats: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if not whats or line["what"] in whats]

    @property
    def places(self) -> Counter[tuple[int, int]]:
        """How often each record was given out."""
        return Counter(
            (line["shard"], offset) for line in self.lines("process") for offset in line["offsets"]
        )

    def keys_are_in_order(self) -> bool:
        """Whether the values of each key, which are numbers, rise; a repeat leads back."""
        last: dict[str, int] = {}
        for line in self.lines("process"):
            for key, value in zip(line["keys"], line["values"], strict=True):
                if int(value) <= last.get(key, -1):
                    return False
                last[key] = int(value)
        return True

    @property
    def reasons(self) -> Counter[str]:
        return Counter(line["reason"] for line in self.lines("shutdown"))


class Writer(shoal.Processor):
    """Writes down every call, and saves each batch."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._shard = -1

    def initialize(self, shard: int) -> None:
        self._shard = shard
        self.say("initialize")

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        self.note(list(batch), checkpointer)
        checkpointer.save()
        return None

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        self.say("shutdown", reason=reason.value)

    def note(self, records: list[shoal.Record], checkpointer: shoal.Checkpointer) -> None:
        self.say(
            "process",
            offsets=[record.offset for record in records],
            keys=[(record.key or b"").decode() for record in records],
            values=[bytes(record.value).decode() for record in records],
            headers=[sorted(record.headers) for record in records],
            epoch=checkpointer.epoch,
        )

    def say(self, what: str, **more: Any) -> None:
        line = json.dumps({"what": what, "shard": self._shard, "pid": os.getpid(), **more})
        with Path(self._path).open("a") as file:
            file.write(line + "\n")


class FailingOnce(Writer):
    """Raises once in each method: where, a file remembers."""

    def initialize(self, shard: int) -> None:
        super().initialize(shard)
        self._fail("initialize")

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        self._fail("process")
        return super().process(batch, checkpointer)

    def shutdown(self, checkpointer: shoal.Checkpointer, reason: shoal.Reason) -> None:
        super().shutdown(checkpointer, reason)
        self._fail("shutdown")

    def _fail(self, what: str) -> None:
        mark = Path(f"{self._path}.{what}.{self._shard}")
        if not mark.exists():
            mark.touch()
            raise ValueError(f"odd {what}")


class Blocked(Writer):
    """Raises on the record `7` as long as a file is there."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            if record.value == b"7" and Path(f"{self._path}.poison").exists():
                raise ValueError("seven")
            self.note([record], checkpointer)
            checkpointer.save(persist=False)
        return None


class Poisoned(Writer):
    """Raises on records that say `poison`."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            if record.value == b"poison":
                self.say("poison", headers=sorted(record.headers), stream=batch.stream)
                raise ValueError("poison")
            self.note([record], checkpointer)
            checkpointer.save(persist=False)
        return None


class Slow(Writer):
    """Waits a little with every record."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            time.sleep(0.01)
            self.note([record], checkpointer)
            checkpointer.save(persist=False)
        return None


class Waiting(Writer):
    """Waits at the record `20` for as long as a file is not there."""

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        for record in batch:
            if record.value == b"20" and not Path(f"{self._path}.go").exists():
                self.say("waiting")
                time.sleep(60)
            self.note([record], checkpointer)
            if record.offset % 10 == 9:
                checkpointer.save()
        checkpointer.save()
        return None


class Gatherer(Writer):
    """Waits at the end of its first call for as long as a file is not there, and saves from 50 records on."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._seen = 0

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        self.note(list(batch), checkpointer)
        while not Path(f"{self._path}.go").exists():
            time.sleep(0.01)
        self._seen += len(batch)
        if self._seen >= 50:
            checkpointer.save()
        return None


class Unsteady(Writer):
    """Raises once, is slow with what is tried again, and saves nothing before it has seen ten records."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._seen = 0

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        mark = Path(f"{self._path}.raised")
        if not mark.exists():
            mark.touch()
            raise ValueError("odd")
        if not self._seen:
            time.sleep(3.0)
        self.note(list(batch), checkpointer)
        self._seen += len(batch)
        if self._seen >= 10:
            checkpointer.save()
        return None


class Forgetful(Writer):
    """Saves nothing before it has seen ten records."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._seen = 0

    def process(self, batch: shoal.Batch, checkpointer: shoal.Checkpointer) -> int | None:
        self.note(list(batch), checkpointer)
        self._seen += len(batch)
        if self._seen >= 10:
            checkpointer.save()
        return None
