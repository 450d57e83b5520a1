"""Retention, which users of ours set to the millisecond, and Aliyun's clients in days."""

import json
from datetime import timedelta

import pytest

from shoal import Hub
from shoal.server.sls.records import SCHEMA
from tests.sls.asking import told
from tests.sls.running import STREAM

PATH = "/logstores/store"


@pytest.mark.parametrize(
    ("kept", "shown"),
    [(timedelta(hours=1), 1), (timedelta(hours=36), 2), (timedelta(days=4000), 4000), (None, 3650)],
)
def test_a_logstore_that_is_updated_to_what_it_is_shown_as_keeps_its_retention(
    kept: timedelta | None, shown: int, url: str, hub: Hub
) -> None:
    hub.create_stream(STREAM, shards=1, schema=SCHEMA, retention=kept, retention_bytes=10**9)
    before = hub.describe_stream(STREAM).settings
    answer = told(url, "GET", PATH)[1]
    assert answer["ttl"] == shown
    assert told(url, "PUT", PATH, json.dumps(answer).encode())[0] == 200
    assert hub.describe_stream(STREAM).settings == before
    assert told(url, "PUT", PATH, json.dumps({**answer, "ttl": 7}).encode())[0] == 200
    after = hub.describe_stream(STREAM).settings
    assert (after.retention_ms, after.retention_bytes) == (7 * 86_400_000, 10**9)
