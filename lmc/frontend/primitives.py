"""The language: functions that make expressions (expressions.py), under the names that programs use.

Constant parameters are checked when the expression is built, so that an error names the user's own line. A traced
program may put a `Symbolic` wherever a str or a number is allowed; those are checked when they are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Never, NoReturn, cast

from lmc.errors import ArgumentError, LmcError, Loc, ParameterError
from lmc.frontend.expressions import (
    OMITTED,
    Expr,
    GenExpr,
    ImageExpr,
    ReasoningExpr,
    RoleBegin,
    RoleEnd,
    SelectExpr,
    Seq,
    SpecialExpr,
    VideoExpr,
    an,
    caller_loc,
    items_of,
)
from lmc.frontend.values import Symbolic
from lmc.images import DETAILS
from lmc.parameters import ANY_RUN, NEVER_CHANGE, choices_method, fixed, resolve, suggestion
from lmc.reasoning import reasoning_format
from lmc.segments import DOCUMENT, ChoicesMethod, plain_text
from lmc.tracebacks import users_frames

__all__ = [
    "assistant", "assistant_begin", "assistant_end", "document", "gen", "gen_int", "gen_string", "greedy_token_selection", "image", "select",
    "separate_reasoning", "special", "system", "system_begin", "system_end", "token_length_normalized", "unconditional_likelihood_normalized", "user",
    "user_begin", "user_end", "video",
]  # fmt: skip

token_length_normalized = ChoicesMethod.TOKEN_LENGTH_NORMALIZED
greedy_token_selection = ChoicesMethod.GREEDY_TOKEN_SELECTION
unconditional_likelihood_normalized = ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED


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
    """Request an answer of the model, stored under `name`.

    Where it ends, how it is sampled and which log-probabilities it has is said by the fields of `lmc.SamplingParams` (`max_tokens` and `min_tokens` limit new
    tokens); what is not given comes from the run (`fn.run(temperature=…)`). `dtype`, `regex`, `json_schema`, `ebnf`, `lark` and
    `structural_tag` constrain the answer, at most one of them. JSON may be written on one line, compact or indented, as the model begins;
    `json_whitespace="compact"` leaves out all white space, "any" allows it wherever JSON does. `strict=True` refuses schemas with keywords that
    would be ignored or could only be checked when the answer ends. `choices` makes it a `select`, by `choices_method`. `seed` is that of this
    answer alone, in place of the one that follows from the run's. `tools` are functions that the
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
    """`gen(dtype=int)`, with the same parameters: the answer is the text of an integer."""
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
    """`gen(dtype=str)`, with the same parameters: the answer is a quoted string."""
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
    """Request the choice that the model finds most likely here, stored under `name`: by the log-probabilities of `choices`, as `choices_method` compares
    them. `temperature` matters to APIs alone that give no log-probabilities, and generate the choice. `adapter`: as in `gen`. Raises `ParameterError`
    at its line for arguments that no run could accept, as `gen` does."""
    if unknown:
        _refuse_unknown("select", unknown)
    return _select("select", name, choices, temperature, choices_method, adapter)


def _select(what: str, name: str | None, choices: Any, temperature: Any, method: Any, adapter: Any) -> SelectExpr:
    loc = caller_loc()
    _check_name(what, name, loc)
    if choices is None or isinstance(choices, str) or not isinstance(choices, Iterable):
        raise ArgumentError(f"{what}(choices=…) takes a list of strings, not {choices!r}", loc=loc)
    if isinstance(choices, (set, frozenset)):
        raise ArgumentError(f"{what}(choices=…) takes a list of strings: a set has another order in each process; write sorted(…)", loc=loc)
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
    if not isinstance(method, Symbolic):
        method = choices_method(what, token_length_normalized if method is None else method, loc)
    return SelectExpr(name, choices, temperature, method, loc, adapter)


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


def _role(role: str, expr: Expr | str | Symbolic) -> Seq:
    loc = caller_loc()
    inside = () if expr is OMITTED else items_of(expr)
    return Seq((RoleBegin(role, loc), *inside, RoleEnd(role, loc)))


@users_frames
def system(expr: Expr | str = OMITTED) -> Seq:
    """Make a system message whose content is `expr`, an expression or text; nothing: an empty one."""
    return _role("system", expr)


@users_frames
def user(expr: Expr | str = OMITTED) -> Seq:
    """Make a user message whose content is `expr`, an expression or text; nothing: an empty one."""
    return _role("user", expr)


@users_frames
def assistant(expr: Expr | str = OMITTED) -> Seq:
    """Make an assistant message whose content is `expr`, an expression or text; nothing: an empty one."""
    return _role("assistant", expr)


def system_begin() -> RoleBegin:
    """Open a system message; `system_end()` closes it."""
    return RoleBegin("system", caller_loc())


def system_end() -> RoleEnd:
    """Close the open system message."""
    return RoleEnd("system", caller_loc())


def user_begin() -> RoleBegin:
    """Open a user message; `user_end()` closes it."""
    return RoleBegin("user", caller_loc())


def user_end() -> RoleEnd:
    """Close the open user message."""
    return RoleEnd("user", caller_loc())


def assistant_begin() -> RoleBegin:
    """Open an assistant message; `assistant_end()` closes it."""
    return RoleBegin("assistant", caller_loc())


def assistant_end() -> RoleEnd:
    """Close the open assistant message."""
    return RoleEnd("assistant", caller_loc())


@users_frames
def special(text: str) -> SpecialExpr:
    """Put a special token of the model into the prompt by its spelling, such as `"<|im_start|>"`. Plain text never becomes one."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentError(f"special() takes a constant spelling, not {an(type(text).__name__)}", loc=caller_loc())
    return SpecialExpr(text)


@users_frames
def image(source: Any, detail: str = "auto") -> ImageExpr:
    """Put an image into the prompt, for a vision model.

    source  a path, the bytes of a PNG, JPEG, GIF or WebP file, a data URL, a PIL image, an array or tensor of pixels
            (uint8, or floats from 0 to 1; [height, width, 3] or channels first), or a web address, which an API
            fetches and an engine refuses
    detail  "low" or "high": the resolution at which an API that offers the choice processes it; on an engine, "low" is one tile with SmolVLM,
            Idefics3 and LLaVA-OneVision

    It is read once, where it is appended. Anything that is not a valid image (damaged, animated, empty, beyond 64 million pixels, of more than
    8 bits or CMYK) is an error at that line, before the model is asked.
    """
    loc = caller_loc()
    if detail not in DETAILS:
        raise ParameterError(f"image(detail={detail!r}): one of {', '.join(DETAILS)}", loc=loc)
    return ImageExpr(source, detail, loc)


@users_frames
def document(source: Any) -> ImageExpr:
    """Put a PDF into the prompt, for an API that reads them: `lmc.OpenAI`, `lmc.Anthropic`, `lmc.LiteLLM`.

    source  a path, the bytes of the file, a data URL, or a web address where the backend fetches it (Anthropic, OpenAI's Responses)

    It is read once, where it is appended; anything but a PDF, or one longer than 32 MiB, is an error at that line.
    """
    return ImageExpr(source, DOCUMENT, caller_loc())


@users_frames
def video(path: Any, num_frames: int | None = None, fps: float | None = None) -> VideoExpr:
    """Put a video, of which a model sees frames, into the prompt: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA-OneVision, LLaVA-NeXT-Video and SmolVLM on an engine.

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
    `<name>_reasoning_content`. Families: "deepseek-r1", "qwen3", … (lmc.reasoning.FORMATS).
    """
    loc = caller_loc()
    if not isinstance(expr, Expr):
        raise ArgumentError("separate_reasoning() takes an expression such as gen(…)", loc=loc)
    if not isinstance(model_type, str):
        raise ArgumentError('separate_reasoning() needs the family of the model: model_type="qwen3"', loc=loc)
    return ReasoningExpr(expr, reasoning_format(model_type, loc), loc)
