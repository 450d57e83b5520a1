"""What a contract over HTTP needs: one hub through one server, and more of both where a test asks for it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from shoal import Hub
from shoal.testing.contract.suite import ConnectAgain
from shoal.testing.serving import connected


class ServedHub:
    """Stands before the suites in a test's bases; its module has `store_url`, `served_url`, `served_hub`."""

    @pytest.fixture
    def hub_url(self, served_url: str) -> str:
        return served_url

    @pytest.fixture
    def hub(self, served_hub: Hub) -> Hub:
        return served_hub

    @pytest.fixture
    def connect_again(self, store_url: str, hub_url: str) -> Iterator[ConnectAgain]:
        """What a client cannot have, a server of its own has: several of them serve one store."""
        with ExitStack() as opened:

            def open_one(**settings: Any) -> Hub:
                return opened.enter_context(connected(store_url, hub_url, **settings))

            yield open_one
