"""The environment of Aliyun's client, which is not ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.testing.aliyun import NoClient, client_python


def test_packages_that_only_our_environment_has_are_not_taken_for_the_clients_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "ours"
    (ours / "aliyun").mkdir(parents=True)
    for module in ("zstd.py", "aliyun/__init__.py", "aliyun/log.py"):
        (ours / module).touch()
    # As another test of the same run may have left it: those of Spark do, for their workers.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ours), *filter(None, sys.path)]))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "theirs"], check=True)
    monkeypatch.setenv("SHOAL_SLS_VENV", str(tmp_path / "theirs"))
    with pytest.raises(NoClient, match="No module named pip"):
        client_python()
