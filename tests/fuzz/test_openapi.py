"""Schemathesis on the document that a server shows: what it says of requests and answers is so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.native.calls import PREFIX
from shoal.server.options import ServerOptions
from shoal.testing.serving import served
from tests.fuzz.conftest import EXAMPLES

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "unsupported_method",
)


@pytest.mark.timeout(300 + 10 * EXAMPLES)
def test_every_call_keeps_to_the_document(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("schemathesis"))
    phases = "coverage,fuzzing" if EXAMPLES else "fuzzing"
    with served(f"sqlite:///{tmp_path}/shoal.db", ServerOptions(port=0, wait_s_max=0.05)) as url:
        with shoal.connect(url) as hub:
            hub.create_stream("orders", shards=2)
            hub.append("orders", 0, [b"a", b"b"])
            hub.create_group("orders", "billing")
        command = [program, "run", f"{url}{PREFIX}/openapi.json", "--checks", ",".join(CHECKS)]
        command += ["--phases", phases, "--max-examples", str(EXAMPLES or 4)]
        command += ["--suppress-health-check", "all", "--generation-database", "none", "--no-color"]
        command += [] if EXAMPLES else ["--seed", "7"]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={
                **os.environ,
                "SCHEMATHESIS_HOOKS": "tests.fuzz.frames",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
