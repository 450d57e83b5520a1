"""Options of Spark's sources and sinks: text in, values or one clear error out."""

from __future__ import annotations

import pytest

from shoal.core.errors import InvalidInput
from shoal.spark.hubs import HubAddress, address_of, hub_at
from shoal.spark.options import (
    Option,
    Parser,
    as_json,
    choice,
    flag,
    names,
    parsed,
    seconds,
    size,
    text,
    whole,
)
from shoal.spark.source_options import source_options

KNOWN = (
    Option(name="hub", parse=text, doc="the hub's URL", is_required=True),
    Option(name="maxOffsetsPerTrigger", parse=whole(), doc="records"),
    Option(name="failOnDataLoss", parse=flag, default=True, doc="whether to fail"),
)


def test_names_come_back_as_the_table_writes_them_whatever_their_case() -> None:
    values = parsed({"HUB": "sqlite:///x.db", "maxoffsetspertrigger": " 10 "}, KNOWN)
    assert values == {"hub": "sqlite:///x.db", "maxOffsetsPerTrigger": 10, "failOnDataLoss": True}


def test_an_unknown_option_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidInput, match=r"maxofsetspertrigger='1'.*did you mean 'maxOffsetsPerTrigger'"):
        parsed({"hub": "x", "maxofsetspertrigger": "1"}, KNOWN)


@pytest.mark.parametrize("name", ["password", "kafka.sasl.jaas.config", "accessKeySecret", "security-token"])
def test_the_value_of_an_option_of_other_connectors_that_is_secret_is_not_shown(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"{name}='\*\*\*': the source has no such option") as caught:
        parsed({"hub": "x", name: "hunter2"}, KNOWN)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("option", ["stream", "streamPattern"])
def test_what_is_no_regular_expression_is_refused_by_its_option(option: str) -> None:
    line = rf"{option}='orders-\[': neither names nor a regular expression: unterminated"
    with pytest.raises(InvalidInput, match=line):
        source_options({"hub": "http://127.0.0.1:7400", option: "orders-["})


def test_an_option_like_no_other_is_refused_with_all_that_are_known() -> None:
    with pytest.raises(InvalidInput, match="it knows failOnDataLoss, hub, maxOffsetsPerTrigger"):
        parsed({"hub": "x", "zzz": "1"}, KNOWN)


def test_a_missing_option_is_named_with_what_it_is() -> None:
    with pytest.raises(InvalidInput, match=r"hub=None.*the hub's URL"):
        parsed({}, KNOWN)


@pytest.mark.parametrize(
    ("parse", "given", "value"),
    [
        (flag, "TRUE", True),
        (whole(-2), "-2", -2),
        (size, "64m", 64 << 20),
        (size, "10", 10),
        (seconds, "15m", 900.0),
        (seconds, "500ms", 0.5),
        (seconds, "2", 2.0),
        (names, "a, b", ("a", "b")),
        (choice("earliest", "latest"), "Latest", "latest"),
        (as_json, '{"0": 1}', {"0": 1}),
    ],
)
def test_a_value_is_read(parse: Parser, given: str, value: object) -> None:
    assert parse("option", given) == value


@pytest.mark.parametrize(
    ("parse", "given"),
    [
        (text, ""),
        (flag, "yes"),
        (whole(), "0"),
        (whole(), "1.5"),
        (size, "0"),
        (size, "1t"),
        (size, "999999999999999g"),
        (seconds, "0s"),
        (seconds, "soon"),
        (seconds, "900d"),
        (names, "a,,b"),
        (names, "a,a"),
        (choice("earliest"), "first"),
        (as_json, "{"),
        (as_json, "[" * 100_000),
        (whole(), "1000000000000000000"),
        (whole(), "\N{ARABIC-INDIC DIGIT ONE}"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(parse: Parser, given: str) -> None:
    with pytest.raises(InvalidInput, match="option="):
        parse("option", given)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ('{"orders": {"0": 1, "0": 5}}', "0"),
        ('{"orders": {"0": 1}, "orders": {"1": 5}}', "orders"),
        ('{"0": 1, "1": 2, "\\u0030": 1}', "0"),
    ],
)
def test_offsets_that_name_something_twice_are_refused_by_that_name(given: str, key: str) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidInput, match=f"{option}='{key}': it is there 2 times; name each once"):
            source_options({"hub": "http://127.0.0.1:7400", "stream": "orders", option: given})


def test_servers_are_named_as_they_are_and_several_too() -> None:
    for url in ("http://127.0.0.1:7400", "http://key:secret@a:1,b:2", "https://hub.example:443"):
        assert address_of(url) == HubAddress(url)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
            "minOffsetsPerTrigger=20: a batch has at most maxOffsetsPerTrigger=10",
        ),
        (
            {"maxTriggerDelay": "1m"},
            "maxTriggerDelay='1m': nothing is waited for without minOffsetsPerTrigger",
        ),
        ({"groupTimeout": "30s"}, "groupTimeout='30s': of which group?"),
        (
            {"maxRecordsPerPartition": "30", "inOrder": "true"},
            "maxRecordsPerPartition=30: with inOrder=true a shard is read by one task",
        ),
        (
            {"maxRecordsPerPartition": "30"},
            "maxRecordsPerPartition='30': a streaming query is in order",
        ),
        ({"leases": "postgresql://u:secret@h/d"}, "leases='postgresql://u:***@h/d': of which group?"),
        (
            {"includeHeaders": "false", "columns": "offset,headers"},
            "includeHeaders='false': columns= names headers",
        ),
    ],
)
def test_an_option_of_a_query_that_would_do_nothing_is_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        source_options({"hub": "http://127.0.0.1:7400", "stream": "orders"} | given, is_streaming=True)
    assert line in str(caught.value)


def test_leases_beside_a_server_are_refused_without_their_password() -> None:
    address = HubAddress("http://127.0.0.1:7400", "postgresql://u:secret@h/d")
    with pytest.raises(InvalidInput, match=r"leases='postgresql://u:\*\*\*@h/d': a server has its own"):
        hub_at(address)


def test_a_group_that_is_missing_is_asked_for_by_the_option_that_needs_it() -> None:
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidInput, match=rf"{option}='group': which group\?"):
            source_options({"hub": "http://127.0.0.1:7400", "stream": "orders", option: "group"})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"group": "billing", "startingOffsets": "earliest"}, "group='billing': a batch read only begins or"),
        (
            {"startingTimestamp": "5", "endingTimestamp": "0"},
            "startingTimestamp=5: this is later than endingTimestamp=0",
        ),
    ],
)
def test_an_option_of_a_batch_read_that_makes_no_sense_is_refused(given: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        source_options({"hub": "http://127.0.0.1:7400", "stream": "orders"} | given, is_streaming=False)
    assert line in str(caught.value)
