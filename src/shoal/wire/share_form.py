"""The stored form of a shard in a shared group: numbers in columns, each as its distance from the one before.

Thousands of spans are mostly small equal distances, which compress to a few bytes each. The first byte names
the form: a newer one may be added, and old rows stay readable.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from shoal.core.errors import StoreCorrupt
from shoal.core.share import ShareState
from shoal.core.spans import Span

PLAIN: Final = b"1"
PACKED: Final = b"2"
"""The same, compressed."""
_PACK_FROM: Final = 512


def encoded(state: ShareState) -> bytes:
    """Everything but the version and the news, which have columns of their own."""
    spans = state.open
    has_keys = any(span.key for span in spans)
    body: list[object] = [
        [state.next, state.pledges, state.holds, state.acknowledged, state.dead, state.lost],
        {str(hold): consumer for hold, consumer in state.holders.items()},
        [[pledge, rest] for pledge, rest in state.left.items()],
        _distances(span.low for span in spans),
        [span.high - span.low for span in spans],
        [span.attempts for span in spans],
        _distances(span.hold for span in spans),
        _distances(span.pledge for span in spans),
        [span.key for span in spans] if has_keys else [],
    ]
    text = json.dumps(body, separators=(",", ":")).encode()
    return PLAIN + text if len(text) < _PACK_FROM else PACKED + zlib.compress(text, 1)


def decoded(stored: bytes, *, version: int, news: int) -> ShareState:
    """The state of a row."""
    try:
        return _decoded(stored, version, news)
    except (ValueError, TypeError, zlib.error) as error:
        raise StoreCorrupt(f"a shared group's row cannot be read: {error}") from error


def _decoded(stored: bytes, version: int, news: int) -> ShareState:
    form, text = stored[:1], stored[1:]
    if form not in (PLAIN, PACKED):
        raise ValueError(f"form {form!r} is not known")
    counts, holders, left, lows, lengths, attempts, of_holds, of_pledges, keys = json.loads(
        text if form == PLAIN else zlib.decompress(text)
    )
    following, pledges, holds, acknowledged, dead, lost = counts
    starts = list(accumulate(lows))
    spans = zip(
        starts,
        map(sum, zip(starts, lengths, strict=True)),
        attempts,
        accumulate(of_holds),
        accumulate(of_pledges),
        keys or [0] * len(starts),
        strict=True,
    )
    return ShareState(
        next=following,
        open=tuple(map(Span._make, spans)),
        pledges=pledges,
        left=dict(left),
        holds=holds,
        holders={int(hold): consumer for hold, consumer in holders.items()},
        acknowledged=acknowledged,
        dead=dead,
        lost=lost,
        version=version,
        news=news,
    )


def _distances(numbers: Iterable[int]) -> Sequence[int]:
    last = 0
    found = []
    for number in numbers:
        found.append(number - last)
        last = number
    return found
