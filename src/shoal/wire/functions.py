"""Arrow's functions over columns, loaded when the first of them is used.

That takes as long as a fair part of our own modules together. A process that plans a query of Spark's, for
whom its trigger waits, uses none of them; one that has records meets them in `shoal.forks.meet_arrow`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:

    class _Functions:
        """The module, as far as it was asked for."""

        def __getattr__(self, name: str) -> Any:
            import pyarrow.compute as functions  # noqa: PLC0415

            found = getattr(functions, name)
            setattr(self, name, found)  # From now on nobody asks here.
            return found

    pc: Final = _Functions()

__all__ = ["pc"]
