"""`core` and `wire` are dry: this reads their source, and catches what it should in planted code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal

HOUSE = Path(shoal.__file__).parent
# What a rule may lean on: nothing here has a clock, chance, a thread, a socket, a file or a log in it.
PURE = {
    "__future__", "bisect", "collections", "dataclasses", "datetime", "enum", "fractions", "functools",
    "hashlib", "heapq", "itertools", "math", "operator", "re", "types", "typing", "xxhash",
}  # fmt: skip
FORMS = {"base64", "binascii", "hmac", "json", "numpy", "pyarrow", "struct", "zlib"}
WET_NAMES = {"open", "print", "input", "now", "today", "utcnow", "random", "OSFile", "memory_map", "sleep"}


def faults(source: str, allowed: set[str], below: tuple[str, ...]) -> Iterator[str]:
    """Imports and calls that a dry room must not have."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
            for name in names:
                if name.split(".")[0] not in allowed and not name.startswith(below):
                    yield f"line {node.lineno}: imports {name}"
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in WET_NAMES:
                yield f"line {node.lineno}: calls {called}"


CORE = HOUSE / "core"


@pytest.mark.parametrize("room", sorted(CORE.rglob("*.py")), ids=lambda room: str(room.relative_to(CORE)))
def test_a_room_of_core_is_dry(room: Path) -> None:
    assert list(faults(room.read_text(), PURE, ("shoal.core",))) == []


@pytest.mark.parametrize("room", sorted((HOUSE / "wire").glob("*.py")), ids=lambda room: room.stem)
def test_a_room_of_wire_is_dry(room: Path) -> None:
    assert list(faults(room.read_text(), PURE | FORMS, ("shoal.core", "shoal.wire"))) == []


@pytest.mark.parametrize("room", sorted((HOUSE / "spark" / "plan").glob("*.py")), ids=lambda room: room.stem)
def test_a_room_of_the_plan_of_a_spark_read_is_dry(room: Path) -> None:
    assert list(faults(room.read_text(), PURE, ("shoal.core", "shoal.spark.plan"))) == []


@pytest.mark.parametrize(
    "planted",
    [
        "import time",
        "import os.path",
        "from threading import Lock",
        "from random import random",
        "import sqlite3",
        "from shoal.store.sql import tables",
        "from shoal.wire.batch import Batch",
        "from datetime import datetime\ndatetime.now()",
        "open('x')",
        "import numpy",
    ],
)
def test_the_look_at_the_source_catches_what_is_wet(planted: str) -> None:
    assert list(faults(planted, PURE, ("shoal.core",))) != []
