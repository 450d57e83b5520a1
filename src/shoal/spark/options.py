"""Options as Spark hands them over: text under names whose letters' case is lost. A table says what is known.

Spark lower-cases every name on its way, and everything is text. Each side (source, sink) has a table of
`Option`s; `parsed` gives back their values under the names of the table, or one error that names the option,
its value and the remedy. What an option means is not decided here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from shoal.core.errors import InvalidInput, shown_url
from shoal.core.limits import DURATION_S_MAX, OFFSET_MAX

Parser = Callable[[str, str], Any]
"""The name and the text of an option, to its value; or InvalidInput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that is known."""

    name: str
    """As users write it."""
    parse: Parser
    doc: str
    default: Any = None
    is_required: bool = False


def parsed(given: Mapping[str, str], known: Sequence[Option], *, what: str = "the source") -> dict[str, Any]:
    """The value of every known option, by its name; what was not given has its default."""
    if "provider" in given:  # Spark's own word, when a table of its catalogue is made.
        raise InvalidInput(
            "provider",
            given["provider"],
            "Spark keeps the options of a table to itself, and reads it without them; "
            "CREATE TEMPORARY VIEW … USING shoal OPTIONS (…) works",
        )
    by_lower = {option.name.lower(): option for option in known}
    values = {option.name: option.default for option in known}
    for name, text in given.items():
        option = by_lower.get(name.lower())
        if option is None:
            raise unknown(name, text, known, what)
        values[option.name] = option.parse(option.name, str(text).strip())
    for option in known:
        if option.is_required and values[option.name] is None:
            raise InvalidInput(
                option.name, None, f'{what} needs it: .option("{option.name}", …), {option.doc}'
            )
    return values


def unknown(name: str, value: object, known: Sequence[Option], what: str) -> InvalidInput:
    """An option that nobody knows, and the nearest one that is known."""
    names = {option.name.lower(): option.name for option in known}
    near = get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[near[0]]!r}?" if near else f"it knows {', '.join(sorted(names.values()))}"
    shown = "***" if _SECRET.search(name.lower()) else shown_url(str(value))
    return InvalidInput(name, shown, f"{what} has no such option; {hint}")


# --- Kinds of values. --------------------------------------------------------------------------------


def text(name: str, value: str) -> str:
    """Any text but none."""
    if not value:
        raise InvalidInput(name, value, "it is empty; give a value, or leave the option out")
    return value


def flag(name: str, value: str) -> bool:
    """`true` or `false`."""
    known = {"true": True, "false": False}
    if value.lower() not in known:
        raise InvalidInput(name, value, "true or false")
    return known[value.lower()]


def whole(least: int = 1) -> Parser:
    """A whole number, `least` or more."""

    def parse(name: str, value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", value) or int(value) < least:
            raise InvalidInput(name, value, f"a whole number, {least} or more, of at most 18 digits")
        return int(value)

    return parse


def size(name: str, value: str) -> int:
    """Bytes: a whole number, with `k`, `m` or `g` behind it if you like."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)b?", value.lower())
    wanted = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < wanted <= OFFSET_MAX:
        raise InvalidInput(name, value, "bytes, 1 or more, below 8 EiB: 1000000, 512k, 64m or 1g")
    return wanted


def seconds(name: str, value: str) -> float:
    """A time: `15m`, `30s`, `500ms`, `1h`; a bare number is seconds."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", value.lower())
    length = float(found[1]) * _SECONDS[found[2] or "s"] if found else 0.0
    if not 0 < length <= DURATION_S_MAX:
        raise InvalidInput(name, value, "a time such as 500ms, 30s, 15m or 1h, up to 7d")
    return length


def names(name: str, value: str) -> tuple[str, ...]:
    """Names with commas between, each once."""
    found = tuple(part.strip() for part in value.split(","))
    if not all(found) or len(set(found)) < len(found):
        raise InvalidInput(name, value, "names with commas between, each once")
    return found


def choice(*known: str) -> Parser:
    """One of these words."""

    def parse(name: str, value: str) -> str:
        if value.lower() not in known:
            raise InvalidInput(name, value, f"one of {', '.join(known)}")
        return value.lower()

    return parse


def as_json(name: str, value: str) -> Any:
    """A JSON text, in which no name is there twice: Python would take the last one without a word."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, times in Counter(key for key, _ in pairs).items():
            if times > 1:
                raise InvalidInput(name, key, f"it is there {times} times; name each once")
        return dict(pairs)

    try:
        return json.loads(value, object_pairs_hook=once)
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(name, value, f"not JSON ({error})") from None
    except RecursionError:
        raise InvalidInput(name, value, "nested too deeply; offsets are two levels at most") from None


_SECRET: Final = re.compile("passw|secret|token|credential|jaas")
"""In the names of options that other connectors have: their values are not for logs."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
