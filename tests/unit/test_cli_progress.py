"""A progress bar on long input, and only on a terminal."""

import io
from pathlib import Path

from rich.console import Console

from shoal.cli.progress import Progress


def console(*, is_terminal: bool) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=is_terminal, width=100), written


def test_a_file_shows_how_much_of_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * 4_000_000)
    screen, written = console(is_terminal=True)
    with path.open("rb") as source, Progress(source, console=screen, after_s=0.0) as progress:
        progress.advance(2_000_000, 1234)
    assert "2.0/4.0 MB" in written.getvalue()
    assert "1,234 records" in written.getvalue()


def test_a_source_without_an_end_shows_a_counter() -> None:
    screen, written = console(is_terminal=True)
    with Progress(io.BytesIO(b""), console=screen, after_s=0.0) as progress:
        progress.advance(2_000_000, 1234)
    assert "1,234 records" in written.getvalue()


def test_short_input_and_a_pipe_show_nothing() -> None:
    for is_terminal, after_s in ((True, 60.0), (False, 0.0)):
        screen, written = console(is_terminal=is_terminal)
        with Progress(io.BytesIO(b""), console=screen, after_s=after_s) as progress:
            progress.advance(2_000_000, 1234)
        assert written.getvalue() == ""
