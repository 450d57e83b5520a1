"""The fixtures that all parts of the contract share. What a test may assume of its hub is said here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

import shoal
from shoal import Hub

ConnectAgain = Callable[..., Hub]
Test = TypeVar("Test", bound=Callable[..., None])


def of_rules(test: Test) -> Test:
    """A test of rules that a store has no part in: who has one hub on several stores may run it on one."""
    test.is_of_rules = True  # type: ignore[attr-defined]
    return test


class HubSuite:
    """A hub, a project of the test's own, and further hubs on the same store."""

    @pytest.fixture
    def hub_url(self) -> str:
        """A URL for `shoal.connect`. The store behind it may be shared by all tests of the suite."""
        raise NotImplementedError("override the fixture hub_url with the URL of the hub to be tested")

    @pytest.fixture
    def hub(self, hub_url: str) -> Iterator[Hub]:
        """The hub to be tested. Nobody closes it but this fixture."""
        with shoal.connect(hub_url) as hub:
            yield hub

    @pytest.fixture
    def connect_again(self, hub_url: str) -> Iterator[ConnectAgain]:
        """Opens one more hub on the same store, with the keywords of `shoal.connect`; closed in the end."""
        with ExitStack() as opened:

            def open_one(**settings: Any) -> Hub:
                return opened.enter_context(shoal.connect(hub_url, **settings))

            yield open_one

    @pytest.fixture
    def project(self) -> str:
        """A project that nobody else uses; a stream in it makes it."""
        return f"project-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def orders(self, project: str) -> str:
        """The full name of a stream that does not exist yet."""
        return f"{project}/orders"
