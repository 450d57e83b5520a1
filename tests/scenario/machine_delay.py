"""How long processes were kept waiting for a processor, by the kernel's own account.

A measured time is longer by that when others keep the machine busy. Whoever sleeps is not waiting for a
processor: polling gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil


def waited_s(processes: Iterable[int]) -> float:
    """Of all threads of these processes and of their children, since they began; 0 where nobody counts it,
    and of those that have ended."""
    waited_ns = 0
    for pid in processes:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                waited_ns += sum(map(_waited_ns, _threads(one.pid)))
    return waited_ns / 1e9


def _threads(pid: int) -> list[Path]:
    """None of one that has ended since its parent was asked: a session of the database, say."""
    with suppress(OSError):
        return list(Path(f"/proc/{pid}/task").iterdir())
    return []


def _waited_ns(thread: Path) -> int:
    """The second of three numbers: run, waited, how often."""
    with suppress(OSError):
        return int((thread / "schedstat").read_text().split()[1])
    return 0
