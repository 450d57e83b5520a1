"""The database behind a hub, and a hub that lets nobody through for now, or any more."""

from __future__ import annotations

from shoal.core.errors.root import ShoalError


class StoreError(ShoalError):
    """The database behind the hub refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or went away; what was not acknowledged may or may not be stored."""

    retriable = True

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store cannot be reached: {detail}")
        self.detail = detail


class StoreBusy(StoreError):
    """Others held the database's lock for longer than we wait; nothing was changed."""

    retriable = True
    untouched = True

    def __init__(self, detail: str, waited_s: float) -> None:
        why = f"the store is locked by others (waited at most {waited_s:g} s)" if waited_s else "busy for now"
        super().__init__(f"{why}: {detail}")
        self.detail, self.waited_s = detail, waited_s


class RateExceeded(StoreError):
    """A client that asks for more than it may, for now; nothing was done."""

    retriable = True
    untouched = True

    def __init__(self, *, client: str, limit: int, retry_s: float) -> None:
        super().__init__(
            f"rate: {client} made more than {limit} requests a second; ask again in {retry_s:.3f} s, or in "
            "larger batches"
        )
        self.client, self.limit, self.retry_s = client, limit, retry_s


class StoreFull(StoreError):
    """The disk is full; nothing was changed, and what was acknowledged stays readable."""

    retriable = True
    untouched = True

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store's disk is full: {detail}; free some room, or shorten the retention")
        self.detail = detail


class StoreReadOnly(StoreError):
    def __init__(self, detail: str) -> None:
        super().__init__(f"the store cannot be written: {detail}; check the file's and folder's permissions")
        self.detail = detail


class StoreCorrupt(StoreError):
    def __init__(self, detail: str) -> None:
        super().__init__(f"the store is damaged: {detail}; restore it from a backup")
        self.detail = detail


class NotAShoalStore(StoreError):
    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}; point the hub at a new or a Shoal database")
        self.where, self.detail = where, detail


class StoreTooNew(StoreError):
    """The database was written by a newer Shoal."""

    def __init__(self, *, where: str, found: int, known: int) -> None:
        super().__init__(
            f"{where}: schema version {found} is newer than this Shoal knows ({known}); upgrade Shoal"
        )
        self.where, self.found, self.known = where, found, known


class StoreNotDurable(StoreError):
    """The database's settings would lose acknowledged records at a power cut."""

    def __init__(self, *, where: str, setting: str, found: str, wanted: str) -> None:
        super().__init__(
            f"{where}: {setting}={found!r} would lose acknowledged records; set it to {wanted}, "
            "or connect with durable=False if that is acceptable"
        )
        self.where, self.setting, self.found, self.wanted = where, setting, found, wanted


class StoreRefused(StoreError):
    """The database does not let us in, or has no database of that name."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store refused: {detail}; check user, password and database in the URL")
        self.detail = detail


class StoreFailure(StoreError):
    """The database answered with an error that Shoal has no better name for."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"the store failed: {detail}")
        self.detail = detail


class HubClosed(ShoalError):
    def __init__(self) -> None:
        super().__init__("the hub is closed; connect again with shoal.connect()")
