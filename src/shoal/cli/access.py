"""`shoal user|key|policy …`: who may do what on servers of a store. One call of the store each.

They open the store itself, not a server: who administers access has the database.
"""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.access_port import AccessStore
from shoal.cli import output
from shoal.cli.asking import Yes, confirm
from shoal.cli.options import DEFAULT_HUB, AsJson
from shoal.core.access import AccessKey, Policy, User, made_statement
from shoal.core.errors import InvalidInput, InvalidUrl, MissingPackage, UnknownPolicy, UnknownUser
from shoal.core.names import checked_name
from shoal.remote.address import is_remote
from shoal.store.sql.store import SQLStore
from shoal.wire.policies import parse_policy, policy_text

users = typer.Typer(help="Create, show and delete users of servers.", no_args_is_help=False)
keys = typer.Typer(help="Create, show, disable and delete keys of users.", no_args_is_help=False)
policies = typer.Typer(help="Create, show, attach and delete policies.", no_args_is_help=False)

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="SHOAL_STORE",
        metavar="URL",
        help="The database of the servers: sqlite:///file.db, postgresql://…, mysql://…",
    ),
]
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="A user.", show_default=False)]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The id of a key.", show_default=False)]
PolicyArgument = Annotated[str, typer.Argument(metavar="POLICY", help="A policy.", show_default=False)]


# --- Users. -----------------------------------------------------------------------------------------


@users.command("create")
def create_user(user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Make a user, who may do nothing yet. From the first one on, servers ask everyone for a key."""
    checked_name("user", user)
    with _opened(store) as access:
        is_first = not access.has_users()
        access.create_user(user, _now_ms())
    _done(json, {"user": user}, f"created user {user}")
    if is_first:
        output.note("access control is on: servers of this store ask for keys, and need SHOAL_MASTER_KEY")


@users.command("list")
def list_users(*, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Show all users."""
    with _opened(store) as access:
        found = access.list_users()
    if json:
        output.print_json([_user_json(user) for user in found])
    elif found:
        table = output.plain_table("user", "created", "keys", "policies")
        for user in found:
            names = ", ".join(user.keys), ", ".join(user.policies)
            table.add_row(user.name, output.moment(user.created_ms), *names)
        output.screen().print(table)
    else:
        output.note("there are no users: servers let everyone in, and listen on this machine alone")


@users.command("show")
def show_user(user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Show a user's keys and policies."""
    with _opened(store) as access:
        found = next((one for one in access.list_users() if one.name == user), None)
    if found is None:
        raise UnknownUser(user)
    text = f"{user}  keys: {', '.join(found.keys) or 'none'}  policies: {', '.join(found.policies) or 'none'}"
    _done(json, _user_json(found), text)


@users.command("delete")
def delete_user(
    user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, yes: Yes = False, json: AsJson = False
) -> None:
    """Remove a user and all its keys. Asks first; where nobody can be asked, --yes is needed."""
    with _opened(store) as access:
        if not yes:
            confirm(f"Delete user {user} and its keys?", act="deleting", undone="nothing was deleted")
        access.delete_user(user)
        is_last = not access.has_users()
    _done(json, {"user": user, "deleted": True}, f"deleted user {user}")
    if is_last:
        output.note("no user is left: servers that listen on this machine alone let everyone in again")


# --- Keys. ------------------------------------------------------------------------------------------


@keys.command("master")
def master_key() -> None:
    """Make a master key, for SHOAL_MASTER_KEY: it seals the secrets of all keys."""
    typer.echo(_sealing().new_master_key())


@keys.command("create")
def create_key(user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Make a key of a user. Its secret is shown now, and never again."""
    sealing = _sealing()
    seal = sealing.Seal.from_environment()
    if seal is None:
        raise InvalidInput(sealing.VARIABLE, "not set", "'shoal key master' makes one; servers need the same")
    key_id, secret = sealing.new_key_id(), sealing.new_secret()
    key = AccessKey(
        id=key_id, user=user, is_enabled=True, created_ms=_now_ms(), sealed=seal.seal(key_id, secret)
    )
    with _opened(store) as access:
        access.create_key(key)
    text = f"key    {key_id}\nsecret {secret}\nconnect with http://{key_id}:SECRET@host:7400"
    _done(json, {"key": key_id, "secret": secret, "user": user}, text)
    output.note("the secret is not shown again")


@keys.command("list")
def list_keys(
    user: Annotated[
        str | None, typer.Argument(metavar="[USER]", help="Of one user alone.", show_default=False)
    ] = None,
    *,
    store: StoreUrl = DEFAULT_HUB,
    json: AsJson = False,
) -> None:
    """Show all keys, without their secrets."""
    with _opened(store) as access:
        found = access.list_keys(user)
    if json:
        output.print_json([_key_json(key) for key in found])
    elif found:
        table = output.plain_table("key", "user", "state", "created")
        for key in found:
            table.add_row(key.id, key.user, _state(key), output.moment(key.created_ms))
        output.screen().print(table)
    else:
        output.note("there are no keys")


@keys.command("enable")
def enable_key(key: KeyArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Let a key be used again."""
    with _opened(store) as access:
        access.enable_key(key, True)
    _done(json, {"key": key, "enabled": True}, f"enabled key {key}")


@keys.command("disable")
def disable_key(key: KeyArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Refuse a key, on every server within two seconds."""
    with _opened(store) as access:
        access.enable_key(key, False)
    _done(json, {"key": key, "enabled": False}, f"disabled key {key}")


@keys.command("delete")
def delete_key(
    key: KeyArgument, *, store: StoreUrl = DEFAULT_HUB, yes: Yes = False, json: AsJson = False
) -> None:
    """Remove a key. Asks first; where nobody can be asked, --yes is needed."""
    with _opened(store) as access:
        if not yes:
            confirm(f"Delete key {key} for good?", act="deleting", undone="nothing was deleted")
        access.delete_key(key)
    _done(json, {"key": key, "deleted": True}, f"deleted key {key}")


# --- Policies. --------------------------------------------------------------------------------------


@policies.command("create")
def create_policy(
    policy: PolicyArgument,
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="Its JSON, as Aliyun writes it; - reads standard input."),
    ] = None,
    *,
    store: StoreUrl = DEFAULT_HUB,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="ACTION", help="Instead of a file: log:GetCursorOrData, log:*")
    ] = None,
    deny: Annotated[list[str] | None, typer.Option(metavar="ACTION", help="The same.")] = None,
    on: Annotated[
        list[str] | None, typer.Option(metavar="RESOURCE", help="acs:log:*:*:project/shop/*; else all.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change one that is there.")] = False,
    json: AsJson = False,
) -> None:
    """Make a policy, from a file or from --allow, --deny and --on."""
    checked_name("policy", policy)
    text = _document(file, allow or [], deny or [], on or ["*"])
    parse_policy(text)
    with _opened(store) as access:
        access.save_policy(policy, text, _now_ms(), replace=replace)
    _done(json, {"policy": policy}, f"saved policy {policy}")


@policies.command("list")
def list_policies(*, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Show all policies, and whose they are."""
    with _opened(store) as access:
        found = access.list_policies()
    if json:
        output.print_json([_policy_json(policy) for policy in found])
    elif found:
        table = output.plain_table("policy", "created", "users")
        for policy in found:
            table.add_row(policy.name, output.moment(policy.created_ms), ", ".join(policy.users))
        output.screen().print(table)
    else:
        output.note("there are no policies")


@policies.command("show")
def show_policy(policy: PolicyArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False) -> None:
    """Show a policy as it was written."""
    with _opened(store) as access:
        found = next((one for one in access.list_policies() if one.name == policy), None)
    if found is None:
        raise UnknownPolicy(policy)
    _done(json, _policy_json(found), found.text)


@policies.command("delete")
def delete_policy(
    policy: PolicyArgument, *, store: StoreUrl = DEFAULT_HUB, yes: Yes = False, json: AsJson = False
) -> None:
    """Remove a policy that nobody has. Asks first; where nobody can be asked, --yes is needed."""
    with _opened(store) as access:
        if not yes:
            confirm(f"Delete policy {policy} for good?", act="deleting", undone="nothing was deleted")
        access.delete_policy(policy)
    _done(json, {"policy": policy, "deleted": True}, f"deleted policy {policy}")


@policies.command("attach")
def attach(
    policy: PolicyArgument, user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False
) -> None:
    """Give a user a policy."""
    with _opened(store) as access:
        access.attach(user, policy)
    _done(json, {"policy": policy, "user": user, "attached": True}, f"{user} has policy {policy}")


@policies.command("detach")
def detach(
    policy: PolicyArgument, user: UserArgument, *, store: StoreUrl = DEFAULT_HUB, json: AsJson = False
) -> None:
    """Take a policy away from a user."""
    with _opened(store) as access:
        access.detach(user, policy)
    _done(json, {"policy": policy, "user": user, "attached": False}, f"{user} has policy {policy} no more")


@contextmanager
def _opened(store: str) -> Iterator[AccessStore]:
    if is_remote(store):
        raise InvalidUrl("store", "http://…", "users are in the database of a server: give its URL")
    opened = SQLStore.open(store)
    try:
        yield opened.access
    finally:
        opened.close()


def _sealing() -> Any:
    try:
        # An optional package: who does not serve need not have it.
        from shoal.server import sealing  # noqa: PLC0415
    except ModuleNotFoundError as error:
        name = error.name or "cryptography"
        raise MissingPackage(part="shoal key", package=name, extra="server") from error
    return sealing


def _document(file: str | None, allow: list[str], deny: list[str], on: list[str]) -> str:
    if (file is None) == (not allow and not deny):
        raise typer.BadParameter("give a file, or --allow and --deny")
    if file is None:
        made = [
            made_statement(is_allow=is_allow, actions=actions, resources=on)
            for is_allow, actions in ((True, allow), (False, deny))
            if actions
        ]
        return policy_text(made)
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", file, str(error)) from error


def _done(json: bool, told: dict[str, Any], text: str) -> None:
    if json:
        output.print_json(told)
    else:
        typer.echo(text)


def _user_json(user: User) -> dict[str, Any]:
    return {
        "user": user.name,
        "created": user.created_ms,
        "keys": list(user.keys),
        "policies": list(user.policies),
    }


def _key_json(key: AccessKey) -> dict[str, Any]:
    return {"key": key.id, "user": key.user, "enabled": key.is_enabled, "created": key.created_ms}


def _policy_json(policy: Policy) -> dict[str, Any]:
    return {
        "policy": policy.name,
        "created": policy.created_ms,
        "users": list(policy.users),
        "document": json_text.loads(policy.text),
    }


def _state(key: AccessKey) -> str:
    return "enabled" if key.is_enabled else "disabled"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
