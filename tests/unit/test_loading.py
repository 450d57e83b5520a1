"""Processors by name: what is found, and what is refused with a reason."""

import sys
from pathlib import Path

import pytest

from shoal.consumer.processor import Processor
from shoal.core.errors import InvalidInput
from shoal.fleet.loading import load

SOURCE = """
import shoal
import beside

class Good(shoal.Processor):
    def process(self, batch, checkpointer):
        checkpointer.save()

class Empty(shoal.Processor):
    pass

class Needy(Good):
    def __init__(self, url):
        pass

class Other:
    def process(self, batch, checkpointer):
        pass

class Outer:
    Inner = Good

def function(batch, checkpointer): ...
def factory(): return Good()
def factory_with_default(url="x"): return Good()
def three(batch, checkpointer, more): ...
def one(batch): ...
decorated = shoal.processor(function)
good = Good()
number = 5
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "processors_of_a_test.py").write_text(SOURCE)
    return tmp_path


@pytest.mark.parametrize(
    "attribute", ["Good", "Outer.Inner", "function", "factory", "factory_with_default", "decorated"]
)
@pytest.mark.parametrize("place", ["processors_of_a_test", "./processors_of_a_test.py"])
def test_what_a_worker_takes_is_found(place: str, attribute: str) -> None:
    assert callable(load(f"{place}:{attribute}"))


def test_a_file_elsewhere_is_found_with_what_is_beside_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load(f"{folder / 'processors_of_a_test.py'}:Good")
    assert isinstance(found, type)
    assert issubclass(found, Processor)


def test_a_file_does_not_take_the_place_of_a_module_of_its_name(folder: Path) -> None:
    (folder / "json.py").write_text(SOURCE)
    load("./json.py:Good")
    assert hasattr(sys.modules["json"], "dumps")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("", "give module:attribute"),
        ("module", "give module:attribute"),
        (":Good", "give module:attribute"),
        ("no_such_module:Good", "there is no module 'no_such_module'"),
        ("json.no_such:Good", "there is no module 'json.no_such'"),
        ("no/such/file.py:Good", "there is no file no/such/file.py"),
        ("processors_of_a_test:Bad", "has no 'Bad'; it has Empty, Good, Needy"),
        ("processors_of_a_test:Outer.Bad", "has no 'Outer.Bad'"),
        ("processors_of_a_test:Empty", "does not override process"),
        ("processors_of_a_test:Needy", "takes (url); its constructor needs arguments, give a factory"),
        ("processors_of_a_test:Other", "its class has no initialize and no shutdown"),
        ("processors_of_a_test:three", "it takes (batch, checkpointer, more)"),
        ("processors_of_a_test:one", "it takes (batch)"),
        ("processors_of_a_test:good", "it is an object of Good; one object cannot serve several shards"),
        ("processors_of_a_test:number", "it is an object of int"),
        ("processors_of_a_test:beside", "it is a module"),
    ],
)
def test_what_is_no_processor_is_refused_with_the_reason(target: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(target)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_thing", "importing it raised ModuleNotFoundError: No module named 'no_such_thing'"),
        ("\n1 / 0", "importing it raised ZeroDivisionError: division by zero (broken.py:2)"),
        ("def (", "importing it raised SyntaxError"),
        ("import sys; sys.exit('bye')", "importing it raised SystemExit: bye"),
    ],
)
@pytest.mark.parametrize("place", ["broken", "broken.py"])
def test_a_module_that_cannot_be_imported_is_refused_with_its_error(
    folder: Path, place: str, source: str, reason: str
) -> None:
    (folder / "broken.py").write_text(source)
    with pytest.raises(InvalidInput) as caught:
        load(f"{place}:Good")
    assert reason in str(caught.value)
