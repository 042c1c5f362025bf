"""Prompts as data: the parts of a prompt, requests to a model, and the persistent prompt state.

A `Prompt` is the run-time image of the IR's `ctx`: an immutable node that knows its parent, so that a fork is
two uses of one node. Interpreter and executor share it; a backend sees only segments and handles.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import lru_cache
from operator import index
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Union, cast, get_args, get_origin

from lmc.errors import ArgumentError, ConstraintError, LmcError, Loc, ParameterError
from lmc.observing import submit

if TYPE_CHECKING:
    from lmc.backend.base import Backend, Handle, Hints, Result


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
    """Sampling parameters of one answer. Names and defaults are SGLang's; `top_k=-1` means the whole vocabulary."""

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
        return cls(None if num_frames is None else _integer(1)("video(num_frames)", num_frames), None if fps is None else _number(*_RATES)("video(fps)", fps))


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


# -- from the arguments of a program to requests ----------------------------------------------------------------

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"[\w\d\s]*"'

CONSTRAINT_KINDS = ("regex", "json_schema", "ebnf", "lark", "structural_tag")

_Check = Callable[[str, Any], Any]  # (name of the parameter, value) -> the value as SamplingParams holds it


def _wrong_type(name: str, value: Any, wanted: str) -> ArgumentError:
    return ArgumentError(f"{name}={value!r}: must be {wanted}")


def _integer(low: int, also: int | None = None) -> _Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool):
            raise _wrong_type(name, value, "a whole number")
        try:
            value = index(value)
        except TypeError:
            raise _wrong_type(name, value, "a whole number") from None
        if value < low and value != also:
            raise ParameterError(f"{name}={value}: must be at least {low}" + (f" or {also}" if also is not None else ""))
        return value

    return check


def _number(low: float, high: float = math.inf, *, above: bool = False) -> _Check:
    def check(name: str, value: Any) -> float:
        if isinstance(value, (str, bytes, bool)):
            raise _wrong_type(name, value, "a number")
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise _wrong_type(name, value, "a number") from None
        if not low <= value <= high or (above and value == low):
            end = f"and at most {high:g}" if high < math.inf else ""
            raise ParameterError(f"{name}={value:g}: must be {'above' if above else 'at least'} {low:g} {end}".rstrip())
        return value

    return check


_COLDEST = 1e-5
"""Temperatures below this sample as 0 does: logits divided by them overflow (vLLM and SGLang draw this line too)."""


def _temperature(name: str, value: Any) -> float:
    value = _number(0)(name, value)
    return 0.0 if value < _COLDEST else value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise _wrong_type(name, value, "True or False")
    return bool(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Check one text or several; empty ones match everywhere and are refused."""
    found: tuple[Any, ...] = (value,) if isinstance(value, str) else _sequence(name, value, "text or a list of texts")
    for text in found:
        if not isinstance(text, str):
            raise _wrong_type(name, value, "text or a list of texts")
        if not text:
            raise ParameterError(f"{name}={value!r}: an empty text would stop at once")
    return found


def _regexes(name: str, value: Any) -> tuple[str, ...]:
    texts = _texts(name, value)
    _check_length(name, "".join(texts))
    return tuple(check_regex(text, name) for text in texts)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    one = _integer(0)
    return tuple(one(name, x) for x in _sequence(name, value, "a list of token ids"))


def _sequence(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(type(value), "__iter__"):
        raise _wrong_type(name, value, wanted)
    try:
        return tuple(sorted(value) if isinstance(value, set | frozenset) else value)
    except TypeError:
        raise _wrong_type(name, value, wanted) from None


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    pairs: Any = value.items() if isinstance(value, Mapping) else value
    try:
        return tuple(sorted((int(token), float(bias)) for token, bias in pairs))
    except (TypeError, ValueError):
        raise _wrong_type(name, value, "a mapping from token ids to numbers") from None


def _adapter(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(name, value, "the name of an adapter, as text")
    return plain_text(value)


# argument → (field of SamplingParams, check); `gen` and `run` differ only in the names of the first two
_PARAMETERS: Mapping[str, tuple[str, _Check]] = {
    "max_tokens": ("max_new_tokens", _integer(0)),
    "min_tokens": ("min_new_tokens", _integer(0)),
    "max_new_tokens": ("max_new_tokens", _integer(0)),
    "min_new_tokens": ("min_new_tokens", _integer(0)),
    "n": ("n", _integer(1)),
    "stop": ("stop", _texts),
    "stop_token_ids": ("stop_token_ids", _token_ids),
    "stop_regex": ("stop_regex", _regexes),
    "temperature": ("temperature", _temperature),
    "top_p": ("top_p", _number(0, 1, above=True)),
    "top_k": ("top_k", _integer(1, also=-1)),
    "min_p": ("min_p", _number(0, 1)),
    "frequency_penalty": ("frequency_penalty", _number(-2, 2)),
    "presence_penalty": ("presence_penalty", _number(-2, 2)),
    "ignore_eos": ("ignore_eos", _flag),
    "return_logprob": ("return_logprob", _flag),
    "logprob_start_len": ("logprob_start_len", _integer(0, also=-1)),
    "top_logprobs_num": ("top_logprobs_num", _integer(0)),
    "return_text_in_logprobs": ("return_text_in_logprobs", _flag),
    "logit_bias": ("logit_bias", _bias),
    "adapter": ("adapter", _adapter),
}

RUN_SAMPLING = tuple(name for name in _PARAMETERS if name not in ("max_tokens", "min_tokens"))  # run-level names


def suggestion(name: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?`, or a list of the known names."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}" if known else "; it takes none"


def sampling(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """Return `defaults` with the sampling arguments in `given`; None means not given. Raises for an unusable value."""
    return resolve(defaults, given)[0]


def resolve(defaults: SamplingParams, given: Mapping[str, Any], loc: Loc | None = None) -> tuple[SamplingParams, Constraint | None]:
    """Resolve a gen's arguments over the run's defaults; return the sampling parameters and the constraint on its
    answer.

    Raises ArgumentError, ParameterError or ConstraintError, at `loc`, for what no backend could accept. Never changes
    its arguments. Cheap: equal arguments are checked once.
    """
    if not given:
        return defaults, None
    items = tuple(given.items())
    try:
        # the types are part of the key because 1, 1.0 and True are equal
        return _resolve_cached(defaults, items, tuple([v.__class__ for v in given.values()]))
    except TypeError as error:
        if isinstance(error, LmcError):
            raise _at(error, loc) from None
    except LmcError as error:
        raise _at(error, loc) from None
    try:
        return _resolve(defaults, items)  # something unhashable, such as a schema as a dict
    except LmcError as error:
        raise _at(error, loc) from None


def _at(error: LmcError, loc: Loc | None) -> LmcError:
    if error.loc is None:
        error.loc = loc
    return error


@lru_cache(maxsize=4096)
def _resolve_cached(defaults: SamplingParams, items: tuple[tuple[str, Any], ...], _types: tuple[type, ...]) -> tuple[SamplingParams, Constraint | None]:
    return _resolve(defaults, items)


def _resolve(defaults: SamplingParams, items: tuple[tuple[str, Any], ...]) -> tuple[SamplingParams, Constraint | None]:
    changes: dict[str, Any] = {}
    constraints: dict[str, Constraint] = {}
    stops: tuple[str, ...] = ()
    layout: dict[str, Any] = {}
    for name, value in items:
        if value is None:
            continue
        if name in _PARAMETERS:
            field_name, check = _PARAMETERS[name]
            changes[field_name] = check(name, value)
        elif name == "dtype":
            constraints[name], stops = dtype_constraint(value)
        elif name in CONSTRAINT_KINDS:
            constraints[name] = make_constraint(name, value)
        elif name in _LAYOUT:
            option, check = _LAYOUT[name]
            layout[option] = check(name, value)
        elif name == "seed":
            _integer(0)(name, value)
        elif name == "tools":
            _tools(value)
        else:
            raise ArgumentError(f"gen() has no parameter {name!r}{suggestion(name, list(_PARAMETERS))}")
    if len(constraints) > 1:
        raise ParameterError(f"gen({'=…, '.join(constraints)}=…): an answer has one constraint; leave one out")
    if layout:
        constraints = {name: _laid_out(constraint, layout) for name, constraint in constraints.items()}
    if layout and not constraints:
        raise ParameterError("json_whitespace= and strict= say how a json_schema= or dtype= is read; give one, or leave them out")
    if stops:
        changes["stop"] = changes.get("stop", defaults.stop) + stops
    constraint = next(iter(constraints.values()), None)
    if constraint is not None and constraint.kind == "json_schema" and "max_new_tokens" not in changes and defaults.max_new_tokens == _NO_LIMIT_SAID:
        from lmc.answers import limit_of

        changes["max_new_tokens"] = limit_of(constraint.source)
    params = replace(defaults, **changes) if changes else defaults
    if params.min_new_tokens > params.max_new_tokens:
        raise ParameterError(f"min_tokens={params.min_new_tokens} is more than max_tokens={params.max_new_tokens}")
    return params, constraint


_NO_LIMIT_SAID = SamplingParams().max_new_tokens


def _whitespace(name: str, value: Any) -> str:
    if value not in ("model", "compact", "any"):
        raise ParameterError(f'{name}={value!r}: must be one of "model", "compact", "any"')
    return value


_LAYOUT: Mapping[str, tuple[str, _Check]] = {
    "json_whitespace": ("whitespace", _whitespace),
    "strict": ("strict", _flag),
}


def _laid_out(constraint: Constraint, layout: Mapping[str, Any]) -> Constraint:
    """Return a schema with options of ours, at its root."""
    if constraint.kind != "json_schema":
        raise ParameterError(f"json_whitespace= and strict= say how a schema is read, and the answer's constraint is a {constraint.kind}; leave them out")
    schema = json.loads(constraint.source)
    if not isinstance(schema, dict):
        schema = {"allOf": [schema]}
    options = schema.get("x-lmc", {})
    found = {**schema, "x-lmc": {**options, **layout} if isinstance(options, dict) else options}
    return Constraint("json_schema", json.dumps(found, ensure_ascii=False))


ANY_RUN = SamplingParams(max_new_tokens=sys.maxsize)
"""Defaults with which only arguments that no run could accept are refused: `min_tokens` is compared with the run's own
limit at the request."""
NEVER_CHANGE = frozenset({str, int, float, bool, type(None)})
"""Classes of most arguments of `gen`."""


def fixed(name: str, value: Any) -> Any:
    """Freeze an argument of `gen`: a list of texts as a tuple, a schema or tools as JSON text. Raises as `resolve`
    does."""
    if value.__class__ in NEVER_CHANGE or name == "dtype" or isinstance(value, type):
        return value
    if name in _PARAMETERS:
        return _PARAMETERS[name][1](name, value)
    if name in ("json_schema", "structural_tag"):
        return _json_text(name, value)
    return _tools(value) if name == "tools" else value


def _method(value: Any, loc: Loc | None = None) -> ChoicesMethod:
    try:
        return ChoicesMethod(value)
    except ValueError:
        known = ", ".join(ChoicesMethod)
        raise ParameterError(f"select(choices_method={value!r}): one of {known}", loc=loc) from None


def make_constraint(kind: str, value: Any) -> Constraint:
    """Build a constraint of one kind from the user's argument; schemas become JSON text in the order they were
    written."""
    if kind == "regex":
        return Constraint("regex", check_regex(value))
    if kind == "json_schema" or (kind == "structural_tag" and not isinstance(value, str)):
        return Constraint(kind, _json_text(kind, value))
    if not isinstance(value, str):
        raise _wrong_type(kind, value, "the text of a grammar")
    assert kind in ("ebnf", "lark", "structural_tag")
    return Constraint(kind, value)


MAX_SOURCE = 256_000  # characters of a constraint's source: linear work on it takes ten seconds at most
_PROPERTY = re.compile(r"\\(?:([pP](?:\{[^}]*\}|[A-Z]))|.)", re.DOTALL)  # of Unicode, which `re` does not know


def check_regex(pattern: Any, name: str = "regex") -> str:
    """Return the pattern if Python's `re` accepts it, apart from Unicode properties."""
    if not isinstance(pattern, str):
        raise _wrong_type(name, pattern, "the text of a regular expression")
    _check_length(name, pattern)  # before any work on it
    try:
        re.compile(_PROPERTY.sub(lambda token: r"\w" if token[1] else token[0], pattern))
    except re.error as error:
        at = f" at position {error.pos}" if error.pos is not None else ""
        raise ConstraintError(f"{name}={pattern!r} is not a valid regular expression: {error.msg}{at}") from None
    except (OverflowError, RecursionError):
        raise ConstraintError(f"{name}={pattern[:40]!r}… is too large a regular expression, or nested too deep") from None
    return pattern


def _check_length(name: str, source: str) -> None:
    if len(source) > MAX_SOURCE:
        raise ConstraintError(
            f"{name}={source[:40]!r}… has {len(source):,} characters, and at most {MAX_SOURCE:,} are allowed; "
            f"shorten it, or let a `select` choose among long lists"
        )


def _json_text(kind: str, value: Any) -> str:
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError as error:
            raise ConstraintError(f"{kind}=… is not valid JSON: {error}") from None
        except RecursionError:
            raise ConstraintError(f"{kind}=… is nested too deep") from None
        return value
    if hasattr(value, "model_json_schema"):  # a pydantic model
        value = _schema_of_model(value)
    if not isinstance(value, (Mapping, bool)):
        raise _wrong_type(kind, value, "JSON text, a dict or a pydantic model")
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{kind}=… takes JSON text, a dict or a pydantic model: {error}") from None


_DTYPES: Mapping[Any, tuple[str, tuple[str, ...]]] = {
    int: (REGEX_INT, (" ", "\n")),
    float: (REGEX_FLOAT, (" ", "\n")),
    bool: (REGEX_BOOL, ()),
    str: (REGEX_STR, ()),
}
_DTYPE_NAMES: Mapping[str, type] = {dtype.__name__: dtype for dtype in _DTYPES}


def dtype_constraint(dtype: Any) -> tuple[Constraint, tuple[str, ...]]:
    """Return the constraint that a `dtype=` means, and the stops that come with it."""
    if isinstance(dtype, str):
        dtype = _DTYPE_NAMES.get(dtype, dtype)
    if isinstance(dtype, type) and dtype in _DTYPES:
        regex, stops = _DTYPES[dtype]
        return Constraint("regex", regex), stops
    if dtype is dict:
        return make_constraint("json_schema", {"type": "object"}), ()
    if get_origin(dtype) is Literal:
        return _one_of(get_args(dtype)), ()
    if isinstance(dtype, type) and issubclass(dtype, Enum):
        return _one_of(tuple(member.value for member in dtype)), ()
    if hasattr(dtype, "model_json_schema"):
        return make_constraint("json_schema", dtype), ()
    if (isinstance(dtype, type) and dtype not in _BARE) or get_origin(dtype) is not None:
        return make_constraint("json_schema", schema_of_type(dtype)), ()
    raise ParameterError(f"dtype={dtype!r}: {_DTYPES_ARE}")


_BARE = (list, tuple, set, frozenset, object)  # items of unknown type; `json_schema={}` allows anything
_DTYPES_ARE = (
    "not supported; use one of int, float, bool, str, a Literal, an Enum, a pydantic model, dict, list[…], tuple[…], dict[str, …] and unions of these, or any "
    "other type that pydantic has a JSON schema for"
)


def _schema_by_pydantic(of: Any, wrong: str) -> dict[str, Any]:
    """Return the JSON schema of a dataclass, a TypedDict, an Annotated type, a date, …; ParameterError where pydantic
    has none."""
    try:
        from pydantic import PydanticUserError, TypeAdapter
    except ImportError:
        from lmc.extras import missing

        raise missing(f"the JSON schema of {of!r}", ["pydantic"], "types") from None
    from lmc.answers import for_pydantic

    try:
        return _sets_as_lists(TypeAdapter(for_pydantic(of)).json_schema(schema_generator=_generator()))
    except PydanticUserError as error:
        raise ParameterError(f"{wrong} (it says: {error.message.splitlines()[0]})") from None


def _schema_of_model(model: Any) -> Any:
    """Return the schema of a model, or of anything else that has `model_json_schema`."""
    pydantic = sys.modules.get("pydantic")  # otherwise it cannot be a pydantic model
    if pydantic is not None and isinstance(model, type) and issubclass(model, pydantic.BaseModel):
        return _sets_as_lists(model.model_json_schema(schema_generator=_generator()))
    return _sets_as_lists(model.model_json_schema())


@lru_cache(1)
def _generator() -> Any:
    """Return pydantic's generator, except that a decimal is a number: as a string its schema allows any text, or has a
    pattern that looks ahead."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> Any:
            found = super().decimal_schema(schema)
            return next((arm for arm in found.get("anyOf", ()) if arm.get("type") == "number"), found)

    return Generator


def _sets_as_lists(schema: Any, root: Any = None) -> Any:
    """Return a type's schema, in which only sets of a few values have `uniqueItems`. For others no automaton can
    remember the items already written, and the reader of a set drops duplicates; one that needs several elements keeps
    it, and is checked when the answer ends."""
    root = schema if root is None else root
    if isinstance(schema, list):
        return [_sets_as_lists(part, root) for part in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {k: _sets_as_lists(v, root) for k, v in cast("dict[str, Any]", schema).items()}
    if found.get("uniqueItems") is True and found.get("minItems", 0) < 2 and not _are_few(found.get("items"), root):
        del found["uniqueItems"]
    return found


def _are_few(items: Any, root: Any) -> bool:
    """Return whether a pydantic schema has few enough values to list."""
    if isinstance(items, dict) and "$ref" in items:
        items = root.get("$defs", {}).get(items["$ref"].removeprefix("#/$defs/"))
    return isinstance(items, dict) and ("enum" in items or "const" in items or items.get("type") == "boolean" or {"minimum", "maximum"} <= items.keys())


def schema_of_type(dtype: Any) -> dict[str, Any]:
    """Return the JSON schema of a type composed of others."""
    defs: dict[str, Any] = {}

    def without_definitions(found: dict[str, Any]) -> dict[str, Any]:
        for name, what in found.pop("$defs", {}).items():
            if defs.setdefault(name, what) != what:
                raise ParameterError(f"dtype={dtype!r}: two models are called {name}")
        return found

    def schema(of: Any) -> dict[str, Any]:
        origin, args = get_origin(of), get_args(of)
        if of in _JSON_TYPES:
            return {"type": _JSON_TYPES[of]}
        if origin is Literal:
            return {"enum": list(args)}
        if isinstance(of, type) and issubclass(of, Enum):
            return {"enum": [member.value for member in of]}
        if hasattr(of, "model_json_schema"):
            found = _schema_of_model(of)
            if "$ref" not in found:  # a model that contains itself is among its own definitions
                inner = found.pop("$defs", {})
                found = {"$ref": f"#/$defs/{of.__name__}", "$defs": inner | {of.__name__: found}}
            return without_definitions(found)
        if origin in (Union, UnionType):
            return {"anyOf": [schema(arm) for arm in args]}
        if origin is list and len(args) == 1:
            return {"type": "array", "items": schema(args[0])}
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": schema(args[0])}
        if origin is tuple:
            first = {"prefixItems": [schema(a) for a in args]} if args else {}
            return {"type": "array", **first, "minItems": len(args), "maxItems": len(args)}
        if origin is dict and len(args) == 2 and args[0] is str:
            return {"type": "object", "additionalProperties": schema(args[1])}
        wrong = _DTYPES_ARE if of is dtype else f"{of!r} in it has no JSON schema"
        if origin is dict or of in (complex, bytes):  # pydantic's schema is of texts that are no such values
            raise ParameterError(f"dtype={dtype!r}: {of!r} in it has no JSON schema")
        return without_definitions(_schema_by_pydantic(of, f"dtype={dtype!r}: {wrong}"))

    found = schema(dtype)
    return {**found, "$defs": defs} if defs else found


_JSON_TYPES: Mapping[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null", None: "null"}


def _one_of(values: tuple[Any, ...]) -> Constraint:
    if not values:
        raise ParameterError("dtype=…: there is nothing to choose from")
    return Constraint("regex", "(" + "|".join(re.escape(str(v)) for v in values) + ")")


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of an answer: the run's seed, the batch item, the fork path of its state, its number on that path."""

    run_seed: int
    item: int
    stream: str
    ordinal: int

    @property
    def seed(self) -> int:
        return derive_seed(self.run_seed, self.item, self.stream, self.ordinal)


def make_gen(defaults: SamplingParams, given: Mapping[str, Any], origin: Origin, name: str | None = None, loc: Loc | None = None) -> Gen:
    """Build the request of one `gen`. A seed that the user gave wins over the derived one; temperature 0 needs none."""
    params, constraint = resolve(defaults, given, loc)
    seed = 0
    if params.temperature > 0:
        own = given.get("seed")
        seed = origin.seed if own is None else index(own)
    return Gen(params, constraint, seed, name, loc, _tools(given.get("tools")))


def _tools(given: Any) -> str:
    """Return the description of a model's tools as JSON text."""
    if not given:
        return ""
    from lmc.tools import described  # it imports this module for the schemas of types

    return described(given)


def make_select(
    choices: Sequence[Any],
    temperature: Any = 0.0,
    method: Any = None,
    origin: Origin | None = None,
    name: str | None = None,
    loc: Loc | None = None,
    adapter: Any = "",
) -> Select:
    """Build the request of one `select`; raises at `loc` when the choices are not texts or there are none."""
    if not choices:
        raise ParameterError("select(choices=[]): there is nothing to choose from", loc=loc)
    for choice in choices:
        if not isinstance(choice, str):
            raise ArgumentError(f"select(choices=…): {choice!r} is not text; write str(x)", loc=loc)
    method = _method(method or ChoicesMethod.TOKEN_LENGTH_NORMALIZED, loc)
    if temperature.__class__ is not float:
        temperature = resolve(SamplingParams(), {"temperature": temperature}, loc)[0].temperature
    if adapter.__class__ is not str:
        try:
            adapter = _adapter("adapter", adapter)
        except LmcError as error:
            raise _at(error, loc) from None
    seed = origin.seed if origin is not None and temperature > 0 else 0
    return Select(tuple([c if c.__class__ is str else plain_text(c) for c in choices]), method, temperature, seed, name, loc, adapter)


def plain_text(text: str) -> str:
    """Return the text of a member of a StrEnum, or of an instance of any other subclass of `str`."""
    return str.__str__(text)


# -- the persistent prompt -------------------------------------------------------------------------------------


class Forked(NamedTuple):
    """A fork in a prompt's history: whole messages up to there, number of copies that went on, the previous fork."""

    messages: int
    copies: int
    before: Forked | None

    def shared(self, known: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
        """Extend with known facts: how many messages a prompt has in common with how many future ones."""
        found = dict(known)
        fork: Forked | None = self
        while fork is not None:
            found[fork.messages] = max(found.get(fork.messages, 0.0), fork.copies - 1)
            fork = fork.before
        return tuple(found.items())


class Prompt:
    """A prompt: literal parts and answers from the root to here.

    handle   covers   root … the last submitted segment   (owned by the backend, shared by all descendants)
    tail     covers   the literal parts since then, not yet submitted

    Cheap to extend (the parent is shared, never copied) and never changed after it is built.
    """

    __slots__ = ("__weakref__", "forked", "handle", "parent", "parts", "result", "tail")

    def __init__(
        self,
        parent: Prompt | None = None,
        parts: tuple[Piece, ...] = (),
        result: Result | None = None,
        handle: Handle | None = None,
        tail: tuple[Piece, ...] = (),
    ) -> None:
        self.parent, self.parts, self.result, self.handle, self.tail = parent, parts, result, handle, tail
        self.forked: Forked | None = None if parent is None else parent.forked

    def fork(self, copies: int) -> Prompt:
        """Return this prompt as one that so many others go on from."""
        found = Prompt(self, (), None, self.handle, self.tail)
        messages = sum(isinstance(part, Mark) and part.edge == "end" for node in self.nodes() for part in node.parts)
        found.forked = Forked(messages, copies, self.forked)
        return found

    def append(self, *parts: Piece) -> Prompt:
        """Return this prompt followed by literal parts, an image or an excerpt."""
        return Prompt(self, parts, None, self.handle, self.tail + parts)

    def submit(self, backend: Backend, ask: Gen | Select, hints: Hints | None = None) -> Prompt:
        """Return this prompt followed by the answer to `ask`, which the backend starts on at once."""
        if self.forked is not None and hints is not None and getattr(backend, "wants_shared", False):
            hints = hints._replace(shared=self.forked.shared(hints.shared))
        handle = submit(backend, self._begun(), self._segments(ask), hints, self)
        return Prompt(self, (), handle.results[0], handle, ())

    def prefill(self, backend: Backend, hints: Hints | None = None) -> Prompt:
        """Return this prompt with its tail submitted to the backend, so that descendants share the work."""
        handle = backend.prefill(self._begun(), self._segments(), hints)
        return Prompt(self, (), None, handle, ())

    def _begun(self) -> Handle | None:
        """Return the backend's handle to extend; a deferred request is made now."""
        begin = getattr(self.handle, "begin", None)
        return self.handle if begin is None else begin()

    def _segments(self, *ask: Gen | Select) -> tuple[Segment, ...]:
        tail = self.tail
        if not tail:
            return ask
        if not _APART.isdisjoint(map(type, tail)):
            return (*segments_of(_known(tail)), *ask)
        return (Text(tail), *ask)  # pyright: ignore[reportArgumentType]

    def nodes(self) -> list[Prompt]:
        """Yield every node from the root to here."""
        return self.nodes_after(None)

    def nodes_after(self, since: Prompt | None) -> list[Prompt]:
        """Yield nodes that follow `since`, an ancestor of this one or this one; None gives all from the root."""
        path: list[Prompt] = []
        node: Prompt | None = self
        while node is not since:
            if node is None:
                raise ValueError("`since` is not an ancestor of this prompt")
            path.append(node)
            node = node.parent
        path.reverse()
        return path

    def pieces(self, since: Prompt | None = None) -> Iterator[Part]:
        """Return the parts in order, answers as their text; waits for each answer. With `since`, only what follows
        it."""
        for node in self.nodes_after(since):
            for part in node.parts:
                if isinstance(part, Excerpt):
                    yield part.text()
                elif not isinstance(part, Image | Given):  # an image has no text, and an answer's is its result's
                    yield part
            if node.result is not None:
                yield node.result.output().text

    def text(self, since: Prompt | None = None) -> str:
        """Return the text from the root (or from `since`) to here; waits for the answers in it."""
        return plain(list(self.pieces(since)))

    def messages(self) -> list[dict[str, Any]]:
        """Return the closed messages so far as `{"role", "content"}`, tool calls in OpenAI's form; content loses
        leading whitespace, as in SGLang."""
        found: list[dict[str, Any]] = []
        content: list[Part] | None = None
        for piece in self.pieces():
            if isinstance(piece, Mark) and piece.edge == "begin":
                content = []
            elif isinstance(piece, Mark):
                found.append({"role": piece.role, "content": plain(content or []).lstrip()})
                content = None
            elif content is not None:
                content.append(piece)
        return _with_calls(found) if any(m["role"] == "tool" for m in found) else found


def _with_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from lmc.tools import with_calls

    return with_calls(messages)


class Excerpt:
    """The part of an answer that `take` keeps; the answer ends the prompt `after` and must have arrived before the text
    is known."""

    __slots__ = ("after", "take")

    def __init__(self, after: Prompt, take: Callable[[str], str]) -> None:
        self.after, self.take = after, take

    @property
    def result(self) -> Result:
        assert self.after.result is not None, "an excerpt of a prompt that no answer ends"
        return self.after.result

    def text(self) -> str:
        """Return the text. Waits for the answer, and raises its error."""
        return self.take(self.result.output().text)


Piece = Part | Image | Excerpt | Given
_APART = frozenset({Image, Excerpt, Given})


def _known(tail: tuple[Piece, ...]) -> tuple[Part | Image | Given, ...]:
    return tuple(part.text() if isinstance(part, Excerpt) else part for part in tail)


def segments_of(tail: Iterable[Part | Image | Given]) -> Iterator[Segment]:
    """Merge literal parts into few segments, with images and known answers between them."""
    text: list[Part] = []
    for part in tail:
        if not isinstance(part, Image | Given):
            text.append(part)
            continue
        if text:
            yield Text(tuple(text))
            text = []
        yield part
    if text:
        yield Text(tuple(text))
