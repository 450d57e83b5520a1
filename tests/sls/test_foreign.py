"""Streams that no client of Aliyun's wrote are pulled through its dialect, whatever is in them."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pyarrow as pa
import pytest

import shoal
from shoal import Hub
from shoal.server.sls.cursors import cursor_at
from shoal.server.sls.foreign import WRITTEN_BYTES
from shoal.server.sls.records import SCHEMA
from shoal.testing.serving import served
from tests.sls.foreign_columns import COLUMNS, OURS


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('foreign') / 'shoal.db'}"


@pytest.fixture(scope="module")
def hub(store: str) -> Iterator[Hub]:
    with shoal.connect(store) as hub:
        yield hub


@pytest.fixture(scope="module")
def url(store: str) -> Iterator[str]:
    with served(store) as url:
        yield url


def pulled(url: str, stream: str, cursor: str) -> tuple[bytes, str]:
    """What is answered from a cursor on, and the next one."""
    path = f"/logstores/{stream}/shards/0?type=log&count=1000&cursor={quote(cursor)}"
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)) as connection:
        connection.request("GET", path, headers={"Host": "proj.localhost", "Accept-Encoding": ""})
        answer = connection.getresponse()
        body = answer.read()
    assert answer.status == 200, body
    return body, answer.headers["x-log-cursor"]


def begin(hub: Hub, stream: str, table: pa.Table) -> str:
    """Make a stream of one batch; the cursor of its first record."""
    made = hub.create_stream(f"proj/{stream}", shards=1, schema=table.schema)
    with hub.producer(f"proj/{stream}") as producer:
        producer.send_batch(table).result()
    return cursor_at(made.shards[0], 0)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_stream_with_any_column_is_pulled_through_a_server(name: str, hub: Hub, url: str) -> None:
    column, text = COLUMNS[name]
    stream = f"column-{list(COLUMNS).index(name)}"
    body, _ = pulled(url, stream, begin(hub, stream, pa.table({"c": column})))
    assert b"\x0a\x01c\x12" not in body if text is None else text in body


@pytest.mark.parametrize("name", OURS)
def test_a_stream_with_the_columns_of_logs_in_other_types_is_pulled_through_a_server(
    name: str, hub: Hub, url: str
) -> None:
    stream = f"ours-{list(OURS).index(name)}"
    columns = {field.name: pa.nulls(1, field.type) for field in SCHEMA}
    table = pa.table(columns | {name: column for name, (column, _) in OURS[name].items()})
    body, _ = pulled(url, stream, begin(hub, stream, table))
    for column, (_, text) in OURS[name].items():
        assert column.encode() in body
        assert text in body


def test_what_is_much_larger_as_text_comes_in_several_answers(hub: Hub, url: str) -> None:
    table = pa.table({"n" * 100_000: pa.array([True] * 1_000)})
    cursor, rows, answers = begin(hub, "long", table), 0, 0
    while rows < 1_000:
        body, cursor = pulled(url, "long", cursor)
        assert 0 < len(body) < 2 * WRITTEN_BYTES
        rows += body.count(b"n" * 100_000)
        answers += 1
    assert rows == 1_000
    assert answers > 2
