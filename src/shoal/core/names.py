"""Names of projects, streams, groups and consumers: one rule for all of them.

`project/stream` names a stream in a project; without a project it is `default`.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.core.errors import InvalidName
from shoal.core.limits import NAME_LENGTH_MAX
from shoal.core.model import DEFAULT_PROJECT, StreamName

_RULE: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_LENGTH_MAX}}}")


def checked_name(field: str, name: object) -> str:
    """Return `name` if it obeys the rule, otherwise raise an error that names the field."""
    if not isinstance(name, str) or not _RULE.fullmatch(name):
        raise InvalidName(
            field, name, f"a name is 1 to {NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -"
        )
    return name


def stream_name(name: object) -> StreamName:
    """Parse `stream` or `project/stream`."""
    if isinstance(name, StreamName):
        return name
    if not isinstance(name, str):
        raise InvalidName("stream", name, "a stream is named by a str, 'stream' or 'project/stream'")
    project, slash, stream = name.partition("/")
    if not slash:
        project, stream = DEFAULT_PROJECT, name
    return StreamName(checked_name("project", project), checked_name("stream", stream))
