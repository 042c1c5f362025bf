"""Settings of a server: its names, keys and limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from lmc.serve.keys import Key


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of one server.

    models        names that requests may give as `model`; answers have the first
    api_keys      keys, one of which every request but /health must carry; empty: no key required
    hosts         allowed values of the header Host, without a port; None: any
    origins       of browser pages that may make requests ("*": all); empty: none
    audit_log     file to which a line is appended for each request
    max_requests  most running or waiting requests; further ones are refused with 429
    max_body      bytes of one request
    body_timeout  seconds for a client to send its request
    timeout       seconds from the request's arrival to the last byte of its answer
    ping_interval  seconds of silence after which a stream gets a sign of life
    max_tokens    default limit of a chat answer; a completion's default is OpenAI's 16
    media_hosts   hosts, with a port if not the default, from which pictures may be fetched; empty: none
    journals      folder of the journals of runs with an id; None: no such runs
    lenient       unknown fields of requests are ignored, and not refused
    max_choices   most answers of one request: its prompts times `n`
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
    ping_interval: float = 15.0
    max_tokens: int = 1024
    max_choices: int = 128
    lenient: bool = False
    media_hosts: frozenset[str] = frozenset()
    journals: Path | None = None
