"""What a producer has done so far. Counted by its sender; read by whoever likes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class ProducerStats:
    """Figures since the producer was made, and what waits. Users are given copies."""

    records: int = 0
    """Stored, those of transactions included."""
    batches: int = 0
    """That they were stored in."""
    bytes: int = 0
    """Stored, as they were in the buffer."""
    delayed: int = 0
    """Of the records, those that come later."""
    repeats: int = 0
    """Numbered records that an earlier life had stored."""
    transactions: int = 0
    """Committed."""
    calls: int = 0
    """Of the hub, to store batches."""
    retries: int = 0
    """Calls that failed for a passing reason, and were made again."""
    refused: int = 0
    """Batches that came to a shard that was closed: they went on to its heirs."""
    held: int = 0
    """Times that sends waited for a map that was announced."""
    moved: int = 0
    """Batches that went to other shards than they were gathered for, refused or before it came to that."""
    reordered: int = 0
    """Records that lost their place after failed attempts: `best_tried` sent them to another shard, or to the
    outbox. Each counts once, however often."""
    outboxed: int = 0
    """Of those, the ones that the outbox has."""
    failed: int = 0
    """Records whose futures failed."""
    lives: int = 1
    """Epochs: another one begins when it is not known what became of a batch."""
    blocked: int = 0
    """Times that `send` had to wait because the buffer was full."""
    buffered_bytes: int = 0
    """Bytes that wait to be stored."""
