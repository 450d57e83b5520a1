"""Names of a package whose modules are imported when a name is first asked for.

A process that plans a query of Spark's, or a command that prints three lines, needs a tenth of what we have,
and would spend a second on the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

from shoal.forks import importing


def lazily(package: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """A package's `__getattr__`: `names` are, by module, those that it has for the package."""
    homes = {name: module for module, some in names.items() for name in some.split()}

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with importing:
            found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)  # From now on nobody asks here.
        return found

    return get
