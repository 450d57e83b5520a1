"""A process that forks while its hub is busy. Its children use the hub that they inherited."""

import faulthandler
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

import shoal
from shoal.consumer import Membership
from shoal.core.errors import NotOwner, ProducerClosed, UnknownConsumer
from shoal.core.holding import Lease
from shoal.core.model import ShardId
from shoal.testing.history import Ack, Mark
from shoal.testing.members import holds
from shoal.testing.workers import Report

STREAM = "orders"
CHILD_S = 20
KEY = b"k"


def fork_while_busy(report: Report, url: str, forks: int) -> None:
    """Fork `forks` times from each of two threads, while others append and wait for records."""
    hub = shoal.connect(url)
    end = threading.Event()
    producer = hub.producer(STREAM, linger_s=0.0)
    sender = threading.Thread(target=_send_until, args=(report, producer, end))
    reader = threading.Thread(target=_read_until, args=(report, hub, end))
    for thread in (sender, reader):
        thread.start()
    forkers = [
        threading.Thread(target=_fork, args=(report, hub, producer, f"fork-{name}", forks))
        for name in range(2)
    ]
    for thread in forkers:
        thread.start()
    for thread in forkers:
        thread.join()
    _start_with_multiprocessing(report, hub, producer)
    end.set()
    for thread in (sender, reader):
        thread.join()
    producer.close()
    hub.close()


def fork_with_a_member(report: Report, url: str, coordination: str) -> None:
    """A consumer's process forks. The child tries everything that only its parent may do."""
    hub = shoal.connect(url)
    hub.create_group(STREAM, coordination, coordination=coordination, timeout=10)
    member = hub.join_group(STREAM, coordination, "anna")
    holds(member, [0])
    before = dict(member.leases)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(partial(_act_as, member, before), writing)
    os.close(writing)
    with os.fdopen(reading) as told:
        error = told.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, error
    assert {shard: lease.epoch for shard, lease in member.leases.items()} == {
        shard: lease.epoch for shard, lease in before.items()
    }
    member.checkpoint({0: 1})
    assert member.error is None
    (info,) = hub.describe_group(STREAM, coordination).members
    assert (info.incarnation, str(info.status)) == (member.incarnation, "active")
    report([shard.owner for shard in hub.describe_group(STREAM, coordination).shards])
    member.leave()
    hub.close()


def _act_as(member: Membership, before: Mapping[ShardId, Lease]) -> None:
    assert member.leases == {}
    assert member.incarnation == ""
    assert isinstance(member.error, UnknownConsumer)
    assert not any(member.may_act(lease.shard, lease.epoch) for lease in before.values())
    calls: list[Callable[[], object]] = [
        lambda: member.checkpoint({0: 1}),
        lambda: member.release({0: 1}),
        lambda: member.fence(0),
        member.retire,
    ]
    for call in calls:
        try:
            call()
        except (NotOwner, UnknownConsumer):
            pass
        else:
            raise AssertionError("the parent's membership was used in the child")
    member.wait(0, 0)
    member.leave({0: 1})


def _send_until(report: Report, producer: shoal.Producer, end: threading.Event) -> None:
    for number in count():
        at = producer.send(Mark.single("parent", number).value(), key=KEY).result(timeout=CHILD_S)
        report([Ack("parent", KEY, number, *at)])
        if end.is_set():
            return


def _read_until(report: Report, hub: shoal.Hub, end: threading.Event) -> None:
    offset = 0
    while not end.is_set():
        offset = hub.read(STREAM, 0, offset, wait=0.2).next_offset
    assert offset > 0, "the waiting reader of the parent never got a record"


def _fork(report: Report, hub: shoal.Hub, producer: shoal.Producer, name: str, forks: int) -> None:
    for number in range(forks):
        writer = f"{name}-{number}"
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_child(partial(_use, hub, producer, writer), writing)
        os.close(writing)
        with os.fdopen(reading) as told:
            error = told.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"{writer} ended with {status}: {error}"
        report([Ack(writer, KEY, i) for i in range(3)])


def _be_child(work: Callable[[], None], writing: int) -> None:
    # A child that hangs says where, and is killed.
    faulthandler.register(signal.SIGALRM, file=writing, chain=True)
    signal.alarm(CHILD_S)
    try:
        work()
    except BaseException:  # noqa: BLE001 - a process's top; the parent raises it
        os.write(writing, traceback.format_exc().encode())
        os._exit(1)
    os._exit(0)


def _use(hub: shoal.Hub, inherited: shoal.Producer, writer: str) -> None:
    """What a child may do with what it inherited: everything but use its parent's producer."""
    for call in (lambda: inherited.send(b"x"), inherited.flush):
        try:
            call()
        except ProducerClosed:
            pass
        else:
            raise AssertionError("the parent's producer was used in the child")
    inherited.close()

    end = hub.next_offset(STREAM, 0)
    assert len(hub.read(STREAM, 0, 0)) > 0 or end == 0
    with hub.producer(STREAM, linger_s=0.0) as producer:
        for number in range(3):
            producer.send(Mark.single(writer, number).value(), key=KEY).result(timeout=CHILD_S)
    # The parent goes on appending, so a wait at the end is answered.
    assert len(hub.read(STREAM, 0, hub.next_offset(STREAM, 0), wait=CHILD_S)) > 0
    hub.close()


def _start_with_multiprocessing(report: Report, hub: shoal.Hub, producer: shoal.Producer) -> None:
    # A process that multiprocessing started as a daemon may not start others; that it is one here is an
    # accident of how the test runs it.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    context = multiprocessing.get_context("fork")
    for number in range(2):
        child = context.Process(target=_use, args=(hub, producer, f"process-{number}"))
        child.start()
        child.join(CHILD_S)
        assert child.exitcode == 0, f"the process ended with {child.exitcode}"
        report([Ack(f"process-{number}", KEY, i) for i in range(3)])
