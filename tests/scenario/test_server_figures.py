"""What a server counts of what is appended: what is stored through it, once."""

import random
from collections.abc import Iterator, Sequence

import pytest

import shoal
from shoal import Appended, Hub
from shoal.core.delaying import DELAYED, Delay
from shoal.core.errors import OutOfSequence, ShoalError
from shoal.core.limits import TIMESTAMP_MS_MAX
from shoal.core.model import ShardId, StreamInfo
from shoal.ports import ProducerLife, Submission
from shoal.server.native.special import PARSED_HERE
from shoal.testing.serving import served
from shoal.wire.fitting import fit_records
from shoal.wire.layout import Layout
from tests.scenario.asking import figure

SMALL = [b"a", b"b", b"c"]
LARGE = [random.Random(7).randbytes(PARSED_HERE)] * 3


@pytest.fixture
def url(sqlite_url: str) -> Iterator[str]:
    with served(sqlite_url) as url:
        yield url


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    with shoal.connect(url) as hub:
        yield hub


@pytest.fixture
def orders(hub: Hub) -> StreamInfo:
    return hub.create_stream("orders", shards=2)


@pytest.mark.parametrize("values", [SMALL, LARGE], ids=["small", "large"])
def test_a_batch_that_is_repeated_is_counted_once(
    url: str, hub: Hub, orders: StreamInfo, values: Sequence[bytes]
) -> None:
    numbered = _numbered(values)
    first = hub.service.append(orders, [numbered])
    assert _counted(url) == (1, 3)
    size = figure(url, "appended_bytes_total")
    assert hub.service.append(orders, [numbered]) == first == [Appended(0, 0, 3)]
    assert _counted(url) == (1, 3)
    assert figure(url, "appended_bytes_total") == size > 0
    hub.service.append(orders, [numbered, _numbered(values, sequence=1)])
    assert _counted(url) == (2, 6)


def test_a_repeat_beside_a_batch_that_is_refused_is_answered_as_the_first_time_and_not_counted(
    url: str, hub: Hub, orders: StreamInfo
) -> None:
    (first,) = hub.service.append(orders, [_numbered(SMALL)])
    repeat, refused = hub.service.append(orders, [_numbered(SMALL), _numbered(SMALL, sequence=9)])
    assert repeat == first
    assert isinstance(refused, OutOfSequence)
    assert _counted(url) == (1, 3)


def test_a_transaction_that_is_repeated_is_counted_once(url: str, hub: Hub, orders: StreamInfo) -> None:
    epoch = hub.service.open_producer(orders, "till").epoch
    life = ProducerLife(stream_id=orders.id, producer="till", epoch=epoch)
    appends = [(orders, _numbered(SMALL, epoch=epoch, shard=shard)) for shard in (0, 1)]
    first = hub.service.transact(life, appends)
    assert hub.service.transact(life, appends) == first == [Appended(0, 0, 3), Appended(1, 0, 3)]
    assert _counted(url) == (2, 6)


def test_records_that_come_later_are_counted_once_when_they_are_taken(
    url: str, hub: Hub, orders: StreamInfo
) -> None:
    for _ in range(2):
        (answer,) = hub.service.append(orders, [_numbered(SMALL, due_ms=TIMESTAMP_MS_MAX)])
        assert not isinstance(answer, ShoalError)
        assert hub.count_delayed("orders") == 3
        assert _counted(url) == (1, 3)


def test_an_embedded_hub_answers_a_repeat_as_the_first_time(sqlite_url: str) -> None:
    with shoal.connect(sqlite_url) as hub:
        stream = hub.create_stream("orders", shards=1)
        life = ProducerLife(stream_id=stream.id, producer="~till", epoch=0)
        for _ in range(2):
            assert repr(hub.service.append(stream, [_numbered(SMALL)])) == repr([Appended(0, 0, 3)])
            appends = [(stream, _numbered(SMALL, sequence=1))]
            assert repr(hub.service.transact(life, appends)) == repr([Appended(0, 3, 6)])


def _numbered(
    values: Sequence[bytes], *, shard: int = 0, epoch: int = 0, sequence: int = 0, due_ms: int | None = None
) -> Submission:
    count = len(values)
    return Submission(
        shard=ShardId(shard) if due_ms is None else DELAYED,
        batch=fit_records(Layout(None), values, [None] * count, [0] * count, None),
        producer="till" if epoch else "~till",
        epoch=epoch,
        sequence=sequence,
        delays=None if due_ms is None else [Delay(due_ms, None)] * count,
    )


def _counted(url: str) -> tuple[float, float]:
    """Batches and records."""
    return figure(url, "appended_batches_total"), figure(url, "appended_records_total")
