"""Where Spark is: the installed package; and a home like it, in which its Python processes start sooner.

Spark gives each of its Python processes, of which a query starts half a dozen, the package as a zip file;
what is in there each of them compiles anew, for half a second or more. In the quick home the same package
stands as the folder that it was installed as, compiled once; nothing else differs, and all of it are links. A
home is for one machine: what sends the zip file elsewhere (YARN) takes no folder for it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Final

from shoal.core.errors import InvalidInput, MissingPackage

_LINKED: Final = ("bin", "conf", "jars", "sbin", "python/pyspark")
"""The last has no package but the program with which Spark's shell begins."""
_LIBRARY: Final = Path("python", "lib")
_UNZIPPED: Final = _LIBRARY / "pyspark.zip"


def spark_home() -> Path:
    """Where the installed pyspark package is."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingPackage(part="a home of Spark", package="pyspark", extra="spark")
    return Path(found.origin).parent


def quick_home(folder: Path) -> Path:
    """The folder as a quick home, for SPARK_HOME; one that is there already stays as it is."""
    if is_quick(folder):
        return folder
    if folder.is_symlink() or (folder.exists() and not _is_empty(folder)):
        is_older = (folder / _UNZIPPED / "pyspark").is_symlink()
        raise InvalidInput(
            "folder",
            str(folder),
            "it is of another pyspark than the one installed here; remove it, or name a new folder"
            if is_older
            else "it is there, and holds something else; name a new folder",
        )
    installed = spark_home()
    if not (installed / _LIBRARY).is_dir():
        raise InvalidInput("pyspark", str(installed), "it is only Spark's client; install pyspark itself")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
            make_quick_home(Path(name) / "home").rename(folder)
    except OSError as error:
        if not is_quick(folder):  # Or another made it meanwhile.
            remedy = f"cannot be made ({error.strerror}); name a folder in one that you can write to"
            raise InvalidInput("folder", str(folder), remedy) from error
    return folder


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def make_quick_home(folder: Path) -> Path:
    """Make one, in a folder that is not there yet."""
    installed = spark_home()
    library = folder / _LIBRARY
    library.mkdir(parents=True)
    for name in _LINKED:
        if (installed / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(installed / name)
    for archive in (installed / _LIBRARY).glob("*.zip"):
        (library / archive.name).symlink_to(archive)
    # Python takes a folder wherever it takes a zip file, whatever its name is.
    unzipped = folder / _UNZIPPED
    unzipped.unlink()
    unzipped.mkdir()
    (unzipped / "pyspark").symlink_to(installed)
    return folder


def given_quick_home() -> Path | None:
    """The home that SPARK_HOME names, if it is a quick one of the installed package."""
    given = os.environ.get("SPARK_HOME")
    return Path(given) if given and is_quick(Path(given)) else None


def is_quick(home: Path) -> bool:
    """Whether it is a quick home of the installed package: the parts of an older one may be gone."""
    installed = spark_home()
    package = home / _UNZIPPED / "pyspark"
    return (
        package.is_symlink()
        and package.resolve() == installed.resolve()
        and (home / "jars").resolve() == (installed / "jars").resolve()
        and (home / "python" / "pyspark").resolve() == (installed / "python" / "pyspark").resolve()
        and _archives(home) == _archives(installed)
    )


def _archives(home: Path) -> set[str]:
    return {archive.name for archive in (home / _LIBRARY).glob("*.zip")}
