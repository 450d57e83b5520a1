"""`make bench`: every line that the issues ask for, with its ratio; docs/performance.md is written anew.

`--quick` measures less of everything, to see that it works, and writes nothing; `--only sqlite,large` chooses
sections, and leaves the others of the table as they are. The exit code is 1 if a floor is missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.data import Chunk, make_chunk
from bench.installed import compile_sources
from bench.sections import groups, serving, stores
from bench.table import Report
from shoal.testing.servers import MariaDBServer, PostgresServer

_SECTIONS: Final[dict[str, Callable[[Report, Path, Chunk, int], None]]] = {
    "sqlite": stores.sqlite,
    "producers": stores.producing,
    "large": stores.many_records,
    "redis": stores.redis,
    "postgresql": stores.database(PostgresServer, "postgresql"),
    "mariadb": stores.database(MariaDBServer, "mariadb"),
    "groups": groups.owners,
    "workers": groups.working,
    "consumers": groups.polling,
    "shared": groups.sharing,
    "server": serving.server,
}


def main() -> int:
    """Run the chosen sections."""
    arguments = _arguments()
    compile_sources()
    report = Report(Console(width=150))
    chunk = make_chunk()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as name:
        folder = Path(name)
        for section in arguments.only.split(","):
            _SECTIONS[section](report, folder, chunk, 10 if arguments.quick else 1)
    report.show()
    if not arguments.quick:
        report.write()
    for line in report.missed:
        report.console.print(
            f"[red]missed its floor:[/red] {line.what}: {line.figure} {line.ratio}, {line.floor}"
        )
    return 1 if report.missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure a tenth of everything")
    names = ",".join(_SECTIONS)
    parser.add_argument("--only", default=names, help=f"sections: {names}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
