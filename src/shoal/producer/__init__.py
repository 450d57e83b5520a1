"""The sending side: records gathered by shard, numbered, sent, retried, and moved when a shard is closed."""

from typing import TYPE_CHECKING

from shoal.lazily import lazily

if TYPE_CHECKING:
    from shoal.producer.async_producer import AsyncProducer
    from shoal.producer.futures import BatchFuture, SendFuture
    from shoal.producer.options import ProducerOptions
    from shoal.producer.producer import Producer
    from shoal.producer.statistics import ProducerStats
else:
    __getattr__ = lazily(
        __name__,
        {
            "shoal.producer.async_producer": "AsyncProducer",
            "shoal.producer.futures": "BatchFuture SendFuture",
            "shoal.producer.options": "ProducerOptions",
            "shoal.producer.producer": "Producer",
            "shoal.producer.statistics": "ProducerStats",
        },
    )

__all__ = ["AsyncProducer", "BatchFuture", "Producer", "ProducerOptions", "ProducerStats", "SendFuture"]
