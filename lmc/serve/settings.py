"""What a server is told once: its names, keys and limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lmc.serve.keys import Key


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of one server.

    models        names that requests may give as `model`; the first is what answers say
    api_keys      keys, one of which every request but /health must show; empty: nobody is asked
    hosts         what the header Host may say, without a port; None: anything
    origins       of pages in browsers that may ask ("*": all); empty: none
    audit_log     file to which a line is appended for each request
    max_requests  requests at work or waiting at once; one more is refused with 429
    max_body      bytes of one request
    body_timeout  seconds that a client may take to send its request
    timeout       seconds from the request's arrival to the last byte of its answer
    max_tokens    of a chat answer whose request names none; a completion's default is OpenAI's 16
    media_hosts   hosts, with a port where it is not the usual one, from which pictures may be fetched; empty: none
    journals      folder of the journals of runs that have an id; None: there are none
    lenient       fields of requests that nobody knows are left out, and not refused
    max_choices   answers that one request may ask for: its prompts times `n`
    """

    models: tuple[str, ...]
    api_keys: Collection[str | Key] = ()
    hosts: frozenset[str] | None = None
    origins: tuple[str, ...] = ()
    audit_log: Path | None = None
    max_requests: int = 256
    max_body: int = 8 << 20
    body_timeout: float = 30.0
    timeout: float = 600.0
    max_tokens: int = 1024
    max_choices: int = 128
    lenient: bool = False
    media_hosts: frozenset[str] = frozenset()
    journals: Path | None = None
