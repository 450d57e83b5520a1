"""Text of others, as an error may carry it: bounded, without secrets, and never a cause of errors itself."""

from __future__ import annotations

import re
from typing import Final

from shoal.core.limits import TEXT_LENGTH_MAX

_PASSWORD: Final = re.compile(r"(//[^/@:]*:).*@")


def shown(value: object) -> str:
    """A value for people, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def text_of(error: BaseException) -> str:
    """What an error of user code says, or that it cannot be shown: never raises."""
    try:
        return plain(str(error))
    except Exception as worse:  # noqa: BLE001 - around user code: an error that cannot even be shown
        return f"(its text raised {type(worse).__qualname__})"


def plain(text: str) -> str:
    """Text of others as every database can keep it: bounded, without zeros and halves of surrogate pairs."""
    bounded = text if len(text) <= TEXT_LENGTH_MAX else f"{text[: TEXT_LENGTH_MAX - 3]}..."
    return bounded.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def shown_url(url: str) -> str:
    """A URL for people: without the password, or the secret of a key, that it may carry."""
    return _PASSWORD.sub(r"\1***@", url)
