"""What the rooms of the native API have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from shoal.wire.frame import CONTENT_TYPE

Run = Callable[..., Awaitable[Any]]
"""Calls a function that may wait for the store, in a thread."""
Special = Mapping[tuple[str, str], Callable[..., Awaitable[Any]]]
"""Calls by part and name that are not the hub's own: what answers them, given the request and the call's
arguments."""

BATCHES: Final = CONTENT_TYPE.encode()
PARSED_HERE: Final = 16_384
"""A body up to this is parsed at once: to hand it to a thread takes longer."""
