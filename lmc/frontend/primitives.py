"""The language's expressions: what a program can append to a state. Pure data; `s += expr` submits it.

Constant parameters are checked when the expression is built, so that an error names the user's own line. A traced
program may put a `Symbolic` wherever a str or a number is allowed; those are checked when they are known.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from itertools import islice
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, cast

from lmc.constraints import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from lmc.errors import ArgumentError, AttributeMissing, LmcError, Loc, ParameterError, ProgramError
from lmc.frontend.reasoning import ReasoningFormat, reasoning_format
from lmc.frontend.values import Symbolic
from lmc.images import DETAILS
from lmc.parameters import ANY_RUN, NEVER_CHANGE, fixed, resolve, suggestion
from lmc.segments import DOCUMENT, ChoicesMethod, SamplingParams, plain_text
from lmc.tracebacks import users_frames

__all__ = [
    "REGEX_BOOL", "REGEX_FLOAT", "REGEX_INT", "REGEX_STR", "Expr", "GenExpr", "ImageExpr", "Lit", "ReasoningExpr",
    "RoleBegin", "RoleEnd", "SelectExpr", "Seq", "SpecialExpr", "VarScopeBegin", "VarScopeEnd", "VideoExpr", "assistant",
    "assistant_begin", "assistant_end", "caller_loc", "document", "gen", "gen_int", "gen_string", "greedy_token_selection", "image",
    "select", "separate_reasoning", "special", "system", "system_begin", "system_end", "token_length_normalized",
    "unconditional_likelihood_normalized", "user", "user_begin", "user_end", "video",
]  # fmt: skip

token_length_normalized = ChoicesMethod.TOKEN_LENGTH_NORMALIZED
greedy_token_selection = ChoicesMethod.GREEDY_TOKEN_SELECTION
unconditional_likelihood_normalized = ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED


# -- where in the user's program -----------------------------------------------------------------------------------

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_NOT_THE_USERS = (_PACKAGE, contextlib.__file__)  # managers of lmc are entered from there
_locs: dict[tuple[int, int], tuple[CodeType, Loc]] = {}  # the code object is kept so that its id stays its own
_LOCS_LIMIT = 10_000


place: ContextVar[Callable[[], Loc] | None] = ContextVar("lmc_place", default=None)
"""Source location of an abstract evaluation of a program, while one is running: it has no frames of the user's."""


def caller_loc() -> Loc | None:
    """Return the innermost location outside of lmc on the stack: the user's line and column."""
    evaluated = place.get()
    if evaluated is not None:
        return evaluated()
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    if frame is None:
        return None
    code, at = frame.f_code, frame.f_lasti
    known = _locs.get((id(code), at))
    if known is None:
        if len(_locs) >= _LOCS_LIMIT:
            _locs.clear()
        known = _locs[id(code), at] = (code, _locate(code, at, frame.f_lineno))
    return known[1]


def _locate(code: CodeType, at: int, line: int | None) -> Loc:
    start, _, col, _ = next(islice(code.co_positions(), at // 2, None), (line, 0, 0, 0))
    return Loc(code.co_filename, start or line or 0, col or 0)


# -- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """Something that can be appended to a state. `str + expr`, `expr + str` and `expr + expr` concatenate."""

    def __add__(self, other: Expr | str | Symbolic) -> Seq:
        return Seq(_items(self) + _items(other))

    def __radd__(self, other: str | Symbolic) -> Seq:
        return Seq(_items(other) + _items(self))

    def __format__(self, spec: str) -> str:
        """Raise: an f-string would make a prompt of its repr."""
        raise ArgumentError('an expression is not text and cannot be put into an f-string; concatenate it: "…" + lmc.gen(…)', loc=caller_loc())

    def __str__(self) -> str:
        """Raise: `str(expr)` and `"%s" % expr` would make a prompt of its repr."""
        raise ArgumentError(
            'an expression is not text, and str() cannot make it one; concatenate it: "…" + lmc.gen(…); repr(…) shows what it is', loc=caller_loc()
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both make the same request. The answer is not known yet: comparing with text or a number is a
        mistake, and never true."""
        if isinstance(other, (str, bytes, int, float)):
            raise ArgumentError(
                f"{an(type(self).__name__)} is an expression, which asks the model once it is appended: it equals no "
                f'text and no number; read the answer with s["name"]',
                loc=caller_loc(),
            )
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, f.name) == getattr(other, f.name) for f in fields(self) if f.compare)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, f.name) for f in fields(self) if (f.compare if f.hash is None else f.hash))))

    @users_frames
    def _is_no_answer(self, *_: object) -> Never:
        raise ArgumentError(
            f"{an(type(self).__name__)} is an expression, which asks the model once it is appended: it has no items and no order; "
            f'read the answer with s["name"]',
            loc=caller_loc(),
        )

    if not TYPE_CHECKING:  # a type checker knows which attributes exist
        __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _is_no_answer

        @users_frames
        def __getattr__(self, name: str) -> Any:
            raise AttributeMissing(
                f"{an(type(self).__name__)} has no attribute {name!r}: it is an expression, which asks the model once it is "
                f'appended; read the answer with s["name"]',
                loc=caller_loc(),
            )


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Expr):
    """Expressions one after another; never nested."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lit(Expr):
    """Plain text: a special token's spelling in it stays ordinary text."""

    text: str | Symbolic


@dataclass(frozen=True, slots=True, eq=False)
class SpecialExpr(Expr):
    """A special token of the model by its spelling."""

    spelling: str


@dataclass(frozen=True, slots=True, eq=False)
class GenExpr(Expr):
    """Sample an answer. `given` holds only the arguments that the user gave, by their names in the language.

    Lists and dicts among them are copied at construction: later changes to them have no effect.
    """

    name: str | None
    given: Mapping[str, Any] = field(hash=False)
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class SelectExpr(Expr):
    """Choose one of several continuations."""

    name: str | None
    choices: tuple[str | Symbolic, ...]
    temperature: float | Symbolic = 0.0
    choices_method: ChoicesMethod | Symbolic = token_length_normalized
    loc: Loc | None = field(default=None, compare=False)
    adapter: str | Symbolic | None = None  # None: the run's


@dataclass(frozen=True, slots=True, eq=False)
class RoleBegin(Expr):
    """Opens a message of a role."""

    role: str
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class RoleEnd(Expr):
    """Closes the open message, which must be of this role."""

    role: str
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class ImageExpr(Expr):
    """An image, as given by the user."""

    source: Any
    detail: str = "auto"
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class VideoExpr(Expr):
    """A video, as given by the user."""

    source: Any
    num_frames: int | Symbolic | None = None
    fps: float | Symbolic | None = None
    loc: Loc | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class VarScopeBegin(Expr):
    """From here on text belongs to the variable `name`."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class VarScopeEnd(Expr):
    """The variable `name` is the text since its begin."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ReasoningExpr(Expr):
    """An expression whose answers are split into reasoning and content, by the model family's format."""

    expr: Expr
    format: ReasoningFormat
    loc: Loc | None = field(default=None, compare=False)


def as_expr(x: object, what: str = "concatenate") -> Expr:
    """Return a str, Symbolic or expression as an expression; None raises ValueError, anything else TypeError."""
    if isinstance(x, Expr):
        return x
    if isinstance(x, (str, Symbolic)):
        return Lit(x)
    raise _refusal(x, what)


def _items(x: object) -> tuple[Expr, ...]:
    x = as_expr(x)
    return x.items if isinstance(x, Seq) else (x,)


def _refusal(x: object, what: str) -> ProgramError:
    if x is None:
        return ParameterError(f"cannot {what} None; did a function forget to return its expression?", loc=caller_loc())
    found = next((remedy for kind, remedy in _REMEDIES.items() if kind in [k.__name__ for k in type(x).__mro__]), "")
    return ArgumentError(f"cannot {what} {an(type(x).__name__)}, only text and expressions{found}", loc=caller_loc())


_REMEDIES: Mapping[str, str] = {
    "list": '; join it first: "\\n".join(items)',
    "int": "; write str(x)",
    "float": "; write str(x)",
    "function": "; call it",
    "coroutine": "; await it, in an `async def` program",
    "Function": '; call it, and append its answer: child(…)["name"]',
    "State": '; to append to it write s += …; its text is other.text() or other["name"]',
    "StateGroup": '; append their answers: "\\n".join(f["name"] for f in forks)',
}
"""Hints at correct code in place of appending an object, by the name of its type."""


def an(name: str) -> str:
    """Return a name with its article: `a State`, `an int`, `a user`."""
    return f"an {name}" if name[0] in "aeio" else f"a {name}"


# -- gen and select --------------------------------------------------------------------------------------------------


@users_frames
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | tuple[str, ...] | None = None,
    stop_token_ids: list[int] | tuple[int, ...] | None = None,
    stop_regex: str | list[str] | tuple[str, ...] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: Any = None,
    choices: list[str] | tuple[str, ...] | None = None,
    choices_method: ChoicesMethod | str | None = None,
    regex: str | None = None,
    json_schema: Any = None,
    json_whitespace: Literal["model", "compact", "any"] | None = None,
    strict: bool | None = None,
    ebnf: str | None = None,
    lark: str | None = None,
    structural_tag: Any = None,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    tools: Any = None,
    adapter: str | None = None,
    **unknown: Never,
) -> GenExpr | SelectExpr:
    """An answer of the model, stored under `name`.

    Parameters that are not given come from the run (`fn.run(temperature=…)`). `dtype`, `regex`, `json_schema`, `ebnf`, `lark` and
    `structural_tag` constrain the answer, at most one of them. JSON may be written on one line, compact or indented, as the model begins;
    `json_whitespace="compact"` leaves out all white space, "any" allows it wherever JSON does. `strict=True` refuses schemas with keywords that
    would be ignored or could only be checked when the answer ends. `choices` makes it a `select`. `tools` are functions that the
    model may ask to have called: `get_meta_info(name)["tool_calls"]`, answered with `tool_result`. `adapter` names one of the engine's LoRA adapters, which
    answers in the place of the model itself; "" is the model itself.
    """
    given = {k: v for k, v in locals().items() if v is not None and k not in _NOT_PARAMETERS}
    if unknown:
        _refuse_unknown("gen", unknown)
    if choices is not None:
        return _gen_choices(name, given)
    if choices_method is not None:
        raise ParameterError("gen(choices_method=…) needs choices=[…]", loc=caller_loc())
    return _gen("gen", name, given)


def typed(given: Mapping[str, Any]) -> Any:
    """Return the type or schema that a gen's arguments give its answer; None if none."""
    dtype = given.get("dtype")
    return given.get("json_schema") if dtype is None else dtype


def adapter_of(expr: SelectExpr, defaults: SamplingParams) -> Any:
    """The adapter that a select is asked with."""
    return defaults.adapter if expr.adapter is None else expr.adapter


_NOT_PARAMETERS = frozenset({"name", "unknown"})


def _gen(what: str, name: str | None, given: dict[str, Any]) -> GenExpr:
    loc = caller_loc()
    _check_name(what, name, loc)
    given = {key: x if x.__class__ in NEVER_CHANGE else _fixed(key, x, loc) for key, x in given.items()}
    _check_given(given, any(map(_is_symbolic, given.values())), loc)
    return GenExpr(name, given, loc)


def _fixed(name: str, x: Any, loc: Loc | None) -> Any:
    if _is_symbolic(x):
        return x if isinstance(x, Symbolic) else tuple(x)
    try:
        return fixed(name, x)
    except LmcError as error:
        error.loc = error.loc or loc
        raise


def _check_given(given: Mapping[str, Any], symbolic: bool, loc: Loc | None) -> None:
    """Raise for constant parameters that no run could accept."""
    if symbolic:
        given = {k: v for k, v in given.items() if not _is_symbolic(v)}
    resolve(ANY_RUN, given, loc)


def _is_symbolic(x: Any) -> bool:
    return isinstance(x, Symbolic) or (x.__class__ in (tuple, list, set) and any(map(_is_symbolic, x)))


def _gen_choices(name: str | None, given: dict[str, Any]) -> SelectExpr:
    ignored = sorted(given.keys() - {"choices", "choices_method", "temperature", "adapter"})
    if ignored:
        raise ParameterError(
            f"gen(choices=…) is a select and would ignore {', '.join(k + '=' for k in ignored)}; leave it out",
            loc=caller_loc(),
        )
    return _select("gen", name, given["choices"], given.get("temperature", 0.0), given.get("choices_method"), given.get("adapter"))


@users_frames
def gen_int(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | tuple[str, ...] | None = None,
    stop_token_ids: list[int] | tuple[int, ...] | None = None,
    stop_regex: str | list[str] | tuple[str, ...] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    **unknown: Never,
) -> GenExpr:
    """`gen(dtype=int)`: the answer is the text of an integer."""
    given = {k: v for k, v in locals().items() if v is not None and k not in _NOT_PARAMETERS}
    if unknown:
        _refuse_unknown("gen_int", unknown)
    return _gen("gen_int", name, given | {"dtype": int})


@users_frames
def gen_string(
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | list[str] | tuple[str, ...] | None = None,
    stop_token_ids: list[int] | tuple[int, ...] | None = None,
    stop_regex: str | list[str] | tuple[str, ...] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    **unknown: Never,
) -> GenExpr:
    """`gen(dtype=str)`: the answer is a quoted string."""
    given = {k: v for k, v in locals().items() if v is not None and k not in _NOT_PARAMETERS}
    if unknown:
        _refuse_unknown("gen_string", unknown)
    return _gen("gen_string", name, given | {"dtype": str})


@users_frames
def select(
    name: str | None = None,
    choices: list[str] | tuple[str, ...] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str = token_length_normalized,
    adapter: str | None = None,
    **unknown: Never,
) -> SelectExpr:
    """The choice that the model finds most likely here, stored under `name`. `adapter`: as in `gen`."""
    if unknown:
        _refuse_unknown("select", unknown)
    return _select("select", name, choices, temperature, choices_method, adapter)


def _select(what: str, name: str | None, choices: Any, temperature: Any, method: Any, adapter: Any) -> SelectExpr:
    loc = caller_loc()
    _check_name(what, name, loc)
    if choices is None or isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ArgumentError(f"{what}(choices=…) takes a list of strings, not {choices!r}", loc=loc)
    choices = tuple(cast(Iterable[Any], choices))
    if not choices:
        raise ParameterError(f"{what}(choices=[]): there is nothing to choose from", loc=loc)
    for choice in choices:
        if not isinstance(choice, (str, Symbolic)):
            raise ArgumentError(f"{what}(choices=…): {choice!r} is {an(type(choice).__name__)}; choices must be text", loc=loc)
    if not isinstance(temperature, Symbolic):
        resolve(ANY_RUN, {"temperature": temperature}, loc)
    if adapter is not None and not isinstance(adapter, Symbolic):
        adapter = resolve(ANY_RUN, {"adapter": adapter}, loc)[0].adapter
    choices = tuple([plain_text(c) if isinstance(c, str) else c for c in choices])  # an answer is text, whatever the class of the choice
    return SelectExpr(name, choices, temperature, _method(what, method, loc), loc, adapter)


def _method(what: str, method: Any, loc: Loc | None) -> ChoicesMethod | Symbolic:
    if method is None:
        return token_length_normalized
    if isinstance(method, Symbolic):
        return method
    try:
        return ChoicesMethod(method)
    except ValueError:
        known = ", ".join(ChoicesMethod)
        raise ParameterError(f"{what}(choices_method={method!r}): one of {known}", loc=loc) from None


def _check_name(what: str, name: object, loc: Loc | None) -> None:
    if name is not None and not isinstance(name, (str, Symbolic)):
        raise ArgumentError(f"{what}() takes a variable's name first, not {name!r}", loc=loc)


def _refuse_unknown(what: str, unknown: Mapping[str, Any]) -> NoReturn:
    name = next(iter(unknown))
    code = inspect.unwrap(_TAKES[what]).__code__
    known = code.co_varnames[: code.co_argcount]
    raise ArgumentError(f"{what}() has no parameter {name!r}{suggestion(name, known)}", loc=caller_loc())


_TAKES: Mapping[str, Any] = {f.__name__: f for f in (gen, gen_int, gen_string, select)}


# -- roles, media, scopes --------------------------------------------------------------------------------------------


def _role(role: str, expr: Expr | str | Symbolic | None) -> Seq:
    loc = caller_loc()
    inside = () if expr is None else _items(expr)
    return Seq((RoleBegin(role, loc), *inside, RoleEnd(role, loc)))


@users_frames
def system(expr: Expr | str | None = None) -> Seq:
    """A system message."""
    return _role("system", expr)


@users_frames
def user(expr: Expr | str | None = None) -> Seq:
    """A user message."""
    return _role("user", expr)


@users_frames
def assistant(expr: Expr | str | None = None) -> Seq:
    """An assistant message."""
    return _role("assistant", expr)


def system_begin() -> RoleBegin:
    """Opens a system message; `system_end()` closes it."""
    return RoleBegin("system", caller_loc())


def system_end() -> RoleEnd:
    """Closes the open system message."""
    return RoleEnd("system", caller_loc())


def user_begin() -> RoleBegin:
    """Opens a user message; `user_end()` closes it."""
    return RoleBegin("user", caller_loc())


def user_end() -> RoleEnd:
    """Closes the open user message."""
    return RoleEnd("user", caller_loc())


def assistant_begin() -> RoleBegin:
    """Opens an assistant message; `assistant_end()` closes it."""
    return RoleBegin("assistant", caller_loc())


def assistant_end() -> RoleEnd:
    """Closes the open assistant message."""
    return RoleEnd("assistant", caller_loc())


@users_frames
def special(text: str) -> SpecialExpr:
    """A special token of the model by its spelling, such as `"<|im_start|>"`. Plain text never becomes one."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"special() takes a constant spelling, not {an(type(text).__name__)}", loc=caller_loc())
    return SpecialExpr(text)


@users_frames
def image(source: Any, detail: str = "auto") -> ImageExpr:
    """An image for a vision model.

    source  a path, the bytes of a PNG, JPEG, GIF or WebP file, a data URL, a PIL image, an array or tensor of pixels
            (uint8, or floats from 0 to 1; [height, width, 3] or channels first), or a web address, which the backend
            fetches
    detail  "low" or "high": the resolution at which an API that offers the choice processes it

    It is read once, where it is appended. Anything that is not a valid image (damaged, animated, empty, beyond 64 million pixels, of more than
    8 bits or CMYK) is an error at that line, before the model is asked.
    """
    loc = caller_loc()
    if detail not in DETAILS:
        raise ParameterError(f"image(detail={detail!r}): one of {', '.join(DETAILS)}", loc=loc)
    return ImageExpr(source, detail, loc)


@users_frames
def document(source: Any) -> ImageExpr:
    """A PDF for an API that reads them: `lmc.OpenAI`, `lmc.Anthropic`, `lmc.LiteLLM`.

    source  a path, the bytes of the file, a data URL, or a web address where the backend fetches it (Anthropic, OpenAI's Responses)

    It is read once, where it is appended; anything but a PDF, or one longer than 32 MiB, is an error at that line.
    """
    return ImageExpr(source, DOCUMENT, caller_loc())


@users_frames
def video(path: Any, num_frames: int | None = None, fps: float | None = None) -> VideoExpr:
    """A video, of which a model sees some frames: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA-OneVision, LLaVA-NeXT-Video and SmolVLM on an engine.

    path        a path, the bytes of an MP4, WebM, AVI, GIF … file, or its data URL
    num_frames  so many frames, evenly spread over the video
    fps         so many frames a second, instead; without both, the model's default

    It is read once, where it is appended; anything else, a damaged file, or one with fewer frames is an error there,
    before the model is asked. Needs the extra `video`.
    """
    loc = caller_loc()
    if num_frames is not None and fps is not None:
        raise ArgumentError("video() takes num_frames=… or fps=…, not both", loc=loc)
    return VideoExpr(path, num_frames, fps, loc)


@users_frames
def separate_reasoning(expr: Expr | None = None, model_type: str | None = None) -> ReasoningExpr:
    """`expr` with its answers split into reasoning and content, by the format of the model family `model_type`.

    A variable of `expr` is the content, and the prompt goes on with that alone; the reasoning is the variable
    `<name>_reasoning_content`. Families: "deepseek-r1", "qwen3", … (lmc.frontend.reasoning.FORMATS).
    """
    loc = caller_loc()
    if not isinstance(expr, Expr):
        raise ArgumentError("separate_reasoning() takes an expression such as gen(…)", loc=loc)
    if not isinstance(model_type, str):
        raise ArgumentError('separate_reasoning() needs the family of the model: model_type="qwen3"', loc=loc)
    return ReasoningExpr(expr, reasoning_format(model_type, loc), loc)
