"""SQLite files that are not ours, not writable, or damaged: a clear error, and not a byte changed.

What is damaged on purpose is a copy of a good file with a few thousand records in it.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import shoal
from shoal.core.errors import InvalidUrl, NotAShoalStore, StoreCorrupt, StoreError
from shoal.testing.reading import read_shard

PAGE = 4096


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A file with a stream of 40 batches, all of it in the main file."""
    path = tmp_path / "good.db"
    with shoal.connect(url_of(path)) as hub:
        hub.create_stream("orders", shards=1, compression="none")
        for i in range(40):
            hub.append("orders", 0, [b"%06d" % (i * 50 + j) + b"." * 100 for j in range(50)])
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.mark.parametrize(
    "content",
    [b"hello, I am a text file\n", b"\x00" * 5000, b"SQLite format 2\x00" + b"x" * 5000, os.urandom(20_000)],
    ids=["text", "zeros", "other-magic", "random"],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file.db"
    path.write_bytes(content)
    with pytest.raises(NotAShoalStore, match=r"file\.db: .*not a SQLite database; point the hub at a new"):
        shoal.connect(url_of(path))
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.db"]


@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_another_applications_database_is_refused_and_left_alone(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "notes.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.execute("CREATE TABLE notes (text)")
    connection.execute("INSERT INTO notes VALUES ('mine')")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotAShoalStore, match="belongs to another application"):
        shoal.connect(url_of(path))
    assert path.read_bytes() == before


def test_a_database_that_bears_another_applications_mark_is_refused_even_if_empty(tmp_path: Path) -> None:
    path = tmp_path / "marked.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 12345")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("DROP TABLE t")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(NotAShoalStore, match="another application"):
        shoal.connect(url_of(path))
    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with shoal.connect(url_of(path)) as hub:
        hub.create_stream("orders")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAShoalStore, match="it is a folder"):
        shoal.connect(url_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_made(tmp_path: Path) -> None:
    with shoal.connect(url_of(tmp_path / "a" / "b" / "shoal.db")) as hub:
        hub.create_stream("orders")
    assert (tmp_path / "a" / "b" / "shoal.db").exists()


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="file"):
        shoal.connect(url_of(tmp_path / "file" / "shoal.db"))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://host/x.db"])
def test_a_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidUrl, match="sqlite:///"):
        shoal.connect(url)


# Root may write anywhere, so a refusal can only be seen as somebody else. It becomes nobody after a first
# hub has been opened: nobody may not even be allowed to read this Python's own files.
_AS_NOBODY = """
    import os, sys, shoal
    with shoal.connect(sys.argv[2]) as hub:
        hub.list_streams()
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        with shoal.connect(sys.argv[1]) as hub:
            print("opened", len(hub.list_streams()))
    except shoal.ShoalError as error:
        print(type(error).__name__, error)
"""


def run_as_nobody(path: Path, warm: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_AS_NOBODY), url_of(path), url_of(warm)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that everybody may enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="shoal-public-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("what", ["file", "folder", "new"])
def test_what_may_not_be_written_is_refused_by_name(good: Path, public_folder: Path, what: str) -> None:
    path = public_folder / "shoal.db"
    if what != "new":
        shutil.copy(good, path)
        path.chmod(0o444 if what == "file" else 0o666)
    if what == "file":
        public_folder.chmod(0o777)
    elif os.geteuid() != 0:
        public_folder.chmod(0o555)
    before = path.read_bytes() if path.exists() else None
    answer = run_as_nobody(path, good)
    public_folder.chmod(0o755)
    assert answer.startswith("StoreReadOnly")
    assert "permissions" in answer
    assert str(path) in answer
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_file_that_others_may_write_is_opened_by_them(good: Path, public_folder: Path) -> None:
    # The other side of the test above: it is the permissions that are refused, not the user.
    path = public_folder / "shoal.db"
    shutil.copy(good, path)
    path.chmod(0o666)
    public_folder.chmod(0o777)
    assert run_as_nobody(path, good) == "opened 1\n"


def test_damaged_pages_are_a_typed_error_and_never_wrong_records(good: Path) -> None:
    content = good.read_bytes()
    pages = len(content) // PAGE
    assert pages > 20
    outcomes: dict[str, int] = {}
    for page in range(1, pages, max(1, pages // 25)):
        damaged = bytearray(content)
        damaged[page * PAGE : (page + 1) * PAGE] = bytes([0xFF]) * PAGE
        path = good.with_name(f"damaged-{page}.db")
        path.write_bytes(damaged)
        outcome = _read_everything(path)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.get("corrupt", 0) >= 5, outcomes
    assert set(outcomes) <= {"corrupt", "whole"}, outcomes


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_file_that_was_cut_off_is_a_typed_error(good: Path, part: float) -> None:
    content = good.read_bytes()
    path = good.with_name("short.db")
    path.write_bytes(content[: int(len(content) * part) // PAGE * PAGE])
    assert _read_everything(path) == "corrupt"


def test_a_batch_that_is_missing_is_a_typed_error_and_not_a_gap(good: Path) -> None:
    with closing(sqlite3.connect(good)) as raw, raw:
        bases = [row[0] for row in raw.execute("SELECT base_offset FROM shoal_batch ORDER BY base_offset")]
        assert len(bases) > 2
        raw.execute("DELETE FROM shoal_batch WHERE base_offset = ?", (bases[1],))
    with shoal.connect(url_of(good)) as hub, pytest.raises(StoreCorrupt, match="no batch that holds offset"):
        hub.read("orders", 0, bases[1])
    assert _read_everything(good) == "corrupt"


def _read_everything(path: Path) -> str:
    try:
        with shoal.connect(url_of(path)) as hub:
            records = read_shard(hub, "orders", 0)
            hub.stats("orders")
    except StoreCorrupt:
        return "corrupt"
    except shoal.ShoalError as error:
        return f"{type(error).__name__}: {error}"
    wanted = [b"%06d" % i + b"." * 100 for i in range(2000)]
    return "whole" if [record.value for record in records] == wanted else "wrong records"


def test_to_forget_records_does_not_write_them_over(tmp_path: Path) -> None:
    path = tmp_path / "shoal.db"
    with shoal.connect(url_of(path)) as hub:
        hub.create_stream("orders", shards=1, compression="none", retention_bytes=1)
        for _ in range(8):
            hub.append("orders", 0, [b"x" * 1_000_000])
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        assert [cut.first_offset for cut in hub.enforce_retention("orders")] == [7]
        assert Path(f"{path}-wal").stat().st_size < 1_000_000
