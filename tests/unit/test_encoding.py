"""What a hub keeps of the stored forms of streams."""

import weakref
from dataclasses import replace

from shoal.core.model import StreamInfo, StreamSettings
from shoal.core.names import stream_name
from shoal.core.resharding import first_shards
from shoal.hub.encoding import Encoding
from shoal.wire.layout import Layout

STREAM = StreamInfo(
    full_name=stream_name("orders"),
    id=0,
    version=1,
    settings=StreamSettings(),
    shards=first_shards(1, 0),
    created_ms=0,
)


def test_layouts_of_streams_that_are_gone_are_not_kept_for_good() -> None:
    encoding, kept = Encoding(), weakref.WeakSet[Layout]()
    for number in range(10_000):
        kept.add(encoding.layout(replace(STREAM, id=number)))
    assert len(kept) < 5_000
    assert encoding.layout(replace(STREAM, id=9_999)) in kept
