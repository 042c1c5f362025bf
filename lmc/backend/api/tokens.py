"""Tokens: prompts as ids, for servers that take them, so that generated text is never re-encoded and data is never a
role."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmc.backend.api.place import PromptNode
from lmc.chat import CHATML, ChatTemplate, get_chat_template
from lmc.config import log
from lmc.errors import ModelLoadError
from lmc.extras import require
from lmc.segments import Image, Part, Special, plain
from lmc.tracebacks import warn

if TYPE_CHECKING:
    from lmc.backend.engine.encoding import TokenizerProtocol


class Tokens:
    """A server's vocabulary: places to ids, as encoded by the engine."""

    def __init__(self, words: TokenizerProtocol) -> None:
        from lmc.backend.engine.encoding import Encoder

        self.words = words
        self._encoder = Encoder(words)

    def ids(self, place: PromptNode) -> list[int]:
        """Return the whole prompt. Text between answers is one run, however it was cut; an answer with unknown ids
        joins its run."""
        closed: list[int] = []
        run: list[Part] = []
        for node in place.path():
            run += [part for part in node.parts if not isinstance(part, Image)]
            if node.ids is not None:
                closed += [*self._encode(run, closed), *node.ids]
                run = []
            elif node.answer is not None:
                run.append(node.answer)
        found = [*closed, *self._encode(run, closed)]
        return found or [self._first()]

    def _first(self) -> int:
        """Return the token of an empty prompt: a model needs one to start from."""
        words = self.words
        return words.bos_token_id if words.bos_token_id is not None else words.eos_token_ids[0]

    def _encode(self, run: Sequence[Part], before: Sequence[int]) -> list[int]:
        return self._encoder.encode(run, at_start=not before).tolist()

    def of(self, ids: Sequence[int], text: str) -> tuple[int, ...] | None:
        """Return the prefix of generated ids that spells exactly `text`: without a stop, or the end of the answer."""
        for end in range(len(ids), -1, -1):
            shown = self.words.decode(ids[:end], with_specials=True, at_start=False)
            if shown == text:
                return tuple(ids[:end])
            if len(shown) < len(text):
                return None
        return None


# -- from a server's info -----------------------------------------------------------------------------------


def read(source: str) -> tuple[TokenizerProtocol, ChatTemplate | None]:
    """Read the tokenizer of a directory or a .gguf file, and its model's template if it has one.

    Raises ModelLoadError when there is none, and MissingPackageError without the packages that read it.
    """
    path = Path(source)
    if path.suffix != ".gguf" and not (path / "tokenizer.json").is_file():
        raise ModelLoadError(f"{source}: no tokenizer.json there; give tokenizer= a directory that has one, or a .gguf file")
    require(f"the tokenizer of {source}", "tokens")
    from lmc.backend.engine import gguf_tokenizer
    from lmc.backend.engine import tokenizer as tokenizers
    from lmc.backend.engine.chat_template import cut
    from lmc.backend.engine.models.files import json_or_none, template_source

    if path.suffix == ".gguf":
        from lmc.backend.engine.models import gguf

        metadata = gguf.read(path).metadata
        words, template = gguf_tokenizer.from_gguf(metadata, str(path)), metadata.get("tokenizer.chat_template")
    else:
        options = json_or_none(path / "tokenizer_config.json") or {}
        words = tokenizers.from_file(path / "tokenizer.json", add_bos=bool(options.get("add_bos_token", False)))
        template = template_source(path, options)
    return words, cut(template, words, name=path.name) if template else None


_BY_NAME = (
    ("llama-3", "llama-3-instruct"), ("llama3", "llama-3-instruct"), ("llama-4", "llama-4"), ("llama-2", "llama-2-chat"), ("qwen", "qwen"),
    ("mistral", "mistral"), ("gemma", "gemma-it"), ("vicuna", "vicuna_v1.1"), ("deepseek", "deepseek-v3"), ("command-r", "c4ai-command-r"),
    ("granite", "granite-3-instruct"),
)  # fmt: skip


def known_as(model: str) -> ChatTemplate:
    """Return the template of a model that is known by its name only."""
    name = next((template for part, template in _BY_NAME if part in model.lower()), None)
    if name is None:
        log("backend", f"nothing is known of the chat template of {model!r}; taking chatml. Pass chat_template=… or tokenizer=…")
    return CHATML if name is None else get_chat_template(name)


# -- prompts as text -------------------------------------------------------------------------------------------------------

_warned: set[str] = set()


def spelled(place: PromptNode, target: str, picture: str = "") -> str:
    """Return the whole prompt as text, special tokens by their spelling, a picture as `picture`: a server may take data
    that spells one for the token."""
    pieces = [Special(picture) if isinstance(piece, Image) else piece for piece in place.pieces()]
    warn_of_spellings(pieces, target)
    return plain(pieces)


def warn_of_spellings(pieces: Sequence[Part | Image], target: str) -> None:
    """Warn once for each special token of the template that text spells: a server that takes text may read it as the
    token."""
    for special in {piece.spelling for piece in pieces if isinstance(piece, Special)}:
        message = f"text contains {special}, which {target}, being given text, takes for the token of its chat template"
        if message not in _warned and any(special in piece for piece in pieces if isinstance(piece, str)):
            warn(message, once=_warned)
