"""The tree of errors: one root, texts that name a remedy, and no leaf that cannot be told apart."""

import inspect
import pickle

import pytest

from shoal.core import errors
from shoal.core.errors import InvalidInput, InvalidUrl, ShardClosed, ShoalError, leaves

ALL = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ShoalError) and kind is not ShoalError
]


def test_every_error_of_the_room_is_in_the_one_tree_and_its_leaves_are_all_found() -> None:
    parents = {base for kind in ALL for base in kind.__mro__[1:]}
    assert leaves() == {kind for kind in ALL if kind not in parents}
    assert len(leaves()) > 20


@pytest.mark.parametrize("kind", [ShoalError, *ALL], ids=lambda kind: kind.__name__)
def test_an_error_goes_by_the_name_that_it_is_imported_by(kind: type[ShoalError]) -> None:
    assert f"{kind.__module__}.{kind.__qualname__}" == f"shoal.core.errors.{kind.__name__}"
    assert pickle.loads(pickle.dumps(kind)) is kind  # noqa: S301 - our own


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_what_is_retriable_is_said_by_the_class(kind: type[ShoalError]) -> None:
    assert isinstance(kind.retriable, bool)
    passing = {"BufferFull", "StoreUnavailable", "StoreBusy", "StoreFull", "RateExceeded"}
    assert kind.retriable is (kind.__name__ in passing)


def test_input_errors_are_value_errors_that_carry_field_value_and_remedy() -> None:
    error = InvalidInput("shards", 0, "a stream has 1 to 4096 shards")
    assert isinstance(error, ValueError)
    assert (error.field, error.value, error.remedy) == ("shards", 0, "a stream has 1 to 4096 shards")
    assert str(error) == "shards=0: a stream has 1 to 4096 shards"


def test_a_huge_value_is_cut_in_the_text_but_not_in_the_field() -> None:
    error = InvalidInput("key", "x" * 10_000, "too long")
    assert len(str(error)) < 300
    assert error.value == "x" * 10_000


@pytest.mark.parametrize("kind", sorted(leaves() - {ShardClosed}, key=str), ids=lambda kind: kind.__name__)
def test_every_fact_an_error_is_given_is_a_field_of_it(kind: type[ShoalError]) -> None:
    samples = {"int": 7, "float": 0.5}
    given = {
        parameter.name: samples.get(str(parameter.annotation), "something")
        for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]
    }
    error = kind(**given)
    for name, value in given.items():
        assert name == "remedy" or getattr(error, name) == value
    assert str(error)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://key:hush@a:7400,b:7400", "http://key:***@a:7400,b:7400"),
        ("http://key:hu/sh@a:7400", "http://key:***@a:7400"),
        ("postgresql://ann:hu@sh@db/shoal", "postgresql://ann:***@db/shoal"),
        ("postgresql://ann@db:5432/shoal", "postgresql://ann@db:5432/shoal"),
        ("sqlite:///shoal.db", "sqlite:///shoal.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    error = InvalidUrl("hub", url, "no")
    assert error.value == shown
    assert shown in str(error)
