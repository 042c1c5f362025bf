"""What a server is told once: its names, keys and limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Limits of one server.

    models        names that requests may give as `model`; the first is what answers say
    api_keys      bearer tokens, one of which every request but /health must show; empty: nobody is asked
    max_requests  requests at work or waiting at once; one more is refused with 429
    max_body      bytes of one request
    body_timeout  seconds that a client may take to send its request
    timeout       seconds from the request's arrival to the last byte of its answer
    max_tokens    of a chat answer whose request names none; a completion's default is OpenAI's 16
    max_choices   answers that one request may ask for: its prompts times `n`
    """

    models: tuple[str, ...]
    api_keys: frozenset[str] = frozenset()
    max_requests: int = 256
    max_body: int = 8 << 20
    body_timeout: float = 30.0
    timeout: float = 600.0
    max_tokens: int = 1024
    max_choices: int = 128
