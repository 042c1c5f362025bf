"""Stand-ins of the batch endpoints of OpenAI and Anthropic, by their published rules, in front of those that answer single requests.

A batch makes one step each time somebody looks at it, so nothing depends on time: `looks` is how often it is looked at before it is over.
`fate` says what becomes of a request of a batch: "ok", "error" (500), "refused" (400), "expired"; of a batch as a whole: "ok", "failed", "full".
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.api.anthropic_server import AnthropicModel
from tests.api.http import Answer, Body, Server
from tests.api.openai_server import OpenAIModel
from tests.api.text_model import TextModel

Fate = Callable[[int, str, Body], str]
"""By the number of the batch, the id of a request ("" for the batch itself) and its body."""


@dataclass
class Batch:
    id: str
    number: int
    requests: list[tuple[str, Body]]
    created: float
    endpoint: str = ""
    metadata: Body = field(default_factory=dict)
    looked: int = 0
    status: str = "in_progress"
    results: dict[str, Answer | str] = field(default_factory=dict)


class Batches:
    """The common part of both. `path`: where they are made; `created`: all batches; `paid`: requests that were answered, by id, as often as that was."""

    path = "/v1/batches"

    def __init__(self, handle: Callable[[str, Body], Answer], *, looks: int = 2, fate: Fate = lambda n, id, body: "ok", most: int = 50_000) -> None:
        self.answer, self.looks, self.fate, self.most = handle, looks, fate, most
        self.created: list[Batch] = []
        self.paid: list[str] = []
        self.files: dict[str, bytes] = {}
        self.hold = False  # nothing gets on
        self._ids = itertools.count()
        self.ahead = 0.0  # seconds by which the server's clock is ahead

    @property
    def now(self) -> float:
        return time.time() + self.ahead

    @property
    def dated(self) -> dict[str, str]:
        return {"date": formatdate(self.now, usegmt=True)}

    def batch(self, id: str) -> Batch | None:
        return next((b for b in self.created if b.id == id), None)

    def look(self, batch: Batch) -> None:
        """Somebody looks at a batch."""
        if batch.status == "in_progress" and not self.hold:
            batch.looked += 1
            if batch.looked > self.looks:
                self.end(batch)

    def end(self, batch: Batch) -> None:
        for id, body in batch.requests:
            fate = self.fate(batch.number, id, body)
            if fate == "ok":
                batch.results[id] = answer = self.answer(batch.endpoint, body)
                if answer.status == 200:
                    self.paid.append(id.rpartition("-")[0])
            elif fate == "error":
                batch.results[id] = Answer(self.error(500, "the server had an error"), 500)
            elif fate == "refused":
                batch.results[id] = Answer(self.error(400, "the request was refused"), 400)
            else:
                batch.results[id] = "expired"
        batch.status = "over"

    def cancel(self, batch: Batch) -> None:
        if batch.status == "in_progress":
            batch.results, batch.status = {id: "canceled" for id, _ in batch.requests}, "over"

    def handle(self, path: str, body: Body) -> Answer:
        if path == self.path:
            return self._create(body)
        if match := re.fullmatch(rf"{self.path}/([^/]+)/cancel", path):
            batch = self.batch(match[1])
            assert batch is not None
            self.cancel(batch)
            return Answer(self._shown(batch))
        return self.answer(path, body)


class OpenAIBatches(Batches):
    def error(self, status: int, message: str, code: str | None = None) -> Body:
        return {"error": {"message": message, "type": "invalid_request_error" if status < 500 else "server_error", "param": None, "code": code}}

    def handle(self, path: str, body: Body) -> Answer:
        return self._upload(body) if path == "/v1/files" else super().handle(path, body)

    def get(self, path: str) -> Answer | None:
        where, asked = urlsplit(path).path, parse_qs(urlsplit(path).query)
        if where == "/v1/batches":
            newest = self.created[::-1]
            after = asked.get("after", [""])[0]
            start = next((i + 1 for i, b in enumerate(newest) if b.id == after), 0)
            page = newest[start : start + 2]  # short pages: whoever looks for one must turn them
            return Answer(
                {"object": "list", "data": [self._shown(b) for b in page], "has_more": start + 2 < len(newest), "last_id": page[-1].id if page else None},
                headers=self.dated,
            )
        if match := re.fullmatch(r"/v1/batches/([^/]+)", where):
            batch = self.batch(match[1])
            if batch is None:
                return Answer(self.error(404, f"No batch found with id '{match[1]}'."), 404)
            self.look(batch)
            return Answer(self._shown(batch))
        if match := re.fullmatch(r"/v1/files/([^/]+)/content", where):
            return Answer({}, data=self.files[match[1]])
        return None

    def _upload(self, body: Body) -> Answer:
        if body.get("purpose") != "batch" or not isinstance(body.get("file"), bytes):
            return Answer(self.error(400, "'file' and the purpose 'batch' are required"), 400)
        if len(body["file"]) > 200_000_000:
            return Answer(self.error(400, "the file is too large"), 400)
        id = f"file-{next(self._ids)}"
        self.files[id] = body["file"]
        return Answer({"id": id, "object": "file", "bytes": len(body["file"]), "created_at": 1, "filename": "f", "purpose": "batch", "status": "processed"})

    def _create(self, body: Body) -> Answer:
        if body.get("completion_window") != "24h" or body.get("endpoint") not in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
            return Answer(self.error(400, "Invalid 'completion_window' or 'endpoint'"), 400)
        if any(len(k) > 64 or len(str(v)) > 512 for k, v in (body.get("metadata") or {}).items()):
            return Answer(self.error(400, "metadata too long"), 400)
        lines = [json.loads(line) for line in self.files[body["input_file_id"]].split(b"\n") if line]
        number = len(self.created)
        batch = Batch(f"batch_{number}", number, [(line["custom_id"], line["body"]) for line in lines], self.now, body["endpoint"], body.get("metadata") or {})
        self.created.append(batch)
        wrong = self._wrong(lines, body["endpoint"]) or {
            "failed": ("invalid", "it is as it is"),
            "full": ("token_limit_exceeded", "Enqueued token limit reached"),
        }.get(self.fate(number, "", {}))
        if wrong:
            batch.status, batch.results = "failed", {"": Answer({"code": wrong[0], "message": wrong[1]})}
        return Answer(self._shown(batch))

    def _wrong(self, lines: Sequence[Body], endpoint: str) -> tuple[str, str] | None:
        ids = [line["custom_id"] for line in lines]
        if not lines or len(lines) > self.most:
            return "invalid", "an empty file, or too many requests"
        if len(set(ids)) < len(ids):
            return "duplicate_custom_id", "The custom_id for this request is a duplicate of another request."
        if any(line["method"] != "POST" or line["url"] != endpoint for line in lines):
            return "mismatched_endpoint", "The URL provided for this request does not match the prefix expected for the batch endpoint."
        if len({line["body"]["model"] for line in lines}) > 1:
            return "mismatched_model", "The provided model does not match the rest of the batch."
        if any(line["body"].get("stream") for line in lines):
            return "invalid_request", "Streaming is not supported in the Batch API."
        return None

    def _shown(self, batch: Batch) -> Body:
        shown: Body = {
            "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "input_file_id": "file-x", "completion_window": "24h",
            "created_at": int(batch.created),
            "metadata": batch.metadata, "status": batch.status, "errors": None, "output_file_id": None, "error_file_id": None,
        }  # fmt: skip
        if batch.status == "failed":
            return {**shown, "errors": {"object": "list", "data": [batch.results[""].body]}}  # type: ignore[union-attr]
        done = {id: r for id, r in batch.results.items() if isinstance(r, Answer)}
        good = [id for id, r in done.items() if r.status == 200]
        shown["request_counts"] = {"total": len(batch.requests), "completed": len(good), "failed": len(done) - len(good)}
        if batch.status != "over":
            return shown
        late = {r for r in batch.results.values() if isinstance(r, str)}
        self.files[f"{batch.id}-out"] = b"".join(self._line(id, done[id]) for id in reversed(good))  # their order is nobody's
        self.files[f"{batch.id}-err"] = b"".join(self._line(id, r) for id, r in batch.results.items() if id not in good)
        files = {f"{kind}_file_id": f"{batch.id}-{kind[:3]}" for kind in ("output", "error") if self.files[f"{batch.id}-{kind[:3]}"]}
        return {**shown, **files, "status": "cancelled" if "canceled" in late else "expired" if late else "completed"}

    def _line(self, id: str, result: Answer | str) -> bytes:
        if isinstance(result, str):
            error = {
                "code": "batch_cancelled" if result == "canceled" else "batch_expired",
                "message": "This request could not be executed before the completion window expired.",
            }
            return json.dumps({"id": "x", "custom_id": id, "response": None, "error": error}).encode() + b"\n"
        return (
            json.dumps(
                {"id": "x", "custom_id": id, "response": {"status_code": result.status, "request_id": "r", "body": result.body}, "error": None},
                ensure_ascii=False,
            ).encode()
            + b"\n"
        )


class AnthropicBatches(Batches):
    url, path = "", "/v1/messages/batches"

    def error(self, status: int, message: str) -> Body:
        kinds = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}

    def get(self, path: str) -> Answer | None:
        where, asked = urlsplit(path).path, parse_qs(urlsplit(path).query)
        if where == "/v1/messages/batches":
            newest = self.created[::-1]
            for batch in newest:
                self.look(batch)
            after = asked.get("after_id", [""])[0]
            start = next((i + 1 for i, b in enumerate(newest) if b.id == after), 0)
            page = newest[start : start + 2]
            ends = {"first_id": page[0].id, "last_id": page[-1].id} if page else {"first_id": None, "last_id": None}
            return Answer({"data": [self._shown(b) for b in page], "has_more": start + 2 < len(newest), **ends}, headers=self.dated)
        if match := re.fullmatch(r"/v1/messages/batches/([^/]+)(/results)?", where):
            batch = self.batch(match[1])
            if batch is None:
                return Answer(self.error(404, "no such batch"), 404)
            if match[2]:
                return Answer({}, data=b"".join(self._line(id, r) for id, r in reversed(batch.results.items())))
            self.look(batch)
            return Answer(self._shown(batch))
        return None

    def _create(self, body: Body) -> Answer:
        requests = body["requests"]
        ids = [r["custom_id"] for r in requests]
        if not requests or len(requests) > 100_000 or len(set(ids)) < len(ids) or not all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id) for id in ids):
            return Answer(self.error(400, "requests: wrong number, or wrong custom_ids"), 400)
        if any("stream" in r["params"] for r in requests):
            return Answer(self.error(400, "stream is not supported in batches"), 400)
        number = len(self.created)
        batch = Batch(f"msgbatch_{number}", number, [(r["custom_id"], r["params"]) for r in requests], self.now, "/v1/messages")
        self.created.append(batch)
        return Answer(self._shown(batch))

    def _shown(self, batch: Batch) -> Body:
        kinds = [_kind(r) for r in batch.results.values()]
        counts = {kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
        ended = batch.status == "over"
        when = datetime.fromtimestamp(batch.created, UTC).isoformat()
        return {
            "id": batch.id, "type": "message_batch", "processing_status": "ended" if ended else "in_progress", "created_at": when, "expires_at": when,
            "request_counts": {**counts, "processing": 0 if ended else len(batch.requests)}, "ended_at": when if ended else None, "archived_at": None,
            "cancel_initiated_at": None, "results_url": f"{self.url}/v1/messages/batches/{batch.id}/results" if ended else None,
        }  # fmt: skip

    def _line(self, id: str, result: Answer | str) -> bytes:
        kind = _kind(result)
        told: Body = {"type": kind}
        if isinstance(result, Answer):
            told |= {"message": result.body} if kind == "succeeded" else {"error": result.body}
        return json.dumps({"custom_id": id, "result": told}, ensure_ascii=False).encode() + b"\n"


def _kind(result: Answer | str) -> str:
    return result if isinstance(result, str) else "succeeded" if result.status == 200 else "errored"


def serve_openai(model: TextModel, *, stand_in: Body | None = None, plant: Any = None, **options: Any) -> tuple[OpenAIBatches, Server]:
    batches = OpenAIBatches(OpenAIModel(model, **(stand_in or {})).handle, **options)
    return batches, Server(batches.handle, getting=batches.get, **({"plant": plant} if plant else {}))


def serve_anthropic(model: TextModel, *, stand_in: Body | None = None, plant: Any = None, **options: Any) -> tuple[AnthropicBatches, Server]:
    batches = AnthropicBatches(AnthropicModel(model, **(stand_in or {})).handle, **options)
    server = Server(batches.handle, getting=batches.get, **({"plant": plant} if plant else {}))
    batches.url = server.url
    return batches, server
