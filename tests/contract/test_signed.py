"""A hub that a server with users keeps: part of the contract again, by a client that signs."""

from collections.abc import Iterator

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
from shoal.testing.serving import served
from tests.contract.served_hub import ServedHub

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
    ServedHub,
    StreamContract,
    ShardContract,
    AppendContract,
    ReadContract,
    GroupContract,
    BeatContract,
    CheckpointContract,
    SharingContract,
):
    """By a client that signs."""
