"""What every hub must do, whatever keeps its log: one suite, run on each implementation.

Whoever builds a hub subclasses `HubContract` in a test file and overrides the fixture `hub_url`:

    class TestMyHub(HubContract):
        @pytest.fixture
        def hub_url(self) -> str:
            return "http://127.0.0.1:7400"

The suite speaks only through `shoal.connect` and the hub's public calls. Each test works in a project of its
own, so that all of them may share one store, even one that holds other streams. Not for: crashes, full disks
and servers that go away (`tests/crash`), or how fast anything is (`bench`).
"""

from shoal.testing.contract.appending import AppendContract
from shoal.testing.contract.beating import BeatContract
from shoal.testing.contract.broadcasting import BroadcastContract
from shoal.testing.contract.checkpointing import CheckpointContract
from shoal.testing.contract.delaying import DelayContract
from shoal.testing.contract.following import FollowingContract
from shoal.testing.contract.grouping import GroupContract
from shoal.testing.contract.idempotence import IdempotenceContract
from shoal.testing.contract.naming import NamingContract
from shoal.testing.contract.ordering import OrderingContract
from shoal.testing.contract.owning import OwnershipContract
from shoal.testing.contract.placing import PlacingContract
from shoal.testing.contract.polling import ConsumerContract
from shoal.testing.contract.producing import ProducerContract
from shoal.testing.contract.reading import ReadContract
from shoal.testing.contract.receiving import ReceivingContract
from shoal.testing.contract.refusing import RefusalContract
from shoal.testing.contract.retaining import RetentionContract
from shoal.testing.contract.retrying import RetryContract
from shoal.testing.contract.routing import RoutingContract
from shoal.testing.contract.scaling import ScalingContract
from shoal.testing.contract.sending import SendContract
from shoal.testing.contract.sharding import ShardContract
from shoal.testing.contract.sharing import SharingContract
from shoal.testing.contract.streams import StreamContract
from shoal.testing.contract.suite import HubSuite
from shoal.testing.contract.transacting import TransactionContract
from shoal.testing.contract.transforming import TransformContract
from shoal.testing.contract.working import WorkerContract

__all__ = ["HubContract", "HubSuite"]


class HubContract(
    StreamContract,
    ShardContract,
    AppendContract,
    IdempotenceContract,
    NamingContract,
    TransactionContract,
    TransformContract,
    DelayContract,
    PlacingContract,
    ReadContract,
    RetentionContract,
    RoutingContract,
    ScalingContract,
    ProducerContract,
    OrderingContract,
    SendContract,
    SharingContract,
    RefusalContract,
    GroupContract,
    OwnershipContract,
    BeatContract,
    CheckpointContract,
    WorkerContract,
    RetryContract,
    ConsumerContract,
    FollowingContract,
    ReceivingContract,
    BroadcastContract,
):
    """Every test of the contract. Override `hub_url`, or also `hub` to share one hub among the tests."""
