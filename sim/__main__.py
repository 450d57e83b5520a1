"""`python -m sim`: run seeds, replay one, soak, or explore. The exit code is 1 if something did not hold.

python -m sim --seed 7 --trace        one history, line by line
python -m sim --workers --seed 7      the same of whole workers
python -m sim --seeds 0:1000          many, with a summary: of each seed both
python -m sim --soak-minutes 60       fresh ones, for so long
python -m sim explore                 all histories of small worlds; see `explorer`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable

from sim import explorer
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
    parser.add_argument("--lines", type=int, default=60, help="of the trace, printed for a seed that fails")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        lines = None if arguments.trace else arguments.lines
        return _replay(arguments.seed, lines, has_workers=arguments.workers)
    first, last = (int(part) for part in arguments.seeds.split(":"))
    seeds = range(first, last)
    until = None
    if arguments.soak_minutes is not None:
        seeds = range(arguments.soak_from, arguments.soak_from + 10**9)
        until = time.monotonic() + arguments.soak_minutes * 60
    kinds = (True,) if arguments.workers else (False, True)
    return _sweep(((seed, has_workers) for seed in seeds for has_workers in kinds), until, arguments.lines)


def _replay(seed: int, lines: int | None, *, has_workers: bool) -> int:
    outcome = World(seed, is_traced=True, has_workers=has_workers).run()
    shown = list(outcome.history.lines)
    for line in shown if lines is None else shown[max(0, len(shown) - lines) :]:
        _print(line)
    _print(f"{_named(seed, has_workers)}: {_verdict(outcome)}; digest {outcome.history.digest()[:16]}")
    return 1 if outcome.violation else 0


def _sweep(worlds: Iterable[tuple[int, bool]], until: float | None, lines: int) -> int:
    began = time.monotonic()
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    failed: list[tuple[int, bool]] = []
    events = virtual_ms = 0
    for seed, has_workers in worlds:
        if until is not None and time.monotonic() > until:
            break
        outcome = World(seed, has_workers=has_workers).run()
        kinds[f"{outcome.kind.value}{' with workers' if has_workers else ''}"] += 1
        events, virtual_ms = events + outcome.events, virtual_ms + outcome.virtual_ms
        faults += outcome.history.faults
        counts += outcome.history.counts
        if outcome.violation:
            failed.append((seed, has_workers))
            _print(f"{_named(seed, has_workers)}: {_verdict(outcome)}")
    took = time.monotonic() - began
    ran = kinds.total()
    of_kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(kinds.items()))
    _print(f"{ran:,} histories ({of_kinds}), in {took:.1f} s ({ran / max(took, 1):.1f} a second)")
    _print(f"{events:,} events, {virtual_ms / 60_000:,.0f} virtual minutes, {sum(faults.values()):,} faults")
    _print("faults: " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(faults.items())))
    _print("counts: " + ", ".join(f"{kind} {number:,}" for kind, number in sorted(counts.items())))
    if failed:
        named = ", ".join(_named(*one) for one in failed[:40])
        _print(f"{len(failed)} failed: {named}; the first of them ends so:")
        _replay(failed[0][0], lines, has_workers=failed[0][1])
    return 1 if failed else 0


def _named(seed: int, has_workers: bool) -> str:
    return f"seed {seed}{' with --workers' if has_workers else ''}"


def _verdict(outcome: Outcome) -> str:
    return f"VIOLATION of {outcome.violation}" if outcome.violation else "all held"


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
