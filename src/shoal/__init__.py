"""Shoal: a sharded log that keeps every key in order, through splits, merges, crashes and deploys."""

from shoal.connect import Hub, connect
from shoal.core import errors
from shoal.core.errors import OffsetExpired, OffsetOutOfRange, ShardClosed, ShoalError
from shoal.core.model import Appended, Position, ProducerStamp, Shard, StreamInfo
from shoal.producer import BatchFuture, Producer, ProducerOptions, SendFuture
from shoal.wire.batch import Batch
from shoal.wire.record import Record

__all__ = [
    "Appended",
    "Batch",
    "BatchFuture",
    "Hub",
    "OffsetExpired",
    "OffsetOutOfRange",
    "Position",
    "Producer",
    "ProducerOptions",
    "ProducerStamp",
    "Record",
    "SendFuture",
    "Shard",
    "ShardClosed",
    "ShoalError",
    "StreamInfo",
    "connect",
    "errors",
]
__version__ = "0.1.0"
