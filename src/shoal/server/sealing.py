"""Secrets at rest: sealed under a master key that is in the environment, and never in the database.

AES-256-GCM, bound to the key's id, so that what is sealed for one key does not open as another's. The
variable may hold several master keys, apart by commas: the first seals, each opens, so that a new one can be
put first.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Mapping
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.core.errors import InvalidInput

VARIABLE: Final = "SHOAL_MASTER_KEY"
_FORM: Final = b"\x01"
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class Seal:
    """Seals and opens secrets."""

    def __init__(self, master: str) -> None:
        self._ciphers = [AESGCM(_key(one)) for one in master.split(",")]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Seal | None:
        """None if the variable is not set."""
        master = (os.environ if environment is None else environment).get(VARIABLE)
        return cls(master) if master else None

    def seal(self, key_id: str, secret: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _FORM + nonce + self._ciphers[0].encrypt(nonce, secret.encode(), key_id.encode())

    def open(self, key_id: str, sealed: bytes) -> str:
        """The secret, or InvalidInput if no master key here fits."""
        if sealed[:1] == _FORM:
            nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
            for cipher in self._ciphers:
                try:
                    return cipher.decrypt(nonce, rest, key_id.encode()).decode()
                except InvalidTag:
                    continue
        raise InvalidInput(VARIABLE, "not shown", f"it does not open the secret of key {key_id}")

    def __repr__(self) -> str:
        return "<Seal>"


def new_master_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode()


def new_key_id() -> str:
    return "SK" + secrets.token_hex(10).upper()


def new_secret() -> str:
    """256 bits, of characters that a URL takes as they are."""
    return secrets.token_urlsafe(_KEY_BYTES)


def _key(text: str) -> bytes:
    try:
        found = base64.b64decode(text.strip(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != _KEY_BYTES:
        raise InvalidInput(VARIABLE, "not shown", "32 bytes in base64; 'shoal key master' makes one")
    return found
