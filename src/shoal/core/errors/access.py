"""Who may do what: requests that are not let in, and users, keys and policies."""

from __future__ import annotations

from shoal.core.errors.root import NotFound, ShoalError


class NotSignedIn(ShoalError):
    """A request without a signature that can be checked, or with one that is not right."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"access: {reason}")
        self.reason = reason


class ClockSkewed(ShoalError):
    """A request whose date is too far from the server's clock."""

    def __init__(self, *, sent_ms: int, now_ms: int, limit_ms: int) -> None:
        super().__init__(
            f"access: signed at {sent_ms} ms since 1970, and the server's clock says {now_ms}; they may "
            f"differ by {limit_ms} ms: set the clock"
        )
        self.sent_ms, self.now_ms, self.limit_ms = sent_ms, now_ms, limit_ms


class ReplayedRequest(ShoalError):
    """The same signed request has come before. What it asked for was, or was not, done then."""

    def __init__(self) -> None:
        super().__init__("access: this very request has come before; sign each one anew")


class SignedForAnother(ShoalError):
    """A request that was signed for another server than the one it has reached; nothing was done."""

    def __init__(self, *, server: str, store: str) -> None:
        super().__init__(f"access: signed for another server; this is {server}: sign it for this one")
        self.server, self.store = server, store


class AccessDenied(ShoalError):
    """The user's policies do not allow it."""

    def __init__(self, *, user: str, action: str, resource: str) -> None:
        super().__init__(
            f"access: {user!r} may not {action} on {resource}; a policy that allows it is attached with "
            "'shoal policy attach'"
        )
        self.user, self.action, self.resource = user, action, resource


class UnknownUser(NotFound):
    def __init__(self, user: str) -> None:
        super().__init__(f"user={user!r}: there is no such user; see 'shoal user list'")
        self.user = user


class UnknownAccessKey(NotFound):
    def __init__(self, key: str) -> None:
        super().__init__(f"key={key!r}: there is no such key; see 'shoal key list'")
        self.key = key


class UnknownPolicy(NotFound):
    def __init__(self, policy: str) -> None:
        super().__init__(f"policy={policy!r}: there is no such policy; see 'shoal policy list'")
        self.policy = policy


class UserExists(ShoalError):
    def __init__(self, user: str) -> None:
        super().__init__(f"user={user!r}: there is one of this name already")
        self.user = user


class PolicyExists(ShoalError):
    def __init__(self, policy: str) -> None:
        super().__init__(f"policy={policy!r}: there is one of this name already; --replace changes it")
        self.policy = policy


class PolicyInUse(ShoalError):
    """A policy that users have: without it, what it denies them would be allowed."""

    def __init__(self, policy: str, users: int) -> None:
        super().__init__(f"policy={policy!r}: {users} users have it; detach it first")
        self.policy, self.users = policy, users
