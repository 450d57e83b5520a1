"""A home of Spark in which Python starts sooner. No Spark is started: queries of other tests run in one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import app
from shoal.core.errors import InvalidInput
from shoal.spark.home import given_quick_home, is_quick, quick_home, spark_home


def test_python_finds_the_installed_package_in_it_and_all_that_spark_adds(tmp_path: Path) -> None:
    home = quick_home(tmp_path / "of" / "spark")
    library = home / "python" / "lib"
    archives = [str(archive) for archive in library.iterdir()]
    assert len(archives) == 2, "the package, and what Java is called by"
    program = "import pyspark, py4j; print(pyspark.__file__); print(py4j.__file__); print(pyspark.__cached__)"
    said = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(archives)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert said[0] == str(library / "pyspark.zip" / "pyspark" / "__init__.py")
    assert said[1].startswith(str(library / "py4j-"))
    assert Path(said[2]).is_file(), "it is compiled once"
    assert (home / "jars").resolve() == (spark_home() / "jars").resolve()
    assert (home / "python" / "pyspark" / "shell.py").is_file(), "what bin/pyspark begins with"


def test_the_command_prints_it_and_a_second_call_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    first = CliRunner().invoke(app, ["spark-home", str(folder)])
    assert (first.exit_code, first.stdout) == (0, f"{folder}\n")
    made = folder.stat()
    again = CliRunner().invoke(app, ["spark-home", "--json", str(folder)])
    assert json.loads(again.stdout) == {"spark_home": str(folder)}
    assert folder.stat() == made
    assert [path.name for path in tmp_path.iterdir()] == ["spark"], "nothing is left beside it"


def test_what_is_there_already_is_left_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "notes"
    mine.mkdir()
    (mine / "note").write_text("mine")
    with pytest.raises(InvalidInput, match="holds something else"):
        quick_home(mine)
    assert [path.name for path in mine.iterdir()] == ["note"]
    older = quick_home(tmp_path / "older")
    link = older / "python" / "lib" / "pyspark.zip" / "pyspark"
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    assert not is_quick(older)
    refused = CliRunner().invoke(app, ["spark-home", str(older)])
    assert refused.exit_code == 6
    assert "of another pyspark" in refused.stderr
    assert link.readlink() == tmp_path / "gone"


def test_a_home_may_be_made_in_an_empty_folder_and_not_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert is_quick(quick_home(tmp_path / "empty"))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"folder='.*/file/home': cannot be made \(.*\); name a folder"):
        quick_home(tmp_path / "file" / "home")


def test_a_home_is_given_by_the_environment_only_if_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert given_quick_home() is None
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert given_quick_home() is None
    monkeypatch.setenv("SPARK_HOME", str(quick_home(tmp_path / "home")))
    assert given_quick_home() == tmp_path / "home"
