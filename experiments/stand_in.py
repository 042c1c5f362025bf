"""A stand-in of a completions server on this machine, for experiments that count calls and tokens of an API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def completions_server(answer: Callable[[str], str]) -> Iterator[str]:
    """Serve `/v1/completions` while open; gives the base URL. `answer`: all that the model would say behind a prompt. A token is a word."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = _completion(answer, body) if self.path.endswith("/completions") else None
            data = json.dumps(found or {"error": {"message": f"{self.path} is not served here"}}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _completion(answer: Callable[[str], str], body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request: cut at its limit, then at the first of its stops."""
    words = answer(body["prompt"]).splitlines(keepends=True)
    pieces = [piece for line in words for piece in _words(line)]
    limit = body.get("max_tokens") or 16
    text, reason = "".join(pieces[:limit]), "length" if len(pieces) > limit else "stop"
    stops = body.get("stop") or []
    cuts = [at for stop in ([stops] if isinstance(stops, str) else stops) if (at := text.find(stop)) >= 0]
    if cuts:
        text, reason = text[: min(cuts)], "stop"
    prompt, said = len(body["prompt"].split()), len(text.split())
    return {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": body["model"],
        "choices": [{"index": 0, "text": text, "finish_reason": reason, "logprobs": None}],
            "usage": {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}}  # fmt: skip


def _words(line: str) -> list[str]:
    """A line in pieces, each a word with the blanks before it; they join to the line."""
    pieces, begun = list[str](), ""
    for character in line:
        if character.isspace() and begun.strip():
            pieces.append(begun)
            begun = ""
        begun += character
    return [*pieces, begun] if begun else pieces
