"""API keys: stored as digests, each with limits of its own, and its usage.

A file of keys has one a line:  NAME sha256:HEX [requests=60] [tokens=100000] [concurrency=4] [programs=judge,classify] [priority=4]
A line that is one word is a key in plain text, without limits. Keys are random and long, so that a plain SHA-256 reveals nothing.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from lmc.errors import ParameterError
from lmc.serve.errors import ApiError

_MINUTE = 60.0
_SCHEME = "sha256:"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key; None: as much as the server allows.

    requests     a minute
    tokens       a minute, of prompts and answers; counted when an answer ends, also an abandoned one
    concurrency  requests at once
    programs     names of those that it may run; every key may use the model itself
    priority     its share of the model under competition: 4 gets four times what 1 gets
    """

    requests: int | None = None
    tokens: int | None = None
    concurrency: int | None = None
    programs: frozenset[str] | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its name and digest. Only its holder knows the key itself."""

    name: str
    digest: str
    limits: KeyLimits = KeyLimits()

    @staticmethod
    def of(text: str, name: str, limits: KeyLimits = KeyLimits()) -> Key:
        return Key(name, digest_of(text), limits)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def new_key() -> str:
    """Return a new random key."""
    return f"lmc-{secrets.token_urlsafe(32)}"


def line_of(key: Key) -> str:
    """Return a key as a line of a file."""
    said = [f"{f.name}={','.join(sorted(v)) if isinstance(v, frozenset) else v}" for f in fields(KeyLimits) if (v := getattr(key.limits, f.name)) is not None]
    return " ".join([key.name, _SCHEME + key.digest, *said])


def parse(text: str, where: str) -> list[Key]:
    """Parse the keys of a file; lines that are empty or begin with # are skipped. Raises ParameterError with the
    line."""
    found = list[Key]()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            found.append(Key.of(words[0], f"line {number}") if len(words) == 1 else _hashed(words))
        except ValueError as error:
            raise ParameterError(f"{where}:{number}: {error}; expected NAME sha256:HEX requests=… tokens=… concurrency=… programs=… priority=…") from None
    if len({key.name for key in found}) < len(found):
        raise ParameterError(f"{where}: two keys have one name")
    return found


def _hashed(words: list[str]) -> Key:
    name, digest, *options = words
    if not digest.startswith(_SCHEME) or len(digest) != len(_SCHEME) + 64:
        raise ValueError("no digest of 64 hexadecimal digits")
    given: dict[str, str] = {name: value for name, _, value in (option.partition("=") for option in options)}
    programs = given.pop("programs", None)
    if unknown := given.keys() - {f.name for f in fields(KeyLimits)}:
        raise ValueError(f"no limit {min(unknown)!r}")
    numbers = {limit: int(value) for limit, value in given.items()}
    if any(value < 1 for value in numbers.values()):
        raise ValueError("a limit is at least 1")
    int(digest.removeprefix(_SCHEME), 16)
    return Key(name, digest.removeprefix(_SCHEME).lower(), KeyLimits(**numbers, programs=None if programs is None else frozenset(programs.split(","))))


@dataclass
class _Bucket:
    """A rate limit per minute: refilled evenly, and may be overdrawn by costs known only afterwards."""

    most: int
    clock: Callable[[], float]
    left: float = field(init=False)
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.at = float(self.most), self.clock()

    def wait(self, wanted: float) -> float:
        """Return the seconds until `wanted` are available; 0 if they are."""
        now = self.clock()
        self.left, self.at = min(self.most, self.left + (now - self.at) * self.most / _MINUTE), now
        return max(0.0, (wanted - self.left) * _MINUTE / self.most)


class Account:
    """Usage of a key. On the server's loop only."""

    def __init__(self, key: Key | None, clock: Callable[[], float]) -> None:
        limits = KeyLimits() if key is None else key.limits
        self.name = "" if key is None else key.name
        self.priority = float(limits.priority or 1)
        self._limits = limits
        self._requests = None if limits.requests is None else _Bucket(limits.requests, clock)
        self._tokens = None if limits.tokens is None else _Bucket(limits.tokens, clock)
        self._inside = 0

    def may(self, program: str) -> bool:
        """Return whether the key allows a program."""
        return self._limits.programs is None or program in self._limits.programs

    def check(self, program: str | None) -> None:
        """Raise ApiError for a program that the key does not allow."""
        if program is not None and not self.may(program):
            raise ApiError(403, f"this key may not run {program}", kind="permission_error", code="program_not_allowed")

    @contextmanager
    def admitted(self, program: str | None) -> Iterator[None]:
        """Admit a request in the block. Raises ApiError for one that the key does not allow, or not now."""
        limits = self._limits
        self.check(program)
        if limits.concurrency is not None and self._inside >= limits.concurrency:
            raise _too_many(f"this key has {self._inside} requests at once, and may have no more", 1.0)
        for bucket, wanted, what in ((self._requests, 1.0, "requests"), (self._tokens, 0.0, "tokens")):
            if bucket is not None and (wait := bucket.wait(wanted)) > 0:
                raise _too_many(f"this key may use {bucket.most} {what} a minute", wait)
        if self._requests is not None:
            self._requests.left -= 1
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1

    def spend(self, tokens: int) -> None:
        """Charge tokens that the backend has computed for it."""
        if self._tokens is not None:
            self._tokens.wait(0)
            self._tokens.left -= tokens


def _too_many(message: str, wait: float) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, round(wait)))})


class Keyring:
    """The keys of a server."""

    def __init__(self, keys: Collection[str | Key], clock: Callable[[], float] = time.monotonic) -> None:
        made = [Key.of(key, f"key {i}") if isinstance(key, str) else key for i, key in enumerate(keys, 1)]
        self._accounts = {key.digest: Account(key, clock) for key in made}
        self.nobody = Account(None, clock)  # of requests without a key

    @property
    def open(self) -> bool:
        """Return whether no key is required."""
        return not self._accounts

    def account(self, token: str) -> Account | None:
        """Return the account of a key, by digests, whose comparison reveals nothing of keys; None for an unknown
        key."""
        return self._accounts.get(digest_of(token))
