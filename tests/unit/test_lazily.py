"""Names that are imported when they are first asked for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import shoal
from shoal.forks import importing
from shoal.testing.reading import until


@pytest.mark.parametrize("package", ["shoal", "shoal.consumer", "shoal.producer", "shoal.outbox"])
def test_every_name_is_there_and_is_found_once(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is getattr(module, name)
        assert name in vars(module), "it is asked for at its home each time"


def test_a_name_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(AttributeError, match=r"module 'shoal' has no attribute 'Nothing'"):
        importlib.import_module("shoal").Nothing  # noqa: B018 - asking for it is the test


def test_who_plans_a_query_loads_neither_producers_nor_consumers_nor_pandas(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hub.db"
    with shoal.connect(url) as hub:
        hub.create_stream("orders")
    program = (
        "import sys, shoal\n"
        "early = {'sqlalchemy', 'shoal.remote.hub'} & set(sys.modules)\n"
        "from shoal.spark.hubs import HubAddress, hub_at\n"
        f"hub_at(HubAddress('{url}')).describe_stream('orders')\n"
        "late = {'pandas', 'shoal.consumer.worker', 'shoal.producer.producer', 'shoal.outbox.relay'}\n"
        "print(sorted(early), sorted(late & set(sys.modules)))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "[] []\n"


def test_a_fork_waits_for_an_import_of_another_thread() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

    def imports() -> None:
        with importing:
            begun.set()
            goes_on.wait(20)
            ended.set()

    thread = threading.Thread(target=imports)
    thread.start()
    begun.wait(20)
    threading.Timer(0.2, goes_on.set).start()
    child = os.fork()
    if child == 0:
        # In the child nobody has the lock; and what the fork waited for is over.
        os._exit(0 if ended.is_set() and importing.acquire(blocking=False) else 1)
    _, status = os.waitpid(child, 0)
    thread.join(20)
    assert os.waitstatus_to_exitcode(status) == 0
    until(lambda: importing.acquire(blocking=False))
    importing.release()
