"""A producer that sends its numbers from the first on, whenever it is started.

With a name it leaves out what an earlier life has stored; without one (a name that begins with `~`) it is not
meant to be started again.

It ends with 0 when all of them are stored, with 3 when another has its name by now, and with 4 when the store
was away before it had begun.
"""

import sys
import time

import shoal
from shoal.core.errors import ProducerFenced, StoreError

KEYS = 31
FENCED = 3
AWAY = 4


def work(url: str, name: str, count: int) -> int:
    is_named = not name.startswith("~")
    with (
        shoal.connect(url) as hub,
        hub.producer(
            "orders",
            name=name if is_named else None,
            buffer_bytes_max=4_000_000,  # Calls that are done before the next server is killed.
            batch_bytes=500_000,
            send_timeout_s=600.0,
            delivery_timeout_s=300.0,
            close_timeout_s=300.0,
        ) as producer,
    ):
        for number in range(count):
            given = number if is_named else None
            producer.send(f"{name}:{number}", key=f"{name}-{number % KEYS}", number=given)
            if number % 50 == 0 and number > producer.highest_number:
                time.sleep(0.002)  # Or it would have sent everything before anyone can disturb it.
    return 0


if __name__ == "__main__":
    try:
        sys.exit(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    except ProducerFenced:
        sys.exit(FENCED)
    except StoreError:
        sys.exit(AWAY)
