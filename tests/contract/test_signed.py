"""A hub that a server with users keeps: part of the contract again, by a client that signs."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import shoal
from shoal import Hub
from shoal.core.access import AccessKey
from shoal.server.sealing import VARIABLE, Seal, new_key_id, new_master_key, new_secret
from shoal.store.sql.store import SQLStore
from shoal.testing.contract.appending import AppendContract
from shoal.testing.contract.beating import BeatContract
from shoal.testing.contract.checkpointing import CheckpointContract
from shoal.testing.contract.grouping import GroupContract
from shoal.testing.contract.reading import ReadContract
from shoal.testing.contract.sharding import ShardContract
from shoal.testing.contract.sharing import SharingContract
from shoal.testing.contract.streams import StreamContract
from shoal.testing.contract.suite import ConnectAgain
from shoal.testing.serving import connected, served

# The second statement denies nothing that there is, and so lets every number of a group be looked up.
POLICY = """{"Statement": [
    {"Effect": "Allow", "Action": "*", "Resource": "*"},
    {"Effect": "Deny", "Action": "log:*ConsumerGroup*", "Resource": "acs:log:*:*:project/nobody/*"}
]}"""


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('signed') / 'shoal.db'}"


@pytest.fixture(scope="module")
def key(store_url: str) -> Iterator[str]:
    """KEY:SECRET of one who may do everything."""
    master, key, secret = new_master_key(), new_key_id(), new_secret()
    store = SQLStore.open(store_url)
    store.access.create_user("admin", 0)
    store.access.save_policy("all", POLICY, 0, replace=False)
    store.access.attach("admin", "all")
    sealed = Seal(master).seal(key, secret)
    store.access.create_key(AccessKey(id=key, user="admin", is_enabled=True, created_ms=0, sealed=sealed))
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, master)
        patch.setenv("SHOAL_ACCESS_KEY_ID", key)  # For clients of servers that a test starts itself.
        patch.setenv("SHOAL_ACCESS_KEY_SECRET", secret)
        yield f"{key}:{secret}"


@pytest.fixture(scope="module")
def served_url(store_url: str, key: str) -> Iterator[str]:
    with served(store_url) as url:
        yield url.replace("http://", f"http://{key}@")


@pytest.fixture(scope="module")
def served_hub(served_url: str) -> Iterator[Hub]:
    with shoal.connect(served_url) as hub:
        yield hub


class TestSignedHub(
    StreamContract,
    ShardContract,
    AppendContract,
    ReadContract,
    GroupContract,
    BeatContract,
    CheckpointContract,
    SharingContract,
):
    @pytest.fixture
    def hub_url(self, served_url: str) -> str:
        return served_url

    @pytest.fixture
    def hub(self, served_hub: Hub) -> Hub:
        return served_hub

    @pytest.fixture
    def connect_again(self, store_url: str, hub_url: str) -> Iterator[ConnectAgain]:
        with ExitStack() as opened:

            def open_one(**settings: Any) -> Hub:
                return opened.enter_context(connected(store_url, hub_url, **settings))

            yield open_one
