"""Where Spark is: the installed pyspark package, and a home like it in which Python starts sooner.

Spark gives its Python processes, of which a query starts half a dozen, the package as a zip file; what is in
there is compiled anew by each of them, for a second or more. In the quick home the same package stands as the
folder that it was installed as, compiled once; nothing else differs. For tests and examples only.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from shoal.testing.machine import NotInstalled


def spark_home() -> Path:
    """Where the installed pyspark package is."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise NotInstalled("pyspark is not installed; pip install 'shoal[spark]' brings it")
    return Path(found.origin).parent


def make_quick_home(folder: Path) -> Path:
    """Make a home for SPARK_HOME, of links to the installed one, in a folder that is not there yet."""
    installed = spark_home()
    library = folder / "python" / "lib"
    library.mkdir(parents=True)
    for name in ("bin", "jars", "sbin"):
        if (installed / name).exists():
            (folder / name).symlink_to(installed / name)
    for archive in (installed / "python" / "lib").glob("*.zip"):
        (library / archive.name).symlink_to(archive)
    # Python takes a folder wherever it takes a zip file, whatever its name is.
    unzipped = library / "pyspark.zip"
    unzipped.unlink()
    unzipped.mkdir()
    (unzipped / "pyspark").symlink_to(installed)
    return folder


def given_quick_home() -> Path | None:
    """The home that SPARK_HOME names, if it is a quick one of the installed package."""
    home = Path(os.environ.get("SPARK_HOME", ""))
    is_quick = (home / "python" / "lib" / "pyspark.zip" / "pyspark").is_symlink()
    return home if is_quick and (home / "jars").resolve() == (spark_home() / "jars").resolve() else None
