"""Names of projects, streams, groups and consumers: one rule for all of them.

`project/stream` names a stream in a project; without a project it is `default`.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.core.errors import InvalidName
from shoal.core.limits import NAME_LENGTH_MAX, PRODUCER_NAME_LENGTH_MAX
from shoal.core.model import DEFAULT_PROJECT, StreamName

_RULE: Final = re.compile(rf"(?!\.{{1,2}}$)[A-Za-z0-9._-]{{1,{NAME_LENGTH_MAX}}}")
"""Neither `.` nor `..`: a path with one of them leads elsewhere before it gets to us."""


LEDGER: Final = "spark.ledger"
"""The stream in which the sinks of Spark keep their notes, one in each project that they write to."""


def checked_name(field: str, name: object) -> str:
    """Return `name` if it obeys the rule, otherwise raise an error that names the field."""
    if not isinstance(name, str) or not _RULE.fullmatch(name):
        raise InvalidName(
            field,
            name,
            f"a name is 1 to {NAME_LENGTH_MAX} of the characters A-Z a-z 0-9 . _ -, and not . or ..",
        )
    return name


def checked_producer(name: object, field: str = "producer") -> str:
    """The same for a producer: short enough for what is added to it on other streams of a transaction."""
    if len(checked_name(field, name)) > PRODUCER_NAME_LENGTH_MAX:
        raise InvalidName(field, name, f"at most {PRODUCER_NAME_LENGTH_MAX} characters")
    return str(name)


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
