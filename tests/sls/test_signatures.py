"""Signatures of Aliyun's own client against ours: equal for every request, and for none that was changed."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from shoal.server.sls.signature import (
    Claimed,
    Signed,
    body_is_signed,
    claimed,
    is_right,
    signature_v1,
    signature_v4,
    signed_at_ms,
)
from tests.sls.running import Start

CASES = 200
WORDS = ("", "a", "A-b_c.~", " x ", "组", "a+b&c=d%20", "😓/\\", "MTcw==\n", "*()'!", "0" * 40)


def request(chance: random.Random, version: str) -> dict[str, Any]:
    return {
        "version": version,
        "key": chance.choice(["id", "LTAI5t.-_"]),
        "secret": chance.choice(["secret", "s 组/+="]),
        "token": chance.choice([None, "token=="]),
        "region": chance.choice(["cn-hangzhou", "x"]),
        "method": chance.choice(["GET", "POST", "PUT", "DELETE"]),
        "path": "/" + "/".join(chance.sample(["logstores", "a b", "组", "50%", "~g", "shards"], 3)),
        "query": {f"k{i}": chance.choice(WORDS) for i in range(chance.randrange(4))},
        "body": chance.choice(["", "{}", "组" * 9]),
        "headers": {
            "Host": "proj.localhost",
            "User-Agent": "x",
            **chance.choice([{}, {"Content-Type": "application/json"}]),
            **chance.choice([{}, {"x-log-apiversion": "0.6.0", "x-log-bodyrawsize": "12"}]),
            **chance.choice([{}, {"x-log-meta-a": "b"}]),
        },
    }


@pytest.mark.parametrize("version", ["v1", "v4"])
def test_every_signature_of_the_real_client_is_ours_and_none_of_a_changed_request_is(
    version: str, start: Start
) -> None:
    chance = random.Random(version)
    asked = [request(chance, version) for _ in range(CASES)]
    program = start("signing_program.py", "")
    written, _ = program.communicate("".join(json.dumps(one) + "\n" for one in asked), timeout=60)
    assert program.returncode == 0, written
    for one, line in zip(asked, written.splitlines(), strict=True):
        headers = {name.lower(): value for name, value in json.loads(line).items()}
        claim = claimed(headers["authorization"])
        assert claim is not None
        signed = Signed(
            method=one["method"], path=one["path"], query=list(one["query"].items()), headers=headers
        )
        assert claim.signature == ours(signed, one["secret"], claim)
        assert is_right(claim, signed, one["secret"])
        assert body_is_signed(claim, headers, one["body"].encode())
        assert signed_at_ms(claim, headers) is not None
        assert not is_right(claim, signed, one["secret"] + "x")
        assert not is_right(claim, replace(signed, method="PATCH"), one["secret"])
        assert not is_right(claim, replace(signed, path=signed.path + "/"), one["secret"])
        assert not is_right(claim, replace(signed, query=[*signed.query, ("z", "1")]), one["secret"])
        assert not is_right(claim, replace(signed, headers={**headers, "x-log-z": "1"}), one["secret"])
        assert not body_is_signed(claim, headers, one["body"].encode() + b"x")


def ours(signed: Signed, secret: str, claim: Claimed) -> str:
    if claim.version == 1:
        return signature_v1(signed, secret)
    return signature_v4(signed, secret, claim.region)
