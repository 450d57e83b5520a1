"""`python -m sim`: run seeds, replay one, soak, or explore. The exit code is 1 if something did not hold.

python -m sim --seed 7 --trace        one history, line by line
python -m sim --workers --seed 7      the same of whole workers
python -m sim --seeds 0:1000          many, with a summary: of each seed both
python -m sim --soak-minutes 60       fresh ones, for so long
python -m sim explore                 all histories of small worlds; see `explorer`
python -m sim --shared …              the same of shared groups; see `shared_world`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sim import explorer
from sim.shared_world import SharedWorld
from sim.world import Outcome, World


def main() -> int:
    """Run what the arguments say."""
    if sys.argv[1:2] == ["explore"]:
        return explorer.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--workers", action="store_true", help="only histories of whole workers")
    parser.add_argument("--trace", action="store_true", help="with --seed: print its whole history")
    parser.add_argument("--seeds", default="0:200", help="a range, as 0:1000")
    parser.add_argument("--soak-minutes", type=float, help="run fresh seeds for so long")
    parser.add_argument("--soak-from", type=int, default=1_000_000, help="the first seed of a soak")
    parser.add_argument("--shared", action="store_true", help="worlds of shared groups")
    parser.add_argument("--lines", type=int, default=60, help="of the trace, printed for a seed that fails")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        kind = _SHARED if arguments.shared else _WORKERS if arguments.workers else _CONSUMERS
        return _replay(kind, arguments.seed, None if arguments.trace else arguments.lines)
    first, last = (int(part) for part in arguments.seeds.split(":"))
    seeds = range(first, last)
    until = None
    if arguments.soak_minutes is not None:
        seeds = range(arguments.soak_from, arguments.soak_from + 10**9)
        until = time.monotonic() + arguments.soak_minutes * 60
    kinds = (_SHARED,) if arguments.shared else (_WORKERS,) if arguments.workers else (_CONSUMERS, _WORKERS)
    return _sweep(((kind, seed) for seed in seeds for kind in kinds), until, arguments.lines)


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of history. `option` is what chooses it."""

    option: str
    world: Callable[[int, bool], World | SharedWorld]

    def named(self, seed: int) -> str:
        return f"seed {seed}{f' with --{self.option}' if self.option else ''}"


_CONSUMERS: Final = _Kind("", lambda seed, is_traced: World(seed, is_traced=is_traced))
_WORKERS: Final = _Kind("workers", lambda seed, is_traced: World(seed, is_traced=is_traced, has_workers=True))
_SHARED: Final = _Kind("shared", lambda seed, is_traced: SharedWorld(seed, is_traced=is_traced))


def _replay(kind: _Kind, seed: int, lines: int | None) -> int:
    outcome = kind.world(seed, True).run()
    shown = list(outcome.history.lines)
    for line in shown if lines is None else shown[max(0, len(shown) - lines) :]:
        _print(line)
    _print(f"{kind.named(seed)}: {_verdict(outcome)}; digest {outcome.history.digest()[:16]}")
    return 1 if outcome.violation else 0


def _sweep(worlds: Iterable[tuple[_Kind, int]], until: float | None, lines: int) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failed: list[tuple[_Kind, int]] = []
    events = virtual_ms = 0
    for kind, seed in worlds:
        if until is not None and time.monotonic() > until:
            break
        outcome = kind.world(seed, False).run()
        kinds[f"{outcome.kind.value}{f' with {kind.option}' if kind.option == 'workers' else ''}"] += 1
        events, virtual_ms = events + outcome.events, virtual_ms + outcome.virtual_ms
        faults += outcome.history.faults
        counts += outcome.history.counts
        if outcome.violation:
            failed.append((kind, seed))
            _print(f"{kind.named(seed)}: {_verdict(outcome)}")
    took = time.monotonic() - began
    ran = kinds.total()
    of_kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(kinds.items()))
    _print(f"{ran:,} histories ({of_kinds}), in {took:.1f} s ({ran / max(took, 1):.1f} a second)")
    _print(f"{events:,} events, {virtual_ms / 60_000:,.0f} virtual minutes, {sum(faults.values()):,} faults")
    _print("faults: " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(faults.items())))
    _print("counts: " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(counts.items())))
    if failed:
        named = ", ".join(kind.named(seed) for kind, seed in failed[:40])
        _print(f"{len(failed)} failed: {named}; the first of them ends so:")
        _replay(*failed[0], lines)
    return 1 if failed else 0


def _verdict(outcome: Outcome) -> str:
    return f"VIOLATION of {outcome.violation}" if outcome.violation else "all held"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
