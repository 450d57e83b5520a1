"""What the caller gave does not make sense, or asks for a package that is not installed."""

from __future__ import annotations

from shoal.core.errors.root import InvalidInput, ShoalError
from shoal.core.errors.texts import shown_url


class InvalidName(InvalidInput):
    """A name of a project, stream, group or consumer that breaks the naming rule."""


class InvalidUrl(InvalidInput):
    """A hub URL that names no store we know, or one that is not complete. Shown without its password."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(field, shown_url(value) if isinstance(value, str) else value, remedy)


class InvalidKey(InvalidInput, TypeError):
    """A key that is neither bytes nor str."""


class InvalidTimestamp(InvalidInput):
    """A timestamp that is not a time between 1970 and 9999."""


class EmptyBatch(InvalidInput):
    """An append with no records in it."""


class TooLarge(InvalidInput):
    """A record or a batch over its limit."""

    def __init__(self, field: str, *, size: int, limit: int, remedy: str) -> None:
        super().__init__(field, f"{size} bytes", f"over the limit of {limit} bytes; {remedy}")
        self.size, self.limit = size, limit


class SchemaMismatch(InvalidInput):
    """Data that does not fit the stream's columns; says which column and which type."""

    def __init__(self, column: str, *, given: str, wanted: str) -> None:
        super().__init__(column, given, f"the stream wants {wanted}")
        self.column, self.given, self.wanted = column, given, wanted


class MissingDriver(ShoalError, ImportError):
    """A store whose driver is not installed."""

    def __init__(self, *, scheme: str, package: str, extra: str) -> None:
        super().__init__(
            f"scheme={scheme!r}: the driver {package!r} is not installed; "
            f"install it with: pip install 'shoal[{extra}]'"
        )
        self.scheme, self.package, self.extra = scheme, package, extra


class MissingPackage(ShoalError, ImportError):
    """A part of Shoal that needs a package which is not installed."""

    def __init__(self, *, part: str, package: str, extra: str) -> None:
        super().__init__(
            f"{part} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'shoal[{extra}]'"
        )
        self.part, self.package, self.extra = part, package, extra
