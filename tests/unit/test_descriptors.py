"""Room for a server's connections among the files that a process may have open."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from shoal.server.descriptors import room_for
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(room_for(wanted), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "told"),
    [
        (200, 2000, 1000, [1000, 1500, 2000]),
        (200, 1000, 1000, [500, 1000, 1000]),
        (1800, 2000, 1000, [1000, 1800, 2000]),
        (100, 100, 1000, [1, 100, 100]),
    ],
)
def test_as_many_files_may_be_open_as_connections_need_if_the_system_lets_them(
    soft: int, hard: int, wanted: int, told: list[int]
) -> None:
    """In a process of its own: a limit that was lowered cannot be raised again."""
    arguments = map(str, (soft, hard, wanted))
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert [int(word) for word in made.stdout.split()] == told
