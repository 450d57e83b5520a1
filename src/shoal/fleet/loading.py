"""The user's processor by name: `module:attribute`, or `path/to/file.py:attribute`.

The current directory can be imported from, and so can that of a file. What is not a processor is refused
here, before anything is started. Nothing is made of it: a factory is not called.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from shoal.consumer.processor import Processor, factory_of, lacks
from shoal.core.errors import InvalidInput

_FORMS: Final = "give module:attribute, such as shop.billing:Billing, or path/to/file.py:attribute"
_KINDS: Final = (
    "a Processor class, a factory without parameters, or a function (batch, checkpointer) is needed"
)


def load(target: str) -> object:
    """What the user named, checked to be something that a worker takes."""
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise InvalidInput("processor", target, _FORMS)
    module = _file(target, place) if _is_file(place) else _module(target, place)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise InvalidInput("processor", target, f"{place} has no {attribute!r}{_instead(module)}")
        found = getattr(found, name)
    _check(target, found)
    return found


class Named:
    """A factory that finds the processor by its name, in whichever process it is called."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self) -> Processor:
        return factory_of(load(self._target))()


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _module(target: str, name: str) -> ModuleType:
    _importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidInput(
                "processor",
                target,
                f"there is no module {error.name!r}, neither installed nor in this directory; {_FORMS}",
            ) from error
        raise _raised(target, error) from error
    except (Exception, SystemExit) as error:  # around user code: importing it runs it
        raise _raised(target, error) from error


def _file(target: str, name: str) -> ModuleType:
    path = Path(name).resolve()
    if not path.is_file():
        raise InvalidInput("processor", target, f"there is no file {name}")
    _importable(Path.cwd())
    _importable(path.parent)
    # It must not take the place of a module that others import by that name.
    stem = path.stem
    called = f"shoal_work_{stem}" if stem in sys.modules or stem in sys.stdlib_module_names else stem
    spec = importlib.util.spec_from_file_location(called, path)
    if spec is None or spec.loader is None:
        raise InvalidInput("processor", target, f"{name} is no Python file; {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # around user code: importing it runs it
        del sys.modules[called]
        raise _raised(target, error) from error
    return module


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _raised(target: str, error: BaseException) -> InvalidInput:
    kind, where = type(error).__name__, ""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError):
        where = f" ({Path(error.filename or '?').name}:{error.lineno})"
    elif frames and not frames[-1].filename.startswith("<frozen"):
        where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return InvalidInput("processor", target, f"importing it raised {kind}: {error}{where}")


def _instead(module: ModuleType) -> str:
    """Which processors the module does have."""
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Processor) and value.__module__ == module.__name__
    ]
    return f"; it has {', '.join(sorted(names)[:_NAMES_SHOWN])}" if names else ""


def _check(target: str, found: object) -> None:
    if callable(found) and not isinstance(found, Processor):
        _check_callable(target, found)
    try:
        factory_of(found)
    except InvalidInput as error:
        raise InvalidInput("processor", target, f"it is {_kind(found)}; {error.remedy}") from error


def _check_callable(target: str, found: Callable[..., object]) -> None:
    if isinstance(found, type) and (lacking := lacks(found)):
        raise InvalidInput("processor", target, lacking)
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # Some callables cannot be asked; the worker will see.
    given = () if isinstance(found, type) else (None, None)
    for arguments in ((), given):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return
    what = "its constructor needs arguments, give a factory" if isinstance(found, type) else _KINDS
    raise InvalidInput("processor", target, f"it takes {signature}; {what}")


def _kind(found: object) -> str:
    if isinstance(found, ModuleType):
        return "a module"
    return f"an object of {type(found).__name__}"


_NAMES_SHOWN: Final = 5
