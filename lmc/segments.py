"""The parts of a prompt as data: literal text, pictures, and the requests that a model answers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal

from lmc.arguments import integer, number
from lmc.errors import ArgumentError, Loc

# -- parts of literal text -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Special:
    """A special token by its spelling. Plain strings never become special tokens."""

    spelling: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Zero-width edge of a message's content: `begin` after the role's prefix, `end` before its suffix."""

    role: str
    edge: Literal["begin", "end"]


@lru_cache(256)
def mark(role: str, edge: Literal["begin", "end"]) -> Mark:
    """Return the edge of a message's content, of which prompts hold many."""
    return Mark(role, edge)


Part = str | Special | Mark


def plain(parts: Sequence[Part]) -> str:
    """Return the text of literal parts as a person reads it: special tokens by spelling, marks omitted."""
    return "".join(p if isinstance(p, str) else p.spelling if isinstance(p, Special) else "" for p in parts)


# -- what is asked -------------------------------------------------------------------------------------------


class ChoicesMethod(StrEnum):
    """The rule by which `select` turns log-probabilities of the choices into one choice (docs/language.md)."""

    TOKEN_LENGTH_NORMALIZED = "token_length_normalized"
    GREEDY_TOKEN_SELECTION = "greedy_token_selection"
    UNCONDITIONAL_LIKELIHOOD_NORMALIZED = "unconditional_likelihood_normalized"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A language that the answer must belong to. `source` is regex text, a JSON schema or a grammar, verbatim."""

    kind: Literal["regex", "json_schema", "ebnf", "lark", "structural_tag"]
    source: str


class _Hashed:
    """Caches its hash: a key of tables that every request looks up."""

    __slots__ = ("_hash",)


@dataclass(frozen=True, slots=True)
class SamplingParams(_Hashed):
    """Sampling parameters of one answer. Names and defaults are SGLang's.

    max_new_tokens, min_new_tokens  tokens of an answer, at most and at least
    n            answers to one prompt
    stop, stop_token_ids, stop_regex  what an answer ends before: texts, tokens, texts that match; `ignore_eos`: not at the model's end of text
    temperature  divides logits; 0 takes the likeliest token
    top_p, top_k, min_p  tokens that are sampled from: the likeliest with this probability together, this many of them (-1: all), those with at least
                 this part of the likeliest one's probability
    frequency_penalty, presence_penalty  taken from the logits of tokens of the answer: for each occurrence, once
    logit_bias   added to the logits of tokens
    return_logprob, top_logprobs_num, logprob_start_len  log-probabilities in the meta info: of the answer's tokens, of so many candidates for each, and of
                 the prompt's tokens from this index on; `return_text_in_logprobs`: with the tokens' texts
    adapter      name of one of the engine's LoRA adapters, which answers in place of the model; "": the model itself
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    ignore_eos: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    adapter: str = field(default="", repr=False)  # by its name; "" is the model itself. Not in what journals have checked before there were any

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash(tuple([getattr(self, name) for name in self.__slots__]))
            object.__setattr__(self, "_hash", found)
            return found


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text between answers. Adjacent literal text is encoded as one maximal run, wherever it is cut."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a video that a model sees: so many, evenly spread, or so many a second. Neither: the model's
    default."""

    num_frames: int | None = None
    fps: float | None = None

    @classmethod
    def of(cls, num_frames: Any, fps: Any) -> Frames:
        """Build from the arguments of `video(…)`. Raises for unusable ones."""
        if num_frames is not None and fps is not None:
            raise ArgumentError("video() takes num_frames=… or fps=…, not both")
        return cls(None if num_frames is None else integer(1)("video(num_frames)", num_frames), None if fps is None else number(*_RATES)("video(fps)", fps))


_RATES = 1e-3, 1e3  # frames per second


@dataclass(frozen=True, slots=True)
class Image:
    """An image, a video or a document. `source`: as given by the user; in a run's prompts the encoded file, or a web address (lmc/images.py)."""

    source: Any
    frames: Frames | None = None  # of a video; None: not a video
    detail: str = "auto"  # for APIs that take pictures in several sizes: "low", "high" or "auto"; DOCUMENT: a PDF
    loc: Loc | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """Return its kind, for messages."""
        return "video" if self.frames is not None else "document" if self.detail == DOCUMENT else "image"


DOCUMENT = "document"
"""The `detail` of an `Image` that is a PDF."""


@dataclass(frozen=True, slots=True)
class Gen:
    """Sample an answer. `seed` is fixed before any pass and is ignored at temperature 0; `tools` are JSON text (lmc.tools), "" none."""

    params: SamplingParams = field(default_factory=SamplingParams)
    constraint: Constraint | None = None
    seed: int = 0
    name: str | None = None
    loc: Loc | None = field(default=None, compare=False)  # a backend does not see it
    tools: str = ""


@dataclass(frozen=True, slots=True)
class Select:
    """Choose one of several continuations by their log-probabilities."""

    choices: tuple[str, ...]
    method: ChoicesMethod = ChoicesMethod.TOKEN_LENGTH_NORMALIZED
    temperature: float = 0.0
    seed: int = 0
    name: str | None = None
    loc: Loc | None = field(default=None, compare=False)  # a backend does not see it
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that is known already, at its place in a prompt: no request is made.

    ids     its tokens, as they were sampled; () where the text is encoded with what precedes it, as after a select
    blocks  blocks that an API gave besides the text and expects back, such as reasoning: a JSON list, "" none
    """

    text: str
    ids: tuple[int, ...] = ()
    blocks: str = ""


Segment = Text | Image | Gen | Select | Given


def derive_seed(run_seed: int, item: int, stream: str, ordinal: int) -> int:
    """Derive the seed of one sampling op, in [0, 2**63): a hash of the run's seed, the batch item, the fork path and
    the op's ordinal on that path, so that no pass and no batching changes another op's sample."""
    key = f"{run_seed}\0{item}\0{stream}\0{ordinal}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1


def plain_text(text: str) -> str:
    """Return the text of a member of a StrEnum, or of an instance of any other subclass of `str`."""
    return str.__str__(text)
