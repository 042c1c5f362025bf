"""Journals that are encrypted at rest: each line is sealed with AES-256-GCM, under a key derived from the user's with
the file's salt.

A line is bound to its number, so that none can be moved or left out in the middle; truncation is detected by the
sidecar only.
"""

from __future__ import annotations

import base64
import hashlib
import os
from functools import lru_cache
from importlib import import_module
from typing import Any

from lmc import json_data
from lmc.errors import JournalError, ParameterError
from lmc.extras import require

Key = str | bytes
_NONCE = 12


class Cipher:
    """Seals and opens the lines of one journal. A str key is a passphrase; a bytes key is 32 random bytes. Raises
    MissingPackageError."""

    def __init__(self, key: Key, salt: bytes | None = None) -> None:
        require("key= of a journal", "journals")
        self.salt = os.urandom(16) if salt is None else salt
        self._aead: Any = import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(_derived(key, self.salt))

    def first(self, header: bytes) -> bytes:
        """Return the contents of the first line: the salt, and the header sealed."""
        return json_data.to_bytes({"cipher": "aes-256-gcm", "salt": self.salt.hex(), "header": self.seal(header, 0).decode()})

    def seal(self, data: bytes, number: int) -> bytes:
        """Seal the data of line `number` (the first is 0), as one line of text."""
        nonce = os.urandom(_NONCE)
        return base64.b64encode(nonce + self._aead.encrypt(nonce, data, number.to_bytes(8)))

    def open(self, sealed: bytes, number: int) -> bytes:
        """Return the data given to `seal`. Raises JournalError: for another key, or a modified line."""
        try:
            found = base64.b64decode(sealed, validate=True)
            return self._aead.decrypt(found[:_NONCE], found[_NONCE:], number.to_bytes(8))
        except (import_module("cryptography.exceptions").InvalidTag, ValueError):
            what = "its key is another one, or its first line was changed" if number == 0 else f"line {number + 1} was changed, or is of another place"
            raise JournalError(f"it is encrypted, and cannot be opened: {what}") from None


def check_key(key: object) -> Key:
    """Check a user's key. Raises ParameterError."""
    if isinstance(key, str) and len(key) >= 8:
        return key
    if isinstance(key, bytes) and len(key) == 32:
        return key
    raise ParameterError("key= of a journal: 32 random bytes (os.urandom(32)), or a passphrase of 8 characters or more")  # never the key itself


def opened_first(found: Any, key: Key | None) -> tuple[Any, Cipher | None]:
    """Return the header that a first line holds, decoded; and the cipher for the other lines. Raises JournalError."""
    if not isinstance(found, dict) or "cipher" not in found:
        if key is not None:
            raise JournalError("it is not encrypted, and a key= was given: leave it out, or start a new journal")
        return found, None
    if key is None:
        raise JournalError("it is encrypted: give its key, with journal=lmc.Journal(path, key=…), or --key-file")
    try:
        cipher = Cipher(key, bytes.fromhex(found["salt"]))
        return json_data.from_bytes(cipher.open(found["header"].encode(), 0)), cipher
    except (KeyError, TypeError, ValueError, AttributeError):
        raise JournalError(f"it is encrypted in a way that this version of lmc does not know: {found.get('cipher')!s:.40}") from None


@lru_cache(maxsize=8)  # scrypt is slow by design, and a program opens its journal anew at each run
def _derived(key: Key, salt: bytes) -> bytes:
    """Derive the key of one file."""
    if isinstance(key, bytes):
        return hashlib.blake2b(salt, key=key, digest_size=32).digest()
    return hashlib.scrypt(key.encode(), salt=salt, n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)
