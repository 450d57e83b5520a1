"""A declarative pipeline of Spark over Shoal: records of one stream to a table, and from there to another."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import shoal

HERE = Path(__file__).parent


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = f"sqlite:///{folder}/shoal.db"
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=2)
            hub.create_stream("large-orders", shards=2)
            with hub.producer("orders") as producer:
                for number in range(1_000):
                    producer.send(str(number), key=f"customer-{number % 10}")
            run_pipeline(folder, url)
            found: dict[bytes | None, list[int]] = {}
            for shard in hub.describe_stream("large-orders").shards:
                for record in hub.read("large-orders", shard.id, 0):
                    found.setdefault(record.key, []).append(int(record.value))
        print(f"large orders: {sum(map(len, found.values()))}")
        print(f"keys: {len(found)}, each in order: {all(v == sorted(v) for v in found.values())}")


def run_pipeline(folder: Path, url: str) -> None:
    """`spark-pipelines run`, in a folder that holds nothing else; its own words go to standard error."""
    shutil.copytree(HERE / "transformations", folder / "transformations")
    spec = (HERE / "spark-pipeline.yml").read_text().replace("STORAGE", (folder / "storage").as_uri())
    (folder / "spark-pipeline.yml").write_text(spec)
    program = Path(sys.executable).with_name("spark-pipelines")
    environment = os.environ | {"SHOAL_HUB": url, "PYSPARK_PYTHON": sys.executable}
    subprocess.run(
        [str(program), "run", "--spec", "spark-pipeline.yml"],
        cwd=folder,
        env=environment,
        check=True,
        stdout=sys.stderr,
    )


if __name__ == "__main__":
    main()
