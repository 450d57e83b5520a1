"""A disk that fills up: the errors are typed and retriable, and with room again the producer goes on."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import StoreFull
from shoal.testing.history import Ack, Mark, find_faults, read_history

DISK_BYTES = 6_300_000
FILLER_BYTES = 3_000_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as error:
        # The words by which tests/conftest.py collects what a machine lacks, for the last line of the run.
        lack = f"missing package: mount, or the right to use it: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(lack, pytrace=False)
        pytest.skip(lack)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


@pytest.mark.timeout(60)
def test_a_full_disk_is_a_retriable_error_and_what_was_acknowledged_stays_readable(small_disk: Path) -> None:
    with shoal.connect(f"sqlite:///{small_disk / 'shoal.db'}") as hub:
        hub.create_stream("orders", shards=1)
        acks = _append_until_full(hub, "first")

        with pytest.raises(StoreFull) as caught:
            hub.append("orders", 0, [os.urandom(200_000)])
        assert caught.value.retriable
        assert "free some room" in str(caught.value)
        with pytest.raises(StoreFull):
            hub.create_stream("another")
        _assert_all_there(hub, acks)

    # Also for a hub that is opened while the disk is still full.
    with shoal.connect(f"sqlite:///{small_disk / 'shoal.db'}") as hub:
        _assert_all_there(hub, acks)


@pytest.mark.timeout(60)
def test_a_producer_goes_on_by_itself_when_there_is_room_again(small_disk: Path) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(os.urandom(FILLER_BYTES))
    with shoal.connect(f"sqlite:///{small_disk / 'shoal.db'}") as hub:
        hub.create_stream("orders", shards=1)
        with hub.producer("orders", linger_s=0.0, retry_most_s=0.1) as producer:
            # Producers with one attempt find out when the disk is full; this one only waits.
            acks = [_acknowledged(producer, "patient", number) for number in range(10)]
            acks += _append_until_full(hub, "first")
            waiting = [
                producer.send(Mark.single("patient", number).value(), key=b"k", headers=_weight())
                for number in range(10, 20)
            ]
            with pytest.raises(TimeoutError, match="still being tried"):
                waiting[-1].result(timeout=1.0)
            _assert_all_there(hub, acks, is_complete=False)

            filler.unlink()
            places = [future.result(timeout=20) for future in waiting]
            acks += [Ack("patient", b"k", 10 + i, *at) for i, at in enumerate(places)]
            acks += [_acknowledged(producer, "patient", number) for number in range(20, 30)]
        _assert_all_there(hub, acks)


def _append_until_full(hub: shoal.Hub, writer: str) -> list[Ack]:
    """Append records that do not compress until the disk is full; give those that were acknowledged.

    First large ones, then small ones, so that in the end not even a small one fits.
    """
    acks: list[Ack] = []
    for weight in (200_000, 10_000, 100):
        for _ in range(1000):
            record = shoal.Record(
                0, 1_700_000_000_000, b"k", Mark.single(writer, len(acks)).value(), _weight(weight)
            )
            try:
                at = hub.append("orders", 0, [record])
            except StoreFull:
                break
            acks.append(Ack(writer, b"k", len(acks), at.shard, at.first_offset))
        else:
            pytest.fail(f"{len(acks)} records were stored and the disk is not full")
    assert len(acks) > 5
    return acks


def _weight(size: int = 100_000) -> dict[str, bytes]:
    return {"weight": os.urandom(size)}


def _acknowledged(producer: shoal.Producer, writer: str, number: int) -> Ack:
    at = producer.send(Mark.single(writer, number).value(), key=b"k").result(timeout=20)
    return Ack(writer, b"k", number, at.shard, at.offset)


def _assert_all_there(hub: shoal.Hub, acks: list[Ack], *, is_complete: bool = True) -> None:
    """All that was acknowledged, once; and, when nothing is under way any more, nothing else."""
    shards, stored = read_history(hub, "orders")
    faults = find_faults(shards, stored, acks)
    assert not faults, "\n".join(faults)
    assert not is_complete or len(stored) == len(acks)
