"""Values as JSON and back, by their annotations: dataclasses, named tuples, enums, and what they are made of.

One codec for every value that crosses a wire. What comes in is checked against its annotation, so that
nothing of another shape gets further; `is_strict` refuses fields that are not known, for those who answer
to strangers. A value of a union of classes says which one it is in the field `type`. Bytes are base64.

Not for: records, which travel as Arrow (`layout`, `frame`), and errors, which `faults` knows.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any, Final, NewType, Union, get_args, get_origin, get_type_hints

from shoal.core.checking import as_whole
from shoal.core.checkpoint import Checkpoint, Save
from shoal.core.errors import InvalidInput, ShoalError
from shoal.core.model import StreamName
from shoal.core.names import stream_name
from shoal.wire.faults import error_from, error_to

RingHash = NewType("RingHash", int)
"""A place on the ring: 128 bits, where other numbers have 64."""
Asked = NewType("Asked", int)
"""A shard or an offset that someone names: whatever it is, the hub says that there is none."""

Encode = Callable[[Any], Any]
Decode = Callable[[Any, str], Any]

TYPE: Final = "type"
"""Where a value of a union says which of its classes it is."""


def to_json(kind: Any, value: object) -> bytes:
    """A value as the bytes of its JSON."""
    return text_of(encoder(kind)(value))


def text_of(plain: Any) -> bytes:
    """What JSON knows, as the bytes of it."""
    return _WRITER.encode(plain).encode()


def from_json(
    kind: Any, text: bytes | bytearray | memoryview, *, is_strict: bool, field: str = "body"
) -> Any:
    """The value of these bytes, or InvalidInput."""
    return decoder(kind, is_strict)(parsed(text, field), field)


def parsed(text: bytes | bytearray | memoryview, field: str = "body") -> Any:
    """JSON as Python has it: no NaN, no infinity, and nothing that nests without an end."""
    try:
        return _READER.decode(str(text, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field, _clip(bytes(text[:60])), f"this is not JSON ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


# Made once: `json.loads` and `dumps` make one for each call that wants anything but their defaults.
_READER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
_WRITER: Final = json.JSONEncoder(separators=(",", ":"))


@lru_cache(maxsize=1024)
def encoder(kind: Any) -> Encode:
    """What turns a value of this annotation into what JSON knows."""
    kind = plain_kind(kind)
    if kind in _ENCODERS:
        return _ENCODERS[kind]
    if is_union(kind):
        return _union_encoder(kind)
    if get_origin(kind) is not None:
        return _container_encoder(kind)
    if issubclass(kind, ShoalError):
        return lambda error: error_to(error, encode_field)
    if issubclass(kind, StrEnum):
        return str
    encoders = [(name, encoder(of)) for name, of, _ in fields_of(kind)]
    return lambda value: {name: encode(getattr(value, name)) for name, encode in encoders}


def _container_encoder(kind: Any) -> Encode:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        each = [encoder(argument) for argument in arguments]
        return lambda value: [encode(part) for encode, part in zip(each, value, strict=True)]
    if origin in _MAPPINGS:
        of_value = encoder(arguments[1])
        return lambda value: {str(key): of_value(part) for key, part in value.items()}
    item = encoder(arguments[0])
    return list if item is _as_it_is else lambda value: [item(part) for part in value]


@lru_cache(maxsize=1024)
def decoder(kind: Any, is_strict: bool) -> Decode:
    """What turns JSON into a value of this annotation, or raises InvalidInput with the place it was at."""
    kind = plain_kind(kind)
    if kind in _DECODERS:
        return _decode_wide if kind is int and not is_strict else _DECODERS[kind]
    if is_union(kind):
        return _union_decoder(kind, is_strict)
    if get_origin(kind) is not None:
        return _container_decoder(kind, is_strict)
    if issubclass(kind, ShoalError):
        return lambda given, field: error_from(_object(given, field), decode_field)
    if issubclass(kind, StrEnum):
        return _enum_decoder(kind)
    return object_decoder(kind, fields_of(kind), is_strict)


def _container_decoder(kind: Any, is_strict: bool) -> Decode:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _tuple_decoder([decoder(argument, is_strict) for argument in arguments])
    if origin in _MAPPINGS:
        return _mapping_decoder(plain_kind(arguments[0]), decoder(arguments[1], is_strict))
    return _sequence_decoder(decoder(arguments[0], is_strict), list if origin is list else tuple)


def object_decoder(make: Callable[..., Any], fields: Sequence[Field], is_strict: bool) -> Decode:
    """What makes something of a JSON object, whose members are its keywords."""
    decoders = {name: decoder(of, is_strict) for name, of, _ in fields}
    wanted = [name for name, _, is_needed in fields if is_needed]

    def decode(given: Any, field: str) -> Any:
        members = _object(given, field)
        values = {}
        for name, member in members.items():
            of_member = decoders.get(name)
            if of_member is not None:
                values[name] = of_member(member, f"{field}.{name}")
            elif is_strict and name != TYPE:
                raise InvalidInput(
                    f"{field}.{_clip(name)}", "given", f"not known; one of {', '.join(decoders)}"
                )
        for name in wanted:
            if name not in values:
                raise InvalidInput(f"{field}.{name}", "missing", "it has to be there")
        return make(**values)

    return decode


Field = tuple[str, Any, bool]
"""A name, an annotation, and whether there is no default."""


@lru_cache(maxsize=1024)
def fields_of(kind: Any) -> tuple[Field, ...]:
    """What a class is made of."""
    hints = get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return tuple(
            (
                one.name,
                Asked if (kind, one.name) in _ASKED else hints[one.name],
                one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING,
            )
            for one in dataclasses.fields(kind)
        )
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
        return tuple((name, hints[name], name not in kind._field_defaults) for name in hints)
    raise TypeError(f"{kind!r} has no form in JSON")


def plain_kind(kind: Any) -> Any:
    """What a NewType stands for."""
    while isinstance(kind, NewType) and kind not in (RingHash, Asked):
        kind = kind.__supertype__
    return kind


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def encode_field(value: object) -> Any:
    """A fact that an error carries: a number, a text, a list of those, or a value of ours."""
    if isinstance(value, float) and not isfinite(value):
        return repr(value)  # JSON has no such numbers.
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, Sequence):
        return [encode_field(part) for part in value]
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return encoder(kind)(value)
    return _clip(repr(value))


def decode_field(kind: Any, given: Any, field: str) -> Any:
    return decoder(kind, False)(given, field)


# --- The parts. -------------------------------------------------------------------------------------------


def _as_it_is(value: Any) -> Any:
    return value


def _encode_int(value: int) -> Any:
    """A checkpoint may carry the marks of lanes: see core.checkpoint."""
    if isinstance(value, Checkpoint) and value.beyond:
        return {"checkpoint": int(value), "beyond": [list(marks) for marks in value.beyond]}
    number = as_whole(value)  # What is none is sent as it is, and refused by who gets it.
    return value if number is None else number


def _decode_int(given: Any, field: str, bits: int) -> int:
    if type(given) is not dict:
        return _whole(given, field, bits)
    beyond = given.get("beyond")
    if set(given) != {"checkpoint", "beyond"} or type(beyond) is not list or len(beyond) > _MARKS:
        raise InvalidInput(field, _clip(given), "a number, or a checkpoint with what is done beyond it")
    return Checkpoint(
        _whole(given["checkpoint"], field, bits),
        [
            tuple(_whole(mark, field, bits) for mark in marks)
            for marks in beyond
            if isinstance(marks, list) and marks
        ],
    )


def _decode_wide(given: Any, field: str) -> int:
    return _decode_int(given, field, 129)


def _decode_asked(given: Any, field: str) -> Any:
    """A bool is no number, and a text is none; what they are worth, the hub says."""
    if isinstance(given, bool | float):
        return given
    return _decode_str(given, field) if isinstance(given, str) else _decode_wide(given, field)


def _whole(given: Any, field: str, bits: int) -> int:
    if type(given) is not int or not -(1 << bits) <= given < 1 << bits:
        raise InvalidInput(field, _clip(given), f"a whole number of at most {bits} bits")
    return given


def _decode_str(given: Any, field: str) -> str:
    if type(given) is not str:
        raise InvalidInput(field, _clip(given), "a text")
    if not given.isascii() or "\0" in given:
        try:
            is_text = "\0" not in given and bool(given.encode("utf-8"))
        except UnicodeEncodeError:
            is_text = False
        if not is_text:
            raise InvalidInput(field, _clip(given), "a text that UTF-8 can hold, without zeros")
    return given


def _decode_float(given: Any, field: str) -> float:
    if type(given) is int and abs(given) < 1 << 63:
        return float(given)
    if type(given) is not float or not isfinite(given):
        raise InvalidInput(field, _clip(given), "a number")
    return given


def _decode_bool(given: Any, field: str) -> bool:
    if type(given) is not bool:
        raise InvalidInput(field, _clip(given), "true or false")
    return given


def _decode_bytes(given: Any, field: str) -> bytes:
    text = _decode_str(given, field)
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # Text that is not ASCII is refused by another error than binascii's.
        raise InvalidInput(field, _clip(given), f"base64 ({error})") from error


def _decode_none(given: Any, field: str) -> None:
    if given is not None:
        raise InvalidInput(field, _clip(given), "nothing")


def _object(given: Any, field: str) -> dict[str, Any]:
    if type(given) is not dict:
        raise InvalidInput(field, _clip(given), "an object")
    return given


def _list(given: Any, field: str) -> list[Any]:
    if type(given) is not list:
        raise InvalidInput(field, _clip(given), "a list")
    return given


def _enum_decoder(kind: type[StrEnum]) -> Decode:
    known = {one.value: one for one in kind}

    def decode(given: Any, field: str) -> StrEnum:
        found = known.get(given) if type(given) is str else None
        if found is None:
            raise InvalidInput(field, _clip(given), f"one of {', '.join(known)}")
        return found

    return decode


def _union_encoder(kind: Any) -> Encode:
    options = _options(kind)
    if len(options) == 1:
        only = encoder(options[0])
        return lambda value: None if value is None else only(value)
    encoders = {option: encoder(option) for option in options}

    def encode(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, ShoalError):
            return encoders[ShoalError](value)
        return {TYPE: type(value).__name__, **encoders[type(value)](value)}

    return encode


def _union_decoder(kind: Any, is_strict: bool) -> Decode:
    options = _options(kind)
    may_be_none = type(None) in get_args(kind)
    if len(options) == 1:
        only = decoder(options[0], is_strict)
        return lambda given, field: None if given is None else only(given, field)
    decoders = {option.__name__: decoder(option, is_strict) for option in options}

    def decode(given: Any, field: str) -> Any:
        if given is None and may_be_none:
            return None
        members = _object(given, field)
        name = ShoalError.__name__ if "error" in members and ShoalError in options else members.get(TYPE)
        found = decoders.get(name) if type(name) is str else None
        if found is None:
            raise InvalidInput(f"{field}.{TYPE}", _clip(name), f"one of {', '.join(decoders)}")
        return found(given, field)

    return decode


def _options(kind: Any) -> list[Any]:
    return [option for option in get_args(kind) if option is not type(None)]


def _tuple_decoder(decoders: Sequence[Decode]) -> Decode:
    def decode(given: Any, field: str) -> tuple[Any, ...]:
        parts = _list(given, field)
        if len(parts) != len(decoders):
            raise InvalidInput(field, f"{len(parts)} parts", f"a list of {len(decoders)}")
        return tuple(one(part, field) for one, part in zip(decoders, parts, strict=True))

    return decode


def _sequence_decoder(item: Decode, make: Callable[[Any], Any]) -> Decode:
    return lambda given, field: make([item(part, field) for part in _list(given, field)])


def _mapping_decoder(key: Any, of_value: Decode) -> Decode:
    def decode(given: Any, field: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, part in _object(given, field).items():
            if key is int:
                try:
                    number: Any = _whole(int(name), field, 63)
                except ValueError as error:
                    raise InvalidInput(field, _clip(name), "keys are whole numbers") from error
                found[number] = of_value(part, field)
            else:
                found[_decode_str(name, field)] = of_value(part, field)
        return found

    return decode


def _clip(value: object) -> object:
    """What a stranger sent, as an error may repeat it."""
    if value is None or (isinstance(value, bool | int | float) and len(str(value)) < 50):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_MARKS: Final = 64
_ASKED: Final = {(Save, "offset")}
_ENCODERS: Final[dict[Any, Encode]] = {
    StreamName: str,
    bytes: lambda value: base64.b64encode(value).decode("ascii"),
    **dict.fromkeys((int, RingHash, Asked), _encode_int),
    **dict.fromkeys((str, float, bool, object, None, type(None)), _as_it_is),
}
_DECODERS: Final[dict[Any, Decode]] = {
    StreamName: lambda given, _: stream_name(given),
    int: lambda given, field: _decode_int(given, field, 63),
    str: _decode_str,
    float: _decode_float,
    bool: _decode_bool,
    bytes: _decode_bytes,
    object: lambda given, _: given,
    RingHash: _decode_wide,
    Asked: _decode_asked,
    **dict.fromkeys((None, type(None)), _decode_none),
}
_MAPPINGS: Final = (dict, Mapping)
