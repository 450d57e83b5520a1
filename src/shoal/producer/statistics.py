"""What a producer has done so far. Counted by its sender; read by whoever likes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ProducerStats:
    """Figures since the producer was made."""

    records: int = 0
    """Stored."""
    batches: int = 0
    """Stored."""
    bytes: int = 0
    """Stored, as they were in the buffer."""
    calls: int = 0
    """Of the hub, to store batches."""
    retries: int = 0
    """Of those, repeated after a passing failure."""
    refused: int = 0
    """Batches that came to a shard that was closed: they went on to its heirs."""
    moved: int = 0
    """Batches that went to other shards than they were gathered for, refused or before it came to that."""
    failed: int = 0
    """Records whose futures failed."""
