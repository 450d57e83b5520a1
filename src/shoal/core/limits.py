"""Every bound in Shoal, each with its reason. A limit that is not here is a limit that is missing."""

from __future__ import annotations

from typing import Final

NAME_LENGTH_MAX: Final = 128
"""Long enough for any convention, short enough for an indexed column in every database."""

SHARDS_MAX: Final = 4096
"""Open shards of one stream. A map of this size still fits one answer, and a group can still balance it."""

FIRST_USE_SHARDS: Final = 2
"""Of a stream that is made by its first use: QMQ's default route."""

RECORD_BYTES_MAX: Final = 4_000_000
"""One record: key, value and headers. What is larger belongs in an object store, with its address here."""

BATCH_BYTES_MAX: Final = 8_000_000
"""One stored batch, uncompressed. MariaDB's default packet is 16 MiB and escaping may double a byte."""

BATCH_RECORDS_MAX: Final = 1_000_000
"""One stored batch. Offsets within a batch stay small numbers, and one read stays bounded."""

HEADERS_MAX: Final = 64
"""Headers of one record: they are for tracing and types, not a second value."""

OUR_HEADERS_MAX: Final = 8
OUR_HEADERS_BYTES_MAX: Final = 8_192
"""Of those, beyond the limits: what we write beside a record when it is set aside."""

TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: what datetime, Spark and every database can still hold."""

OFFSET_MAX: Final = 2**63 - 1
"""What a database's number can hold."""

READ_BYTES_DEFAULT: Final = 8_000_000
"""One read, uncompressed: about one full batch, large enough that the cost per call disappears."""

READ_JOIN_BYTES: Final = 1_000_000
"""A read joins stored batches up to this: beyond, copying them into one costs more than another call."""

READS_TOGETHER_MAX: Final = 8
READS_TOGETHER_BYTES: Final = 8_000_000
"""A server answers one who says that he reads on with several reads, up to so many, and until they take so
many bytes."""

READ_RECORDS_DEFAULT: Final = 1_000_000
"""One read. The byte limit is what normally ends a read."""

READ_BATCHES_MAX: Final = 1024
"""Stored batches looked at by one read: bounds the work when someone appended one record at a time."""

PLACES_MAX: Final = 4 * SHARDS_MAX
"""Different places that one request waits at, and shards of a stream that it asks about: all open shards of a
few streams. Each is looked for in the store, and each that is waited for is kept in memory meanwhile."""

READ_WAIT_S_MAX: Final = 3600.0
"""A read that waits longer is a mistake in units."""

PRODUCER_NAME_LENGTH_MAX: Final = 100
"""Of a producer with a name: on other streams of its transactions, the number of its own is added."""

PRODUCER_WINDOW: Final = 8
"""Batches of one producer and shard whose offsets are remembered, to answer a repeat."""

COMMIT_REQUESTS_MAX: Final = 256
"""Appends that share one commit: bounds how long the first of them waits for the last."""

COMMIT_BYTES_MAX: Final = 32_000_000
"""Payload that shares one commit, for the same reason."""

ROUND_BATCHES_PER_SHARD: Final = 4
"""Batches of one shard that a producer sends in one call; fewer than PRODUCER_WINDOW, so that every one of
them can be answered again."""

ROUND_BYTES_MAX: Final = 20_000_000
"""Uncompressed bytes that a producer sends in one call: they are in memory twice while it lasts."""

CALLS_MAX: Final = 16
"""Calls of one producer on their way at once: each is a thread. More would only wait for each other."""

TRANSACTION_BYTES_MAX: Final = ROUND_BYTES_MAX
"""Of one transaction of a producer: it is one call, and one commit. All of it in one shard is
still fewer batches than PRODUCER_WINDOW."""

STORE_LOCK_WAIT_S: Final = 15.0
"""How long a write waits for other writers before it says StoreBusy."""

STORE_STILL_S: Final = 10.0
"""How long a transaction may stand still: a process that was stopped within one loses what it had locked,
before those who wait for it give up."""

RETENTION_BATCHES_PER_STEP: Final = 512
"""Batches removed in one transaction: retention must not hold the write lock for long."""

RETENTION_MAX: Final = 1 << 62
"""Milliseconds or bytes: more than there will ever be, and what every database can still hold."""

RETRIES_MAX: Final = 5
"""Times that a look is repeated because retention was faster. Each time there is less left to race for."""

RETRY_SHARDS_MAX: Final = 4
"""Shards of a new retry stream: enough for records that fail to be tried in several workers, few enough for
each of them to hold beside its own."""

DURATION_S_MAX: Final = 7 * 24 * 3600.0
"""The longest time that a setting takes: a longer one is a mistake in units, and infinity is no bound."""

PRODUCER_STATE_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""How long a silent producer's numbering is remembered."""

GROUPS_PER_STREAM: Final = 5
"""Groups of one stream, as in the founding document; `connect(groups_per_stream=…)` allows more."""

GROUP_TIMEOUT_S_MIN: Final = 0.2
"""A shorter timeout expires consumers that only waited for the store's disk."""

GROUP_TIMEOUT_S_MAX: Final = 3600.0
"""A dead consumer's shards stand still for so long. A longer one is a mistake in units."""

HANDOVER_TIMEOUT_S_MAX: Final = 24 * 3600.0
"""A longer bound is no bound; None says so."""

CLOCK_MARGIN: Final = 0.05
"""A consumer's deadline is shorter by this part of the timeout: so much may its clock run slow."""

REPORTED_TRIES_MS: Final = 11_000
"""How long a heartbeat of Aliyun's Python client takes that gets no answer: ten tries with a second behind
each, and what they take themselves. It looks at the clock, and lets go of its shards, only then."""

GONE_MEMBERS_KEPT: Final = 64
"""Incarnations that are remembered after they went, so that a message delayed on the way brings none back."""

STEP_TRIES_MAX: Final = 64
"""Times that a group's step is thought through again because another process was faster."""

EPOCH_JUMP: Final = 1 << 20
"""After the store forgot commits, epochs go on so much higher: none that was given before comes again."""

TEXT_LENGTH_MAX: Final = 2000
"""Of what an error of user code says: enough to know it again, and it fits every column that keeps it."""

HISTORY_KEPT: Final = 1000
"""Lines of a group's history."""

ATTEMPTS_MAX: Final = 100
"""Times that a record is tried before it goes to the dead stream."""

LANES_MAX: Final = 256
"""Lanes of one shard: each has a processor of its own."""

PROCESSES_MAX: Final = 256
"""Processes of one `shoal work`: more are a mistake, and a machine's memory would end before."""

MARKS_KEPT: Final = 3
"""Sets of lanes' marks beside a checkpoint: one for each time that the number of lanes was changed before the
checkpoint had come up with what was done."""

SHARE_SPANS_MAX: Final = 10_000
"""Gaps in what a shared group has settled of a shard: at so many, nothing new is handed out until some are
closed. Each is a few numbers in the shard's row, which is written with every step."""

SHARE_RECORDS_HELD: Final = 100_000
"""Records of a shard that a shared group has handed out and not settled. Each could become a gap."""

RECEIVE_RECORDS_MAX: Final = 10_000
"""Records of one receive: with more, one slow consumer would keep others from what it has not begun."""

VISIBILITY_S_MAX: Final = 12 * 3600.0
"""A record that a dead consumer has comes back after so long. A longer wait is a mistake in units."""

BROADCAST_CONSUMERS_MAX: Final = 1_000
"""Named positions of one broadcast group. More are names that were made up anew at every start."""

KEYS_AHEAD: Final = 4_000
"""Records whose keys one receive looks at, where keys are kept one at a time."""

UNUSED_S_MAX: Final = 10 * 366 * 24 * 3600.0
"""How long an unused position is kept: a longer time is a mistake in units."""

POSITION_UNUSED_S: Final = 7 * 24 * 3600.0
"""Unless the group says otherwise: a consumer that was away for a week is not expected back."""

VISIBILITY_S: Final = 30.0
"""Unless the group says otherwise: longer than most work on a batch takes, shorter than anyone waits."""

RECEIVE_ATTEMPTS: Final = 4
"""Unless the group says otherwise; as often as a worker tries."""

POLICY_BYTES_MAX: Final = 65_536
"""Of one policy. It is looked through at every request that is not like one before."""

SIGNED_MS: Final = 60_000
"""How far the date of a signed request may be from the server's clock, either way. Clocks that are kept are
within a second; every nonce is remembered for so long."""

SLS_SIGNED_MS: Final = 900_000
"""The same for a request of one of Aliyun's clients, as with Aliyun. They repeat signatures within a second,
so that there is no nonce: within this time such a request can be replayed."""

NONCES_MAX: Final = 1_000_000
"""Nonces that a server remembers, at about 100 bytes each. One user may have a half of them: 8,000 requests a
second for that time. Users who have less than their share are taken beyond it: twice as many at worst."""
