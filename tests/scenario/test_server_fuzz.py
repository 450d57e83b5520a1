"""Every call with parameters of the right shape and no sense: refused or done, never a fault of ours."""

import random
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import shoal
from shoal.core.model import StreamName
from shoal.native.calls import CALLS, Call, arguments_to
from shoal.server.options import ServerOptions
from shoal.testing.serving import served
from shoal.wire.frame import packed
from shoal.wire.values import Asked, RingHash, fields_of, is_union, plain_kind
from tests.scenario.asking import asked

ROUNDS = 6
EDGES = (0, 1, -1, 2, 7, 1 << 31, (1 << 63) - 1, -(1 << 63))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with served(f"sqlite:///{folder / 'shoal.db'}", ServerOptions(port=0, wait_s_max=0.05)) as url:
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=2)
            hub.append("orders", 0, [b"a", b"b"])
            hub.create_group("orders", "billing")
            hub.create_group("orders", "leased", coordination="leased")
            hub.create_group("orders", "shared", delivery="shared")
            hub.create_group("orders", "all", delivery="broadcast")
        yield url


def sample(kind: Any, chance: random.Random) -> Any:  # noqa: PLR0911 - a case for each kind
    """Some value of an annotation."""
    kind = plain_kind(kind)
    made: dict[Any, Callable[[], Any]] = {
        StreamName: lambda: StreamName("default", chance.choice(["orders", "missing"])),
        int: lambda: chance.choice(EDGES),
        Asked: lambda: chance.choice([*EDGES, "0", True, 1.5, 1 << 100]),
        RingHash: lambda: chance.choice([*EDGES, 1 << 127]),
        float: lambda: chance.choice([0.0, 0.01, -1.0, 1e12]),
        str: lambda: chance.choice(["", "billing", "leased", "shared", "all", "é" * 300, "a/b", "x"]),
        bool: lambda: chance.choice([True, False]),
        bytes: lambda: chance.choice([b"", b"\x00\xff", b"x" * 100]),
    }
    if kind in made:
        return made[kind]()
    if is_union(kind):
        option = chance.choice(get_args(kind))
        return None if option is type(None) else sample(option, chance)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (dict, Mapping):
        count = chance.randrange(3)
        return {sample(arguments[0], chance): sample(arguments[1], chance) for _ in range(count)}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(sample(part, chance) for part in arguments)
    if origin is not None:
        return [sample(arguments[0], chance) for _ in range(chance.randrange(3))]
    if issubclass(kind, StrEnum):
        return chance.choice(list(kind))
    fields = [field for field in fields_of(kind) if field[2] or chance.random() < 0.5]
    try:
        return kind(**{name: sample(of, chance) for name, of, _ in fields})
    except shoal.ShoalError:  # Some are checked when they are made.
        return kind(**{name: sample(of, chance) for name, of, is_needed in fields if is_needed})


@pytest.mark.parametrize("call", CALLS.values(), ids=lambda call: f"{call.part}.{call.name}")
def test_no_call_fails_in_a_way_that_nobody_foresaw(url: str, call: Call) -> None:
    for seed in range(ROUNDS):
        chance = random.Random(f"{call.path} {seed}")
        if call.sends_batches:
            label = call.fields[0][1]
            body = b"".join(packed(label, sample(label, chance), [b"\0" * chance.randrange(50)]))
        else:
            body = arguments_to(call, {name: sample(kind, chance) for name, kind, _ in call.fields})
        status, told = asked(url, call.path, body)
        assert status < 500 or told["error"] in {"StoreBusy", "StrategyRefused"}, (body, told)
