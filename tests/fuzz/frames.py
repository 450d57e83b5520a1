"""How schemathesis sends batches: as the bytes that it has made up. Loaded by its own process."""

from typing import Any

import schemathesis

from shoal.wire.frame import CONTENT_TYPE


@schemathesis.serializer(CONTENT_TYPE)
def as_it_is(_: schemathesis.SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
