"""Shoal: a sharded log that keeps every key in order, through splits, merges, crashes and deploys."""

from shoal.connect import Hub, connect
from shoal.consumer.checkpointer import Checkpointer
from shoal.consumer.options import WorkerOptions
from shoal.consumer.processor import Processor, processor
from shoal.consumer.worker import Worker
from shoal.core import errors
from shoal.core.errors import OffsetExpired, OffsetOutOfRange, ShardClosed, ShoalError
from shoal.core.model import Appended, Position, ProducerStamp, Shard, StreamInfo
from shoal.core.retry import Backoff, FailureRules, Policy
from shoal.core.tasks import Reason
from shoal.producer import BatchFuture, Producer, ProducerOptions, SendFuture
from shoal.wire.batch import Batch
from shoal.wire.record import Record

__all__ = [
    "Appended",
    "Backoff",
    "Batch",
    "BatchFuture",
    "Checkpointer",
    "FailureRules",
    "Hub",
    "OffsetExpired",
    "OffsetOutOfRange",
    "Policy",
    "Position",
    "Processor",
    "Producer",
    "ProducerOptions",
    "ProducerStamp",
    "Reason",
    "Record",
    "SendFuture",
    "Shard",
    "ShardClosed",
    "ShoalError",
    "StreamInfo",
    "Worker",
    "WorkerOptions",
    "connect",
    "errors",
    "processor",
]
__version__ = "0.1.0"
