"""A program for a trace of system calls: appends one record after the other and says on standard error when
each begins and when it is acknowledged.

    python -m tests.scenario.traced sqlite:///file.db 20
"""

import os
import sys

import shoal


def main(url: str, appends: int) -> None:
    with shoal.connect(url) as hub:
        hub.create_stream("orders", shards=2)
        with hub.producer("orders", linger_s=0.0) as producer:
            for number in range(appends):
                # Straight to the descriptor, so that the trace shows it where it happens.
                os.write(2, f"begin {number}\n".encode())
                if number % 2:
                    producer.send(b"paid", key=f"customer-{number}").result(timeout=30)
                else:
                    hub.append("orders", number % 4 // 2, [b"paid"])
                os.write(2, f"acknowledged {number}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
