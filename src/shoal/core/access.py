"""Who may do what: policies as Aliyun writes them, and the one decision about them. Dry.

A policy is a list of statements; a statement allows or denies actions on resources, both with wildcards.
Nothing is allowed that no statement allows, and what one denies no other can allow. This room knows no
calls: which action on which resource a call needs, each dialect has in a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from shoal.core.errors import InvalidInput
from shoal.core.model import StreamName

ACTIONS: Final = frozenset(
    {
        "log:CreateProject",
        "log:GetProject",
        "log:ListProject",
        "log:UpdateProject",
        "log:DeleteProject",
        "log:CreateLogStore",
        "log:GetLogStore",
        "log:ListLogStores",
        "log:UpdateLogStore",
        "log:DeleteLogStore",
        "log:ListShards",
        "log:SplitShard",
        "log:MergeShards",
        "log:GetCursorOrData",
        "log:PostLogStoreLogs",
        "log:CreateConsumerGroup",
        "log:ListConsumerGroup",
        "log:UpdateConsumerGroup",
        "log:DeleteConsumerGroup",
        "log:ConsumerGroupUpdateCheckPoint",
        "log:ConsumerGroupHeartBeat",
        "log:GetConsumerGroupCheckPoint",
    }
)
"""All that there are, by Aliyun's names."""

EVERYWHERE: Final = "*"
"""As a resource of a request: all there is. See `Rights.allows`."""

_PREFIX: Final = "acs:log:"
_FORM: Final = "'*', or acs:log:REGION:OWNER:project/…, where REGION and OWNER may be * or left out"
_PATH: Final = "project/+/logstore/+/consumergroup/+"
"""The paths that there are: this one, up to any of its names. A plus is a name: some characters, no slash."""
_FITS_NOTHING: Final = (
    "nothing that there is fits it; write acs:log:*:*:project/P, …/project/P/logstore/STREAM or "
    "…/project/P/logstore/STREAM/consumergroup/GROUP, with * for any characters anywhere"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One line of a policy: patterns of actions and resources."""

    is_allow: bool
    actions: tuple[str, ...]
    resources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """A key of a user. Its secret is sealed: see `server.sealing`."""

    id: str
    user: str
    is_enabled: bool
    created_ms: int
    sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Someone with keys and policies, by their names."""

    name: str
    created_ms: int
    keys: tuple[str, ...]
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy by its name, as it was written, and whose it is."""

    name: str
    text: str
    created_ms: int
    users: tuple[str, ...]


class Rights:
    """What the statements of one user add up to."""

    def __init__(self, statements: Iterable[Statement]) -> None:
        found = list(statements)
        self._allows = [one for one in found if one.is_allow]
        self._denies = [one for one in found if not one.is_allow]

    def allows(self, action: str, resource: str) -> bool:
        """Whether an action on a resource is allowed. EVERYWHERE is allowed if a statement says so of all
        there is, and none denies the action anywhere."""
        if resource == EVERYWHERE:
            if self.denies(action, resource):
                return False
            return any(
                _covers(one.actions, action) and any(_is_all(pattern) for pattern in one.resources)
                for one in self._allows
            )
        if self.denies(action, resource):
            return False
        return any(_applies(one, action, resource) for one in self._allows)

    def denies(self, action: str, resource: str) -> bool:
        """Whether a statement denies it in so many words: more than that none allows it."""
        if resource == EVERYWHERE:
            return any(_covers(one.actions, action) for one in self._denies)
        return any(_applies(one, action, resource) for one in self._denies)

    def meets(self, actions: Sequence[str], resource: str, own: str = "") -> bool:
        """Whether one of these actions is allowed, and `own`, the call's own, is not denied."""
        if own and self.denies(own, resource):
            return False
        return any(self.allows(action, resource) for action in actions)


def made_statement(*, is_allow: bool, actions: Sequence[str], resources: Sequence[str]) -> Statement:
    """A statement whose patterns can be understood, or InvalidInput."""
    for action in actions:
        if not any(matches(action, known) for known in ACTIONS):
            raise InvalidInput("Action", action, "no action that there is; see docs/access.md")
    for resource in resources:
        _, _, path = _parts(resource)
        if not _can_match(path):
            raise InvalidInput("Resource", resource, _FITS_NOTHING)
    if not actions or not resources:
        raise InvalidInput("Statement", "nothing", "a statement names actions and resources")
    return Statement(is_allow=is_allow, actions=tuple(actions), resources=tuple(resources))


# --- Resources. -------------------------------------------------------------------------------------


def project_resource(project: str) -> str:
    return f"{_PREFIX}::project/{project}"


def stream_resource(name: StreamName) -> str:
    return f"{project_resource(name.project)}/logstore/{name.stream}"


def group_resource(name: StreamName, group: str) -> str:
    return f"{stream_resource(name)}/consumergroup/{group}"


def matches(pattern: str, text: str) -> bool:
    """Whether `*` (any characters, slashes too) and `?` (one) of a pattern can be filled to give the text.

    Goes back to the last star alone, so that no pattern takes longer than both lengths multiplied.
    """
    at = place = 0
    star, resume = -1, 0
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, resume = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return all(left == "*" for left in pattern[at:])


def _can_match(pattern: str) -> bool:
    """Whether any path that there is fits a pattern. Follows all of them at once: a state is how much of
    _PATH has been written."""
    states = {0}
    for sign in pattern:
        if sign == "*":
            states = set(range(min(states), len(_PATH) + 1))
        else:
            states = {after for state in states for after in _written(state, sign)}
        if not states:
            return False
    return any(state and _PATH[state - 1] == "+" for state in states)


def _written(state: int, sign: str) -> Iterator[int]:
    """How much of _PATH may have been written with one more sign; `?` is any."""
    if state and _PATH[state - 1] == "+" and sign != "/":
        yield state
    if state < len(_PATH):
        wanted = _PATH[state]
        if sign in ("?", wanted) or (wanted == "+" and sign != "/"):
            yield state + 1


def _parts(resource: str) -> tuple[str, str, str]:
    """Region, owner and path. `acs:log:project/…` leaves both of the first out."""
    if resource == EVERYWHERE:
        return "", "", "*"
    parts = resource.removeprefix(_PREFIX).split(":")
    if not resource.startswith(_PREFIX) or len(parts) not in (1, 3):
        raise InvalidInput("Resource", resource, _FORM)
    region, owner, path = parts if len(parts) == 3 else ("", "", parts[0])
    if not path.startswith(("project/", "*")):
        raise InvalidInput("Resource", resource, _FORM)
    return region, owner, path


def _applies(statement: Statement, action: str, resource: str) -> bool:
    return _covers(statement.actions, action) and any(
        _is_within(pattern, resource) for pattern in statement.resources
    )


def _covers(actions: Sequence[str], action: str) -> bool:
    return any(matches(pattern, action) for pattern in actions)


def _is_within(pattern: str, resource: str) -> bool:
    """A region or an owner that either side leaves out is any: most servers have neither."""
    region, owner, path = _parts(pattern)
    of_region, of_owner, of_path = _parts(resource)
    return (
        matches(path, of_path)
        and (not region or not of_region or matches(region, of_region))
        and (not owner or not of_owner or matches(owner, of_owner))
    )


def _is_all(pattern: str) -> bool:
    region, owner, path = _parts(pattern)
    return path in ("*", "project/*") and region in ("", "*") and owner in ("", "*")
