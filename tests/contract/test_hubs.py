"""The hub in this process, on SQLite, PostgreSQL and MariaDB: each keeps the whole contract."""

import pytest

from shoal import Hub
from shoal.testing.contract import HubContract


class TestHub(HubContract):
    @pytest.fixture
    def hub_url(self, shared_url: str) -> str:
        return shared_url

    @pytest.fixture
    def hub(self, shared_hub: Hub) -> Hub:
        return shared_hub
