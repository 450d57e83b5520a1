"""Errors on a wire: one JSON form for all of them, made from the tree in `core.errors`.

    {"error": "UnknownStream", "text": "stream='x': there …", "retriable": false, "fields": {"stream": "x"}}

The receiver raises the same class with the same fields. An error that it does not know, of a newer release,
is a StoreFailure with the same text. No codes of any protocol: each edge has its own table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

from shoal.core import errors
from shoal.core.errors import ShoalError, StoreFailure


def error_to(error: ShoalError, encode: Callable[[object], Any]) -> dict[str, Any]:
    """The error as JSON knows it."""
    kind: Any = type(error)
    return {
        "error": kind.__name__,
        "text": str(error),
        "retriable": error.retriable,
        "fields": {name: encode(value) for name, value in vars(error).items() if name in fields(kind)},
    }


def error_from(given: Mapping[str, Any], decode: Callable[[Any, Any, str], Any]) -> ShoalError:
    """The error that was sent."""
    text = str(given.get("text", "no text"))
    kind: Any = getattr(errors, str(given.get("error")), None)
    if not _is_error(kind):
        return StoreFailure(text)
    error: ShoalError = kind.__new__(kind, text)
    sent = given.get("fields", {})
    of_kind: dict[str, Any] = fields(kind)
    for name, of in of_kind.items():
        if name in sent:
            setattr(error, name, decode(of, sent[name], name))
    return error


def _is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ShoalError) and kind is not ShoalError


@lru_cache(maxsize=256)
def fields(kind: Any) -> dict[str, Any]:
    """The facts that an error carries, with their annotations: what it is made from."""
    found: dict[str, Any] = {}
    for parent in reversed(kind.__mro__):
        if issubclass(parent, ShoalError) and "__init__" in vars(parent):
            found |= get_type_hints(vars(parent)["__init__"])
    found.pop("return", None)
    return found
