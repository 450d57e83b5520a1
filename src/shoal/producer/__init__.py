"""The sending side: records gathered by shard, numbered, sent, retried, and moved when a shard is closed."""

from shoal.producer.async_producer import AsyncProducer
from shoal.producer.futures import BatchFuture, SendFuture
from shoal.producer.options import ProducerOptions
from shoal.producer.producer import Producer
from shoal.producer.statistics import ProducerStats

__all__ = ["AsyncProducer", "BatchFuture", "Producer", "ProducerOptions", "ProducerStats", "SendFuture"]
