"""All that differs between databases, one room for each, behind one small class."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from shoal.core.errors import InvalidUrl
from shoal.store.sql.dialects.dialect import Dialect
from shoal.store.sql.dialects.mariadb import MariaDB
from shoal.store.sql.dialects.postgres import Postgres
from shoal.store.sql.dialects.sqlite import SQLite

__all__ = ["SCHEMES", "Dialect", "dialect_for"]

SCHEMES: Final[dict[str, type[SQLite | Postgres | MariaDB]]] = {
    "sqlite": SQLite,
    "postgresql": Postgres,
    "postgres": Postgres,
    "mysql": MariaDB,
    "mariadb": MariaDB,
}


def dialect_for(url: str, of: str = "a hub") -> Dialect:
    """The dialect that a URL asks for, with its driver found, or an error that says what to do.

    `of`: what the URL is of, for the error.
    """
    scheme = str(url).partition(":")[0].partition("+")[0].lower()
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://…" for known in SCHEMES)
        raise InvalidUrl("url", _without_password(url), f"{of} is one of {known}")
    try:
        parsed: URL = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise InvalidUrl("url", _without_password(url), "not a URL of the form scheme://…") from error
    return SCHEMES[scheme](parsed)


def _without_password(url: object) -> str:
    """For messages and logs, where a password must not be, however wrong the rest of the URL is."""
    return re.sub(r"(://[^:/@]*:).*(?=@)", r"\1***", str(url))
