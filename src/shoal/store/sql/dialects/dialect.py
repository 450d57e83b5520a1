"""What a database must tell us to serve as a store. One subclass for each, in a room of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final, Protocol

from sqlalchemy.engine import URL, Connection, Engine

from shoal.core.errors import StoreError
from shoal.store.sql.prepared import Querying

HINT_WAIT_S: Final = 0.2
"""One wait for a hint. Short, because closing and forking wait for it to end."""


class Hints(Protocol):
    """Waits for a hint that something was committed, by anyone. It may err towards yes."""

    def wait(self) -> bool:
        """Within `HINT_WAIT_S`: True if something may have changed, otherwise False."""

    def found(self) -> None:
        """The last hint was a good one: more may follow soon."""

    def close(self) -> None:
        """Give the connection back; a later wait opens another."""


class Dialect(ABC):
    """One database, as far as it differs from the others."""

    def __init__(self, url: URL) -> None:
        self.url = url

    @property
    def description(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @abstractmethod
    def engine(self) -> Engine:
        """A new engine. Nothing is opened yet."""

    def writers(self, engine: Engine) -> Engine:
        """Where connections that write come from; the same, unless they need other settings."""
        return engine

    glances_freely: ClassVar[bool] = False
    """Whether a statement outside a transaction leaves none behind."""
    reads_mapped: bool = False
    """Whether a file is read through a mapping into memory: a copy less, but an error of the disk ends the
    process."""

    def inspect(self) -> None:  # noqa: B027 - a database may have nothing to refuse
        """Refuse what is not ours before anything is changed."""

    @abstractmethod
    def check_durable(self, connection: Connection) -> None:
        """Raise StoreNotDurable if the settings would lose an acknowledged commit at a power cut."""

    @abstractmethod
    def migration_lock(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep other processes from migrating at the same time."""

    def begin_read(self, connection: Connection) -> None:  # noqa: B027 - the driver begins by itself
        """Begin a transaction that sees one moment."""

    def begin_write(self, connection: Connection) -> None:  # noqa: B027 - the driver begins by itself
        """Begin a transaction that will write, waiting for other writers within a bound."""

    def announce(self, connection: Connection, topics: Sequence[object]) -> None:  # noqa: B027 - not all can
        """Inside a transaction: tell waiting processes that these streams or groups will have changed."""

    def payload(self, connection: Querying, handle: Any) -> bytes:
        """The payload of a batch, of what `tables.payload_handle` gave in the same transaction."""
        del connection
        return handle if isinstance(handle, bytes) else bytes(handle)

    def is_worn(self, connection: Querying) -> bool:
        """Whether a connection that is kept for looks should give way to a new one."""
        del connection
        return False

    @abstractmethod
    def hints(self, engine: Engine) -> Hints:
        """A new listener with a connection of its own."""

    @abstractmethod
    def fault(self, error: BaseException) -> StoreError:
        """Our name for a driver's error."""


@contextmanager
def unlocked() -> Iterator[None]:
    """For databases whose transaction is lock enough."""
    yield


def first_line(error: Any) -> str:
    """A driver's error in one line, without the statement and its parameters."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
