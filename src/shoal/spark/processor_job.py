"""What a query with a processor is to do, in a form that goes to every process of it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyspark import cloudpickle

from shoal.consumer.options import WorkerOptions
from shoal.consumer.processor import Factory
from shoal.core.errors import InvalidInput
from shoal.core.retry import FailureRules
from shoal.spark.hubs import HubAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorJob:
    """Of one query."""

    hub: HubAddress
    stream: str
    group: str
    rules: FailureRules
    options: WorkerOptions
    batch_s: float
    """After so long a task hands back what it has not come to, or cannot get past."""
    factory: bytes
    """Pickled: the driver's processes need not be able to import it."""

    def to_text(self) -> str:
        """As an option of Spark's."""
        return base64.b64encode(_dumps(self)).decode()


def job_of(text: str) -> ProcessorJob:
    """What `to_text` wrote."""
    job = cloudpickle.loads(base64.b64decode(text))
    assert isinstance(job, ProcessorJob)
    return job


def pickled(factory: Factory) -> bytes:
    """A factory on its way to executors: by its name, or by value if it is the main program's own."""
    try:
        return _dumps(factory)
    except Exception as error:  # Around user code: what cannot be pickled may raise anything.
        raise InvalidInput(
            "processor",
            factory,
            f"it cannot be sent to executors ({error}); give a class, a function, or a partial of one, and "
            "open connections in initialize",
        ) from error


@lru_cache(maxsize=16)
def factory_in(data: bytes) -> Factory:
    """The factory, once in a process: its module's own variables are kept from task to task."""
    made: Factory = cloudpickle.loads(data)
    return made


_dumps: Callable[[Any], bytes] = cloudpickle.dumps
