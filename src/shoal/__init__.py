"""Shoal: a sharded log that keeps every key in order, through splits, merges, crashes and deploys."""

from typing import TYPE_CHECKING

from shoal.connect import Hub, connect
from shoal.core import errors
from shoal.lazily import lazily

if TYPE_CHECKING:
    from shoal.consumer.async_consumer import AsyncConsumer
    from shoal.consumer.async_worker import AsyncCheckpointer, AsyncProcessor, AsyncWorker
    from shoal.consumer.broadcast import BroadcastConsumer
    from shoal.consumer.checkpointer import Checkpointer
    from shoal.consumer.consumer import Consumer, RebalanceListener
    from shoal.consumer.consumer_options import ConsumerOptions
    from shoal.consumer.options import WorkerOptions
    from shoal.consumer.processor import Processor, processor
    from shoal.consumer.shared import ReceivedBatch, SharedConsumer
    from shoal.consumer.worker import Worker
    from shoal.core.errors import OffsetExpired, OffsetOutOfRange, ShardClosed, ShoalError
    from shoal.core.model import Appended, Position, ProducerStamp, Scaling, Shard, StreamInfo
    from shoal.core.polling import StreamShard
    from shoal.core.retry import Backoff, FailureRules, Policy
    from shoal.core.tasks import Reason
    from shoal.outbox import Outbox, OutboxFallback, OutboxRelay, RelayOptions
    from shoal.producer import (
        AsyncProducer,
        BatchFuture,
        Producer,
        ProducerOptions,
        ProducerStats,
        SendFuture,
    )
    from shoal.wire.batch import Batch
    from shoal.wire.record import Record
else:
    __getattr__ = lazily(
        __name__,
        {
            "shoal.consumer.async_consumer": "AsyncConsumer",
            "shoal.consumer.async_worker": "AsyncCheckpointer AsyncProcessor AsyncWorker",
            "shoal.consumer.broadcast": "BroadcastConsumer",
            "shoal.consumer.checkpointer": "Checkpointer",
            "shoal.consumer.consumer": "Consumer RebalanceListener",
            "shoal.consumer.consumer_options": "ConsumerOptions",
            "shoal.consumer.options": "WorkerOptions",
            "shoal.consumer.processor": "Processor processor",
            "shoal.consumer.shared": "ReceivedBatch SharedConsumer",
            "shoal.consumer.worker": "Worker",
            "shoal.core.errors": "OffsetExpired OffsetOutOfRange ShardClosed ShoalError",
            "shoal.core.model": "Appended Position ProducerStamp Scaling Shard StreamInfo",
            "shoal.core.polling": "StreamShard",
            "shoal.core.retry": "Backoff FailureRules Policy",
            "shoal.core.tasks": "Reason",
            "shoal.outbox": "Outbox OutboxFallback OutboxRelay RelayOptions",
            "shoal.producer": "AsyncProducer BatchFuture Producer ProducerOptions ProducerStats SendFuture",
            "shoal.wire.batch": "Batch",
            "shoal.wire.record": "Record",
        },
    )

__all__ = [
    "Appended",
    "AsyncCheckpointer",
    "AsyncConsumer",
    "AsyncProcessor",
    "AsyncProducer",
    "AsyncWorker",
    "Backoff",
    "Batch",
    "BatchFuture",
    "BroadcastConsumer",
    "Checkpointer",
    "Consumer",
    "ConsumerOptions",
    "FailureRules",
    "Hub",
    "OffsetExpired",
    "OffsetOutOfRange",
    "Outbox",
    "OutboxFallback",
    "OutboxRelay",
    "Policy",
    "Position",
    "Processor",
    "Producer",
    "ProducerOptions",
    "ProducerStamp",
    "ProducerStats",
    "Reason",
    "RebalanceListener",
    "ReceivedBatch",
    "Record",
    "RelayOptions",
    "Scaling",
    "SendFuture",
    "Shard",
    "ShardClosed",
    "SharedConsumer",
    "ShoalError",
    "StreamInfo",
    "StreamShard",
    "Worker",
    "WorkerOptions",
    "connect",
    "errors",
    "processor",
]
__version__ = "0.1.0"
