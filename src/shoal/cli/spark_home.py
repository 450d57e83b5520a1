"""`shoal spark-home`: a home of Spark in which its Python processes start sooner. Starts no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import AsJson
from shoal.spark.home import quick_home


def spark_home(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made if it is not there.")],
    *,
    json: AsJson = False,
) -> None:
    """Make a home for Spark in which its Python processes start sooner, and print it.

    export SPARK_HOME=$(shoal spark-home FOLDER), before a session starts. All of it are links to the
    installed pyspark, which each of Spark's Python processes otherwise compiles anew out of an archive.
    """
    home = str(quick_home(folder.absolute()))
    if json:
        output.print_json({"spark_home": home})
    else:
        typer.echo(home)
