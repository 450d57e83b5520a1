"""Spark's side of Shoal: a source, a sink, and processors on executors. Needs the extra `shoal[spark]`.

Importing this package alone imports neither Spark nor the hub: executors and the driver's short-lived
planners start it often.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_shoal import DefaultSource as ShoalDataSource
    from shoal.spark.draining import drain
    from shoal.spark.keeping import keep_running
    from shoal.spark.processors import run
    from shoal.spark.reasons import reason

__all__ = ["ShoalDataSource", "drain", "keep_running", "reason", "run"]

_ROOMS = {
    "ShoalDataSource": ("pyspark_shoal", "DefaultSource"),
    "drain": ("shoal.spark.draining", "drain"),
    "keep_running": ("shoal.spark.keeping", "keep_running"),
    "reason": ("shoal.spark.reasons", "reason"),
    "run": ("shoal.spark.processors", "run"),
}


def __getattr__(name: str) -> Any:
    """What users take from here, from the room that it is in."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, inside = _ROOMS[name]
    return getattr(import_module(room), inside)
