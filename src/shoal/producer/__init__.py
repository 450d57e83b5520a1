"""The sending side: records gathered by shard, numbered, sent, retried, and moved when a shard is closed."""

from shoal.producer.futures import BatchFuture, SendFuture
from shoal.producer.options import ProducerOptions
from shoal.producer.producer import Producer

__all__ = ["BatchFuture", "Producer", "ProducerOptions", "SendFuture"]
