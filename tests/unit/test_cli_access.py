"""`shoal user|key|policy`: what is said, and what is not."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shoal import cli
from shoal.server.sealing import VARIABLE, Seal, new_master_key
from shoal.store.sql.store import SQLStore

DOCUMENT = {
    "Version": "1",
    "Statement": [{"Effect": "Allow", "Action": ["log:Get*"], "Resource": ["acs:log:*:*:project/shop/*"]}],
}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'shoal.db'}"
    monkeypatch.setenv("SHOAL_STORE", url)
    monkeypatch.setenv(VARIABLE, new_master_key())
    return url


def run(*words: str, given: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, list(words), input=given)
    return result.exit_code, result.stdout, result.stderr


def told(*words: str) -> Any:
    code, out, _ = run(*words, "--json")
    assert code == 0
    return json.loads(out)


def test_a_user_gets_a_key_and_a_policy_and_loses_them(store: str) -> None:
    assert "access control is on" in run("user", "create", "ann")[2]
    assert "access control" not in run("user", "create", "bob")[2]
    made = told("key", "create", "ann")
    assert run("policy", "create", "readers", "-", given=json.dumps(DOCUMENT))[0] == 0
    assert run("policy", "create", "all", "--allow", "log:*", "--deny", "log:DeleteProject")[0] == 0
    assert run("policy", "attach", "readers", "ann")[0] == 0
    assert told("user", "show", "ann")["policies"] == ["readers"]
    assert told("policy", "show", "readers")["document"] == DOCUMENT
    assert [one["policy"] for one in told("policy", "list")] == ["all", "readers"]
    assert run("key", "disable", made["key"])[0] == 0
    (key,) = told("key", "list", "ann")
    assert (key["key"], key["enabled"]) == (made["key"], False)
    assert run("key", "enable", made["key"])[0] == 0
    opened = SQLStore.open(store)
    seal = Seal.from_environment()
    assert seal is not None
    assert seal.open(made["key"], opened.access.list_keys("ann")[0].sealed) == made["secret"]
    opened.close()
    for words in (("user", "list"), ("user", "show", "ann"), ("key", "list"), ("policy", "list")):
        assert made["secret"] not in str(run(*words))
    assert run("policy", "detach", "readers", "ann")[0] == 0
    assert run("policy", "delete", "readers", "--yes")[0] == 0
    assert run("key", "delete", made["key"], "--yes")[0] == 0
    assert run("user", "delete", "ann", "--yes")[0] == 0
    assert "no user is left" in run("user", "delete", "bob", "--yes")[2]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("user", "show", "nobody"), 3),
        (("user", "delete", "nobody", "--yes"), 3),
        (("key", "create", "nobody"), 3),
        (("key", "delete", "SK1", "--yes"), 3),
        (("policy", "show", "none"), 3),
        (("policy", "attach", "none", "nobody"), 3),
        (("user", "create", "a/b"), 6),
        (("policy", "create", "p"), 2),
        (("policy", "create", "p", "--allow", "log:Nothing"), 6),
        (("policy", "create", "p", "--allow", "log:*", "--on", "project/p"), 6),
        (("policy", "create", "p", "/missing.json"), 6),
        (("user", "list", "--store", "http://127.0.0.1:1"), 6),
    ],
)
def test_what_cannot_be_done_is_said(store: str, words: tuple[str, ...], code: int) -> None:
    assert run(*words)[0] == code


def test_a_key_is_not_made_without_a_master_key(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert run("user", "create", "ann")[0] == 0
    code, _, text = run("key", "create", "ann")
    assert code == 6
    assert "shoal key master" in text
    Seal(run("key", "master")[1].strip())
