"""The workers of the contract: in both kinds of group, stopped in the end whatever a test left of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import shoal
from shoal import Hub, Worker
from shoal.testing.contract.suite import HubSuite

GROUP = "billing"

Make = Callable[..., Worker]


class WorkerSuite(HubSuite):
    """A maker of workers."""

    @pytest.fixture(params=["coordinated", "leased"])
    def coordination(self, request: pytest.FixtureRequest) -> str:
        """Both kinds of group keep the same promises."""
        found: str = request.param
        return found

    @pytest.fixture
    def work(self, hub: Hub, orders: str, coordination: str) -> Any:
        """Makes a worker of the test's group; whatever still runs in the end is stopped."""
        with ExitStack() as made:

            def make(processor: object, name: str = "anna", **options: Any) -> Worker:
                options = {"stream": orders, "group": GROUP, "timeout": 5.0, "hub": hub, **options}
                where = options.pop("hub"), options.pop("stream"), options.pop("group")
                worker = Worker(*where, processor, name=name, coordination=coordination, **options)
                made.callback(_stop, worker)
                return worker

            yield make


def record_of(value: bytes, key: bytes) -> shoal.Record:
    """A record with a header of its own."""
    return shoal.Record(0, time.time_ns() // 1_000_000, key, value, {"own": b"kept"})


def _stop(worker: Worker) -> None:
    """Whatever a test left of it."""
    if worker.is_running:
        worker.stop(timeout=2.0)
