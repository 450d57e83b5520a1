"""What Aliyun tests its own client with, against a server of ours; of that, all that needs no search.

It is in no package. Where its repository is not at hand, those tests are left out, and that is said; what
they check is checked here all the same, told in our own words:

| theirs | ours |
|---|---|
| e2e/test_compress_e2e.py: test_pull_logs, test_put_log_raw, test_put_logs | `calls_program.raw`, `.logs` |
| e2e/test_compress_e2e.py: test_get_log (search) | refused in words: `calls_program.logs` |
| sample_consumer.py | `samples_program.shared_by_two` |
| consumer_group_examples/copy_data_to_logstore.py | `samples_program.copied` |
| consumer_group_examples/keyword_monitor_multiple_logstores.py | `samples_program.several_logstores_…` |
| consumer_group_examples/client_worker_with_query.py (SPL) | refused in words: `calls_program.logs` |
| sample.py: logstores, puts, pulls, groups | `calls_program.logstores`, `.logs`, `.groups` |
| unit/test_auth.py: vectors of version 4 | `test_signatures` |
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from shoal import Hub
from shoal.server.sls.records import SCHEMA
from shoal.testing.aliyun import NoClient, Program, client_environment, client_python
from shoal.testing.members import eventually
from tests.sls.running import Reader, Start, running
from tests.sls.upstream import NotThere, put_into

PYTEST = "pytest==9.2.0"
WITHIN_S = 60


def test_what_the_samples_do_with_the_consumer_library(url: str, start: Start) -> None:
    written, _ = (program := start("samples_program.py", url)).communicate(timeout=120)
    assert program.returncode == 0, written


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of their files."""
    folder = tmp_path_factory.mktemp("upstream")
    try:
        put_into(folder)
    except NotThere as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture
def environment(url: str) -> dict[str, str]:
    return {
        **client_environment(),
        "http_proxy": url,
        "LOG_TEST_ENDPOINT": "loghub.test",
        "LOG_TEST_ACCESS_KEY_ID": "id",
        "LOG_TEST_ACCESS_KEY_SECRET": "secret",
        "LOG_TEST_PROJECT": "proj",
        "LOG_TEST_LOGSTORE": "store",
        "ALIYUN_LOG_SAMPLE_ENDPOINT": "loghub.test",
        "ALIYUN_LOG_SAMPLE_ACCESSID": "id",
        "ALIYUN_LOG_SAMPLE_ACCESSKEY": "secret",
        "ALIYUN_LOG_SAMPLE_PROJECT": "proj",
        "SLS_ENDPOINT": "loghub.test",
        "SLS_AK_ID": "id",
        "SLS_AK_KEY": "secret",
        "SLS_PROJECT": "proj",
        "SLS_LOGSTORE": "store",
        "SLS_LOGSTORE_TO": "copies",
        "SLS_CG": "group",
        "SLS_ENDPOINTS": "loghub.test",
        "SLS_PROJECTS": "proj",
        "SLS_LOGSTORES": "store,other",
    }


def test_their_tests_of_compression(theirs: Path, hub: Hub, environment: dict[str, str]) -> None:
    python = python_with_pytest()
    hub.create_stream("proj/store", shards=2, schema=SCHEMA)
    words = ["-q", "-p", "no:cacheprovider", "-k", "not test_get_log", "tests/e2e/test_compress_e2e.py"]
    ran = subprocess.run(
        [python, "-m", "pytest", *words],
        cwd=theirs,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout
    assert hub.stats("proj/store").appended == 6


def test_their_samples_copy_a_logstore_and_watch_several(
    theirs: Path, hub: Hub, environment: dict[str, str], start: Start
) -> None:
    python = client_python()
    for name in ("store", "other", "copies"):
        hub.create_stream(f"proj/{name}", shards=1, schema=SCHEMA)
    rows = [{"time": i, "topic": "t", "contents": [("status", b"503"), ("n", b"%d" % i)]} for i in range(3)]
    quiet = {"time": 9, "topic": "t", "contents": [("status", b"200")]}
    hub.append("proj/store", 0, rows)
    hub.append("proj/other", 0, [rows[0], quiet, rows[1]])

    def begun(name: str) -> Program:
        return subprocess.Popen(
            [python, "-u", theirs / "tests" / "consumer_group_examples" / name],
            cwd=theirs,
            env=environment | {"SLS_CG": name[:4]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with (
        running(begun("copy_data_to_logstore.py")) as copying,
        running(begun("keyword_monitor_multiple_logstores.py")) as watching,
    ):
        eventually(lambda: hub.stats("proj/copies").appended == 3, "all is copied", WITHIN_S)
        eventually(lambda: detected(watching) == 5, "what matches is found in both", WITHIN_S)
        hub.append("proj/other", 0, [quiet, rows[2]])
        eventually(lambda: detected(watching) == 6, "what comes then is, too", WITHIN_S)
    copies = hub.read("proj/copies", 0, 0).to_arrow()
    assert copies.column("topic").to_pylist() == ["t_copied"] * 3
    assert copies.column("contents").to_pylist() == [row["contents"] for row in rows]
    assert "Traceback" not in "".join(copying.lines + watching.lines)


def detected(watching: Reader) -> int:
    """How many logs the sample says that it has found."""
    found = [re.search(r"Keyword detected for shard 0, count: (\d+),", line) for line in list(watching.lines)]
    return sum(int(one[1]) for one in found if one)


@pytest.mark.skipif(
    int(os.environ.get("SHOAL_SLS_ROUNDS", "1")) == 1, reason="it sleeps for a minute; `make soak` runs it"
)
@pytest.mark.timeout(420)
def test_their_sample_of_a_group(theirs: Path, hub: Hub, environment: dict[str, str], start: Start) -> None:
    hub.create_stream("proj/any", shards=1)
    ran = subprocess.run(
        [client_python(), "-u", theirs / "tests" / "sample_consumer.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def python_with_pytest() -> Path:
    """The client's interpreter, with the one thing more that its tests need."""
    try:
        return client_python(PYTEST)
    except NoClient as error:
        pytest.skip(str(error))
