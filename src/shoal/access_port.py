"""The socket of users, keys and policies: what a door asks of a store, and what administrators change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.core.access import AccessKey, Policy, User
from shoal.core.model import StreamName


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A key, and the policies of its user as they were written."""

    key: AccessKey
    policies: Sequence[str]


class AccessStore(Protocol):
    """Keeps users, keys and policies. Names are checked by who calls."""

    def has_users(self) -> bool:
        """Whether there is any: then access control is on."""

    def grant(self, key_id: str) -> Grant | None:
        """What one key says, as of one moment; None for one that is not there."""

    def keep_nonce(self, nonce: str, until_ms: int, now_ms: int) -> bool:
        """Keep it until then; False if it was kept before. Forgets those whose time is over."""

    def group_place(self, group_id: int) -> tuple[StreamName, str] | None:
        """The names of a group and its stream. A number is never given again."""

    def stream_place(self, stream_id: int) -> StreamName | None:
        """The name of a stream. A number is never given again."""

    # --- For administrators. ---

    def create_user(self, name: str, now_ms: int) -> None:
        """Or UserExists."""

    def list_users(self) -> list[User]:
        """All, by name."""

    def delete_user(self, name: str) -> None:
        """With all keys, or UnknownUser."""

    def create_key(self, key: AccessKey) -> None:
        """Or UnknownUser."""

    def list_keys(self, user: str | None) -> list[AccessKey]:
        """Of one user or of all; or UnknownUser."""

    def enable_key(self, key_id: str, is_enabled: bool) -> None:
        """Or disable it; or UnknownAccessKey."""

    def delete_key(self, key_id: str) -> None:
        """Or UnknownAccessKey."""

    def save_policy(self, name: str, text: str, now_ms: int, *, replace: bool) -> None:
        """A new one, or PolicyExists; with `replace`, one that is there is changed."""

    def list_policies(self) -> list[Policy]:
        """All, by name."""

    def delete_policy(self, name: str) -> None:
        """Or UnknownPolicy, or PolicyInUse."""

    def attach(self, user: str, policy: str) -> None:
        """Give a user a policy; again does no harm. Or UnknownUser, or UnknownPolicy."""

    def detach(self, user: str, policy: str) -> None:
        """Take it away; if the user has not got it, nothing happens. Or UnknownUser, or UnknownPolicy."""
