"""From the arguments of `gen` and `select` to requests: sampling parameters are checked, defaults and constraints resolved."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any

from lmc.answers import limit_of
from lmc.arguments import Check, integer, number, wrong_type
from lmc.constraints import CONSTRAINT_KINDS, check_length, check_regex, dtype_constraint, json_text, make_constraint
from lmc.errors import ArgumentError, LmcError, Loc, ParameterError
from lmc.segments import ChoicesMethod, Constraint, Gen, SamplingParams, Select, derive_seed, plain_text
from lmc.tools import described

_COLDEST = 1e-5
"""Temperatures below this sample as 0 does: logits divided by them overflow (vLLM and SGLang draw this line too)."""
_MOST_SAMPLES = 16_384  # of one request: a mistyped number would take all memory


def _temperature(name: str, value: Any) -> float:
    value = number(0)(name, value)
    return 0.0 if value < _COLDEST else value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, int)):
        raise wrong_type(name, value, "True or False")
    return bool(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Check one text or several; empty ones match everywhere and are refused."""
    found: tuple[Any, ...] = (value,) if isinstance(value, str) else _sequence(name, value, "text or a list of texts")
    for text in found:
        if not isinstance(text, str):
            raise wrong_type(name, value, "text or a list of texts")
        if not text:
            raise ParameterError(f"{name}={value!r}: an empty text would stop at once")
    return found


def _regexes(name: str, value: Any) -> tuple[str, ...]:
    texts = _texts(name, value)
    check_length(name, "".join(texts))
    return tuple(check_regex(text, name) for text in texts)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    one = integer(0)
    return tuple(one(name, x) for x in _sequence(name, value, "a list of token ids"))


def _sequence(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(type(value), "__iter__"):
        raise wrong_type(name, value, wanted)
    try:
        return tuple(sorted(value) if isinstance(value, set | frozenset) else value)
    except TypeError:
        raise wrong_type(name, value, wanted) from None


def _bias(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    pairs: Any = value.items() if isinstance(value, Mapping) else value
    try:
        return tuple(sorted((int(token), float(bias)) for token, bias in pairs))
    except (TypeError, ValueError):
        raise wrong_type(name, value, "a mapping from token ids to numbers") from None


def _adapter(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, value, "the name of an adapter, as text")
    return plain_text(value)


# argument → (field of SamplingParams, check); `gen` and `run` differ only in the names of the first two
_PARAMETERS: Mapping[str, tuple[str, Check]] = {
    "max_tokens": ("max_new_tokens", integer(0)),
    "min_tokens": ("min_new_tokens", integer(0)),
    "max_new_tokens": ("max_new_tokens", integer(0)),
    "min_new_tokens": ("min_new_tokens", integer(0)),
    "n": ("n", integer(1, most=_MOST_SAMPLES)),
    "stop": ("stop", _texts),
    "stop_token_ids": ("stop_token_ids", _token_ids),
    "stop_regex": ("stop_regex", _regexes),
    "temperature": ("temperature", _temperature),
    "top_p": ("top_p", number(0, 1, above=True)),
    "top_k": ("top_k", integer(1, also=-1)),
    "min_p": ("min_p", number(0, 1)),
    "frequency_penalty": ("frequency_penalty", number(-2, 2)),
    "presence_penalty": ("presence_penalty", number(-2, 2)),
    "ignore_eos": ("ignore_eos", _flag),
    "return_logprob": ("return_logprob", _flag),
    "logprob_start_len": ("logprob_start_len", integer(0, also=-1)),
    "top_logprobs_num": ("top_logprobs_num", integer(0)),
    "return_text_in_logprobs": ("return_text_in_logprobs", _flag),
    "logit_bias": ("logit_bias", _bias),
    "adapter": ("adapter", _adapter),
}

RUN_SAMPLING = tuple(name for name in _PARAMETERS if name not in ("max_tokens", "min_tokens"))  # run-level names


def suggestion(name: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?`, or a list of the known names."""
    names = {one.lower(): one for one in reversed(list(known))}
    near = difflib.get_close_matches(str(name).lower(), names, 1)
    return f"; did you mean {names[near[0]]!r}?" if near else f"; there are {', '.join(known)}" if known else "; it takes none"


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
    name = None
    try:
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
                integer(0)(name, value)
            elif name == "tools":
                _tools(value)
            else:
                raise ArgumentError(f"gen() has no parameter {name!r}{suggestion(name, list(_PARAMETERS))}")
    except LmcError as error:
        error.param = name
        raise
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
        changes["max_new_tokens"] = limit_of(constraint.source)
    params = replace(defaults, **changes) if changes else defaults
    if params.min_new_tokens > params.max_new_tokens:
        raise ParameterError(f"min_tokens={params.min_new_tokens} is more than max_tokens={params.max_new_tokens}", param="min_tokens")
    return params, constraint


_NO_LIMIT_SAID = SamplingParams().max_new_tokens


def _whitespace(name: str, value: Any) -> str:
    if value not in ("model", "compact", "any"):
        raise ParameterError(f'{name}={value!r}: must be one of "model", "compact", "any"')
    return value


_LAYOUT: Mapping[str, tuple[str, Check]] = {
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
        return json_text(name, value)
    return _tools(value) if name == "tools" else value


def choices_method(what: str, value: Any, loc: Loc | None = None) -> ChoicesMethod:
    """Return the method of a name. Raises ParameterError."""
    try:
        return ChoicesMethod(value)
    except ValueError:
        known = ", ".join(ChoicesMethod)
        raise ParameterError(f"{what}(choices_method={value!r}): one of {known}", loc=loc) from None


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
    method = choices_method("select", method or ChoicesMethod.TOKEN_LENGTH_NORMALIZED, loc)
    if temperature.__class__ is not float:
        temperature = resolve(SamplingParams(), {"temperature": temperature}, loc)[0].temperature
    if adapter.__class__ is not str:
        try:
            adapter = _adapter("adapter", adapter)
        except LmcError as error:
            raise _at(error, loc) from None
    seed = origin.seed if origin is not None and temperature > 0 else 0
    return Select(tuple([c if c.__class__ is str else plain_text(c) for c in choices]), method, temperature, seed, name, loc, adapter)
