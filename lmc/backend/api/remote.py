"""What clients of SGLang and vLLM share: what the server says of itself, its tokenizer and template, and prompts as ids or text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmc.backend.api.client import Patience, Wire
from lmc.backend.api.place import Place
from lmc.backend.api.redaction import without_userinfo
from lmc.backend.api.spread import ROUTING, Spread, beginning, key_of
from lmc.backend.api.tokens import Tokens, known_as, read, spelled
from lmc.backend.api.wire import HttpWire, http_errors, http_library, parsed
from lmc.chat import ChatTemplate, get_chat_template
from lmc.config import log
from lmc.errors import BackendError, MissingPackageError, ModelLoadError, ParameterError, ProgramError
from lmc.prompt import Part

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import Vocabulary


def urls_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """One URL or several of the same model, without a slash at the end."""
    urls = (given,) if isinstance(given, str) else tuple(given)
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ParameterError(f"{without_userinfo(url)!r} is not a URL: http://host:port")
    if not urls:
        raise ParameterError("give the URL of a server")
    return tuple(url.rstrip("/") for url in urls)


def asked(url: str, paths: Sequence[str], headers: Mapping[str, str], what: str) -> dict[str, Any]:
    """What the server says of itself at the first of the paths that it has. Raises BackendError when nobody answers."""
    httpx = http_library()
    said = "no answer"
    for path in paths:
        try:
            response = httpx.get(url + path, headers=dict(headers), timeout=10.0)
        except http_errors() as error:
            raise BackendError(f"no {what} server at {without_userinfo(url)}: {without_userinfo(str(error))}") from None
        if response.status_code == 200:
            return parsed(response.content)
        said = f"HTTP {response.status_code} for {path}"
    raise BackendError(f"no {what} server at {without_userinfo(url)}: {said}")


def headers_of(api_key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def wires(urls: Sequence[str], root: str, headers: Mapping[str, str], patience: Patience, concurrency: int) -> Callable[[], Wire]:
    """What makes the connections: one wire, or one spread over several servers."""

    def make() -> Wire:
        each = [HttpWire(url + root, headers, timeout=patience.timeout, connections=concurrency) for url in urls]
        return each[0] if len(each) == 1 else Spread(each)

    return make


@dataclass(frozen=True)
class WithResults:
    """A model's template in whose conversations results of tools may stand: the server writes those, by the whole of its template.

    Pieces of a template often cannot: results are written into the user's next message, or their calls into the one before.
    """

    pieces: ChatTemplate

    @property
    def name(self) -> str:
        return self.pieces.name

    @property
    def stop(self) -> tuple[str, ...]:
        return self.pieces.stop

    def begin(self, role: str, previous: str | None) -> tuple[Part, ...]:
        try:
            return self.pieces.begin(role, previous)
        except ProgramError:
            if "tool" not in (role, previous):
                raise
            return () if role == "tool" else self.pieces.begin(role, "user")

    def end(self, role: str) -> tuple[Part, ...]:
        try:
            return self.pieces.end(role)
        except ProgramError:
            if role != "tool":
                raise
            return ()


@dataclass(slots=True)
class Prompts:
    """How prompts are written for a server: as ids where its tokenizer is known and it takes them, else as text.

    tokens  the server's vocabulary; None: text
    why     why they are text
    """

    tokens: Tokens | None
    template: ChatTemplate
    why: str = ""

    @classmethod
    def of(cls, model: str, path: str | None, tokenizer: str | Vocabulary | None, template: ChatTemplate | str | None) -> Prompts:
        """`tokenizer`: a directory, a .gguf file or a vocabulary; None: the server's model path, if it is one here."""
        words, own, why = None, None, ""
        if tokenizer is None or isinstance(tokenizer, str):
            try:
                words, own = read(tokenizer or path or "")
            except (ModelLoadError, MissingPackageError, OSError) as error:
                if tokenizer is not None:
                    raise
                why = f"its tokenizer is not known here ({error})"
        else:
            words = tokenizer
        chosen = get_chat_template(template) if isinstance(template, str) else template or own or known_as(path or model)
        return cls(Tokens(words) if words is not None else None, WithResults(chosen), why)

    def as_text(self, why: str, target: str) -> None:
        """From now on: the server does not take ids."""
        self.tokens, self.why = None, why
        log("backend", f"{target} gets prompts as text: {why}")

    def write(self, place: Place, target: str) -> str | list[int]:
        return self.tokens.ids(place) if self.tokens is not None else spelled(place, target)

    def headers(self, place: Place) -> dict[str, str]:
        """Routing hints: requests with the same beginning belong together."""
        return dict.fromkeys(ROUTING, key_of(beginning(place)))

    @property
    def said(self) -> str:
        """For `server_info`."""
        return "token ids" if self.tokens is not None else f"text: {self.why}"
