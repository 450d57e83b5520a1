"""A program that runs one server and outlives it, so that no server outlives the tests.

Run as `python -I guard.py '{"command": [...], ...}'`, apart from the package: it must start fast and import
nothing of ours. It starts the command, says the server's process id on standard output, and then obeys
standard input, where each byte is the number of a signal for the server. Not for: deciding when a server is
ready, or what its files are.

Invariant: when the guard has ended, so have the server and every process the server left behind. The guard
ends the server when standard input closes or when its parent is no more, whichever way that went, SIGKILL
included. Should the guard itself be killed, the kernel kills the server (PR_SET_PDEATHSIG). The tests do
not use that signal directly, because it fires when the *thread* that started the server ends, and a test
may well restart a server from a thread.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PARENT_CHECK_SECONDS: Final = 0.5
LAST_SIGNAL_SECONDS: Final = 10.0


def main() -> int:
    """Run the server that the first argument describes; answer its exit status, or 128 + its signal."""
    order = json.loads(sys.argv[1])
    parent = int(order["parent"])
    libc = ctypes.CDLL(None)

    # A server that dies leaves its own children behind (PostgreSQL's backends). As their reaper we become
    # their parent, and can end them before a test looks at what the crash left.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def die_with_guard() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    with open(order["log"], "ab") as log:
        server = subprocess.Popen(
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=order["folder"],
            user=order["user"],
            group=order["group"],
            extra_groups=[] if order["user"] is not None else None,
            # Safe: no thread has been started yet. It runs after the change of user, which would undo it.
            preexec_fn=die_with_guard,  # noqa: PLW1509
        )
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()

    orphaned = threading.Event()
    threading.Thread(target=_obey, args=(server, orphaned), daemon=True).start()
    threading.Thread(target=_watch_parent, args=(parent, orphaned), daemon=True).start()
    threading.Thread(target=_end_orphan, args=(server, orphaned, order["last_signal"]), daemon=True).start()

    status = server.wait()
    _end_what_it_left()
    if orphaned.is_set():
        shutil.rmtree(order["folder"], ignore_errors=True)
    return status if status >= 0 else 128 - status


def _obey(server: "subprocess.Popen[bytes]", orphaned: threading.Event) -> None:
    # Straight from the descriptor: a thread that sits in a buffered read makes the interpreter abort at its
    # end.
    while signals := os.read(0, 64):
        for number in signals:
            server.send_signal(number)
    orphaned.set()


def _watch_parent(parent: int, orphaned: threading.Event) -> None:
    # Standard input alone is not enough: a process that a test forked holds the other end of it too, and
    # may live on after the test run was killed.
    while os.getppid() == parent and not orphaned.wait(PARENT_CHECK_SECONDS):
        pass
    orphaned.set()


def _end_orphan(server: "subprocess.Popen[bytes]", orphaned: threading.Event, last_signal: int) -> None:
    orphaned.wait()
    server.send_signal(last_signal)
    # The main thread waits for the server too; whoever sees its end second gets the same answer.
    try:
        server.wait(LAST_SIGNAL_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


def _end_what_it_left() -> None:
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _children() -> list[int]:
    # Only our own children can be named here, and a child's number is not given to another before we wait
    # for it. A kernel without these lists gives none: PostgreSQL's backends then end by themselves, seeing
    # the postmaster gone.
    pids: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/children") as children:
            pids.extend(int(pid) for pid in children.read().split())
    return pids


if __name__ == "__main__":
    sys.exit(main())
