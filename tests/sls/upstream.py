"""The tests and samples of Aliyun's own repository, as they are there: not in its packages, so from a
checkout in the folder SHOAL_SLS_UPSTREAM, or else from where its source is public."""

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

REPOSITORY: Final = "aliyun/aliyun-log-python-sdk"
COMMIT: Final = "3e3a611491ed14023a8bfb77cca082c9cd166833"
FILES: Final = {
    "tests/__init__.py": "6c32678f590e13ffc3fa2c8d32346cd6bfec33c9",
    "tests/conftest.py": "935f267ba45930c10c188bf3c9d6747bec0a4b50",
    "tests/_helpers/__init__.py": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "tests/_helpers/env.py": "eb0409f161594eeeb575033dab07d5718d278c60",
    "tests/_helpers/fakes.py": "0e5367f05a4081c797443e3e53932b56990a6aeb",
    "tests/e2e/__init__.py": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    "tests/e2e/test_compress_e2e.py": "7a161a0151a884e0ba622611659bf1d0ed26ceaf",
    "tests/sample_consumer.py": "e41a62edceeb1fef3514ea65ec73ba08961f52bc",
    "tests/consumer_group_examples/copy_data_to_logstore.py": "4c13f22c0e1fca85fac31a600ac5e37893da880e",
    "tests/consumer_group_examples/keyword_monitor_multiple_logstores.py": (
        "f3b725706d8cf19c1c8e54d436d6f70fb117a384"
    ),
}
"""What is run, and what that needs; each with its number in Git."""
_WITHIN_S: Final = 10


class NotThere(Exception):
    """It cannot be had; the text says why."""


def put_into(folder: Path) -> None:
    """Copy the files, unchanged, into a folder."""
    for path, number in FILES.items():
        content = _content(path)
        found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if found != number:
            raise NotThere(f"{path} of {REPOSITORY} is not that of commit {COMMIT}")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def _content(path: str) -> bytes:
    checkout = os.environ.get("SHOAL_SLS_UPSTREAM")
    try:
        if checkout:
            return (Path(checkout) / path).read_bytes()
        url = f"https://raw.githubusercontent.com/{REPOSITORY}/{COMMIT}/{path}"
        with urllib.request.urlopen(url, timeout=_WITHIN_S) as answer:
            content: bytes = answer.read()
            return content
    except (OSError, urllib.error.URLError) as error:
        raise NotThere(f"{path} of {REPOSITORY} cannot be had ({error}); see SHOAL_SLS_UPSTREAM") from error
