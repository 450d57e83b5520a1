"""The OpenAPI document, made from the table of calls and the annotations of what they carry."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, get_args, get_origin

from shoal.core.errors import ShoalError
from shoal.core.model import StreamName
from shoal.native.calls import CALLS, Call
from shoal.wire.frame import CONTENT_TYPE
from shoal.wire.signing import SCHEME
from shoal.wire.values import TYPE, Asked, RingHash, fields_of, is_union, plain_kind

_ONE_NAME = r"(?!\.{1,2}(/|$))[A-Za-z0-9._-]{1,128}"
_NAME = {"type": "string", "pattern": f"^({_ONE_NAME}/)?{_ONE_NAME}$"}
_ERROR = {
    "type": "object",
    "required": ["error", "text", "retriable", "fields"],
    "properties": {
        "error": {"type": "string"},
        "text": {"type": "string"},
        "retriable": {"type": "boolean"},
        "fields": {"type": "object"},
        "untouched": {"type": "boolean"},
        "lost": {"type": "boolean"},
        "request": {"type": "string"},
    },
}


_SIGNED = {
    "type": "apiKey",
    "in": "header",
    "name": "Authorization",
    "description": (
        f"`{SCHEME} key=…,date=…,nonce=…,digest=…,server=…,signature=…`. The signature is the HMAC-SHA256, "
        "in hex, under the key's secret, of nine lines: the scheme, method, path, query, key, digest "
        "(SHA-256 of the body, in hex), date (milliseconds since 1970), nonce (never the same twice) and "
        "server (which the error `SignedForAnother` tells)."
    ),
}
_ABOUT = """A sharded log with consumer groups.

Bodies with batches are frames: four bytes, big-endian, the length of a label; the label, as JSON; and stored
batches (Arrow IPC messages), one after another, as long as the label says."""


def document(version: str) -> dict[str, Any]:
    """The whole document."""
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths = {call.path: {"post": _operation(call, schemas)} for call in CALLS.values()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"signature": _SIGNED}},
        # Where no user is defined, no signature is asked for.
        "security": [{"signature": []}, {}],
    }


def _operation(call: Call, schemas: dict[str, Any]) -> dict[str, Any]:
    if call.sends_batches:
        # The label's schema is there for people; the body itself is bytes.
        _schema(call.fields[0][1], schemas)
        content: dict[str, Any] = {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}
    else:
        content = {"application/json": {"schema": _members(call.fields, schemas)}}
    answer = _schema(call.answer, schemas)
    if call.gets_batches:
        answered: dict[str, Any] = {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}
    else:
        answered = {"application/json": {"schema": answer}}
    return {
        "operationId": f"{call.part}_{call.name}",
        "tags": [call.part],
        "summary": call.about.split("\n\n")[0].replace("\n", " "),
        "requestBody": {"required": any(is_needed for *_, is_needed in call.fields), "content": content},
        "responses": {
            "200": {"description": "Done.", "content": answered},
            "default": {
                "description": "Why not.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }


def _members(fields: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: _schema(kind, schemas) for name, kind, _ in fields},
        "required": [name for name, _, is_needed in fields if is_needed],
        "additionalProperties": False,
    }


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    kind = plain_kind(kind)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if is_union(kind):
        return _union(kind, schemas)
    if get_origin(kind) is not None:
        return _container(kind, schemas)
    if issubclass(kind, ShoalError):
        return {"$ref": "#/components/schemas/Error"}
    if issubclass(kind, StrEnum):
        return {"type": "string", "enum": [one.value for one in kind]}
    if kind.__name__ not in schemas:
        schemas[kind.__name__] = {}  # Its name is taken before its parts are looked at.
        schemas[kind.__name__] = _members(fields_of(kind), schemas)
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _container(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        parts = [_schema(part, schemas) for part in arguments]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], schemas)}
    return {"type": "array", "items": _schema(arguments[0], schemas)}


def _union(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in get_args(kind) if option is not type(None)]
    if len(options) == 1:
        return {"anyOf": [_schema(options[0], schemas), {"type": "null"}]}
    shapes = []
    for option in options:
        if issubclass(option, ShoalError):
            shapes.append(_schema(option, schemas))
            continue
        shape = _members(fields_of(option), schemas)
        shape["properties"] = {TYPE: {"const": option.__name__}, **shape["properties"]}
        shape["required"] = [TYPE, *shape["required"]]
        shapes.append(shape)
    if type(None) in get_args(kind):
        shapes.append({"type": "null"})
    return {"anyOf": shapes}


_SCALARS: dict[Any, dict[str, Any]] = {
    StreamName: _NAME,
    RingHash: {"type": "integer", "minimum": 0, "exclusiveMaximum": 1 << 128},
    int: {"type": "integer"},
    Asked: {"type": ["integer", "number", "string", "boolean"]},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    object: {},
    None: {"type": "null"},
    type(None): {"type": "null"},
}
