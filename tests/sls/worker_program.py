"""A consumer of Aliyun's own library: worker_program.py GROUP NAME [WORD ...].

Writes `shard nanoseconds text` for each log that it is given. A line on its standard input stops it in order.
Words: `in_order`; `end`: begins at the end; `drain`: ends by itself at what is the end when it begins;
`raise=TEXT`: fails at a batch that has this text; `again=TEXT`: goes back, once, at a batch that has it;
`beat=SECONDS`: between heartbeats; `through=URL,URL`: turns from one server to the other all the time.
"""
# mypy: ignore-errors
# Its interpreter is another, in which our types are not known, nor its packages in ours.

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from itertools import cycle

from aliyun.log.consumer import ConsumerProcessorBase, ConsumerWorker, CursorPosition, LogHubConfig

words = dict((word + "=").split("=")[:2] for word in sys.argv[3:])


class Printing(ConsumerProcessorBase):
    def process(self, log_groups, check_point_tracker):
        lines, texts = [], set()
        for group in log_groups.LogGroups:
            for log in group.Logs:
                text = log.Contents[0].Value
                texts.add(text)
                lines.append(f"{self.shard_id} {time.monotonic_ns()} {text}\n")
        if words.get("raise") in texts:
            sys.stdout.write("raised\n")
            raise ValueError("as it was told to")
        # In one piece: shards are processed by several threads.
        sys.stdout.write("".join(lines))
        if words.get("again") in texts:
            del words["again"]
            return check_point_tracker.get_check_point()
        check_point_tracker.save_check_point(True)
        return None


def turn(urls):
    """As a balancer does, which leaves out a server that is gone."""
    for url in cycle(urls):
        host, port = url.removeprefix("http://").split(":")
        with suppress(OSError), socket.create_connection((host, int(port)), 1):
            os.environ["http_proxy"] = url  # It is looked up for each request.
        time.sleep(0.03)


if __name__ == "__main__":
    if "through" in words:
        threading.Thread(target=turn, args=(words["through"].split(","),), daemon=True).start()
    worker = ConsumerWorker(
        Printing,
        LogHubConfig(
            "loghub.test",
            "id",
            "secret",
            "proj",
            "store",
            sys.argv[1],
            sys.argv[2],
            cursor_position=CursorPosition.END_CURSOR if "end" in words else CursorPosition.BEGIN_CURSOR,
            cursor_end_time="end" if "drain" in words else None,
            heartbeat_interval=int(words.get("beat", 1)),
            data_fetch_interval=0.2,
            in_order="in_order" in words,
        ),
    )
    worker.start()
    sys.stdout.write("started\n")
    if "drain" not in words:
        sys.stdin.readline()
        worker.shutdown()
    worker.join()
    sys.stdout.write("stopped\n")
