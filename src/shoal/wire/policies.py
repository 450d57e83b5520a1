"""Policies as Aliyun writes them. Dry.

{"Version": "1", "Statement": [{"Effect": "Allow", "Action": ["log:GetCursorOrData"],
                                "Resource": ["acs:log:*:*:project/shop/logstore/orders"]}]}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from shoal.core.access import Statement, made_statement
from shoal.core.errors import InvalidInput
from shoal.core.limits import POLICY_BYTES_MAX


def parse_policy(text: str) -> tuple[Statement, ...]:
    """The statements of a policy, or InvalidInput: one that is misread would allow what was denied."""
    if len(text.encode()) > POLICY_BYTES_MAX:
        raise InvalidInput("policy", f"{len(text)} characters", f"at most {POLICY_BYTES_MAX} bytes")
    try:
        given = json.loads(text, object_pairs_hook=_once)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput("policy", text, "it is not JSON") from error
    if not isinstance(given, dict) or given.keys() - {"Version", "Statement"}:
        raise InvalidInput("policy", text, 'an object of "Version" and "Statement"')
    if given.get("Version", "1") != "1":
        raise InvalidInput("Version", given["Version"], 'it is "1"')
    statements = given.get("Statement")
    if isinstance(statements, dict):
        statements = [statements]
    if not isinstance(statements, list) or not statements:
        raise InvalidInput("Statement", statements, "a list of at least one statement")
    return tuple(_statement(one) for one in statements)


def policy_text(statements: Sequence[Statement]) -> str:
    """The statements as JSON."""
    told = [
        {
            "Effect": "Allow" if one.is_allow else "Deny",
            "Action": list(one.actions),
            "Resource": list(one.resources),
        }
        for one in statements
    ]
    return json.dumps({"Version": "1", "Statement": told})


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, whose keys come once: of a key that comes twice, Python keeps the last, and others the
    first."""
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidInput("policy", twice, "it comes twice in one object; write it once")
    return found


def _statement(given: object) -> Statement:
    if not isinstance(given, dict) or given.keys() - {"Effect", "Action", "Resource"}:
        raise InvalidInput("Statement", given, 'an object of "Effect", "Action" and "Resource", and no more')
    effect = given.get("Effect")
    if effect not in ("Allow", "Deny"):
        raise InvalidInput("Effect", effect, '"Allow" or "Deny"')
    return made_statement(
        is_allow=effect == "Allow",
        actions=_texts("Action", given.get("Action")),
        resources=_texts("Resource", given.get("Resource")),
    )


def _texts(name: str, given: object) -> list[str]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise InvalidInput(name, given, "a text, or a list of at least one")
    return [str(one) for one in found]
