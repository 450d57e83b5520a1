"""What `shoal work` was asked for, whichever engine does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal import Hub
from shoal.cli import output
from shoal.core.errors import UnknownGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The words of the command line, checked."""

    processor: str
    hub: str
    leases: str | None
    stream: str
    group: str
    name: str | None
    options: dict[str, Any]
    """Of the workers, those that were given."""
    new_group: dict[str, Any]
    """Those of them that are for a group that is made."""
    every_s: float
    stop_timeout_s: float
    as_json: bool


def see_group(hub: Hub, asked: Asked) -> None:
    """The stream has to be there, and the group too unless it may be made."""
    hub.describe_stream(asked.stream)
    try:
        hub.describe_group(asked.stream, asked.group)
    except UnknownGroup:
        if not asked.options.get("create_group", True):
            raise
        return
    if asked.new_group:
        words = ", ".join(f"--{one.replace('_', '-')}" for one in asked.new_group)
        output.note(
            f"group {asked.group} is there already and stays as it is: {words} would be for a new one"
        )
