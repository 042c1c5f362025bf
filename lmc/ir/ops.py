"""The op table: every fact about an op that the verifier, the printer and the passes use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from lmc.ir.core import Attr, Op

Trait = Literal["pure", "opaque", "effect", "samples", "terminator"]
Stage = Literal["traced", "planned"]
BOTH: frozenset[Stage] = frozenset({"traced", "planned"})


@dataclass(frozen=True, slots=True)
class OpSpec:
    """The specification of one kind of op.

    operands  type of each operand in order; "*T" as the last means any number of T; "const" is a literal
    results   types of the results in order
    trait     its treatment by passes
    stages    where it may appear; `traced`: emitted by the evaluator, `planned`: after passes
    """

    kind: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    trait: Trait
    doc: str
    attrs: tuple[str, ...] = ()
    stages: frozenset[Stage] = BOTH


GEN_PARAMS = (
    "max_tokens min_tokens n stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty ignore_eos "
    "return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs "
    "dtype regex json_schema json_whitespace strict ebnf lark structural_tag seed logit_bias tools adapter"
).split()

ATTRS: dict[str, str] = {
    "name": "the variable that the answer is stored under, or none",
    "stream": 'the fork path of the state, "" for the root; with `ordinal` the address from which the seed derives',
    "ordinal": "the number of the request on its stream",
    "shifted": "the number of requests before it on its stream is undecided; the ordinal is its least possible value",
    "also": "stream and ordinal of each equal request that was merged into this one",
    "params": "names of the parameters whose values are the trailing operands, in their order",
    "constraint": "the compiled constraint, a constant of the graph",
    "order": "the place of the request in depth-first order of the prompts, if that is not the program's order",
    "group": "number and size of a group: its siblings are submitted together",
    "ways": "its index among equal samples of a group, and their number",
    "trie": "the choices are scored as one trie in one pass",
    "lookahead": "the text and the requests that this request may cover besides its answer",
    "shared": "pairs: a number of whole messages of its prompt (-1: all), and how many later requests begin with them",
    "lazy": "the answer has no known reader: it is requested when it is read",
    "method": "how the choices are compared",
    "temperature": "0 takes the likeliest choice",
    "adapter": "the LoRA adapter of the model",
    "role": "the message's role",
    "previous": "the role of the previous message, or none",
    "kwargs": "names of the trailing operands that are passed by name",
    "calls": "the function that Python calls to get the value; the call may take long",
    "reason": "why the evaluator does not know the value",
    "scope": '"program" keeps the pin for all runs of the program; without it, a release ends the pin',
    "vars": "names of the returned state's variables, whose values follow the prompt",
    "outputs": "the variables that the caller wants; all others are none, and the prompt is only a stand-in",
    "leaves": "arms that end an iteration of a loop over known items, the loop, or a helper; the graph ignores that, so what follows is only likely",
    "taken": "how many runs took each arm, in the order of the cases; of a loop, how often it was entered, and its iterations in all",
}

# Attributes of a request op that are not part of the request itself.
IDENTITY = ("stream", "ordinal", "shifted", "also")  # its identity in the program: the fork path of the state, and the number on it
PLANNED = ("order", "group", "ways", "trie", "lookahead", "shared", "lazy")  # plan of its address; the answer is the same without

_ASK = ("name", *IDENTITY, "params")

# fmt: off
OPS: dict[str, OpSpec] = {
    spec.kind: spec
    for spec in (
        OpSpec("ctx.new", (), ("ctx",), "pure", "The empty prompt."),
        OpSpec("append", ("ctx", "*str"), ("ctx",), "pure", "The prompt followed by literal text, special tokens and marks."),
        OpSpec("image", ("ctx", "any"), ("ctx",), "pure", "The prompt followed by an image."),
        OpSpec("video", ("ctx", "any", "any", "any"), ("ctx",), "pure",
               "The prompt followed by frames of a video. Operands: the file, the number of frames, frames per second."),
        OpSpec("role.begin", ("ctx",), ("ctx",), "pure", "Opens a message.", ("role", "previous"), frozenset({"traced"})),
        OpSpec("role.end", ("ctx",), ("ctx",), "pure", "Closes the open message.", ("role",), frozenset({"traced"})),
        OpSpec("ctx.text", ("ctx",), ("str",), "pure", "The text of a prompt."),
        OpSpec("ctx.slice", ("ctx", "ctx"), ("str",), "pure", "The text of the first prompt after the second, its ancestor."),
        OpSpec("ctx.messages", ("ctx",), ("any",), "pure", "The complete messages of a prompt."),
        OpSpec("concat", ("*str",), ("str",), "pure", "Concatenated text."),
        OpSpec("gen", ("ctx", "*any"), ("ctx", "str", "any"), "samples", "Samples an answer. Results: the prompt with the answer, its value, its meta info.",
               (*_ASK, *GEN_PARAMS, "constraint", "order", "group", "ways", "lookahead", "shared", "lazy")),
        OpSpec("select", ("ctx", "*any"), ("ctx", "str", "any"), "samples", "Chooses one of the operands by log-probability.",
               (*_ASK, "method", "temperature", "adapter", "order", "group", "trie", "shared", "lazy")),
        OpSpec("unknown", ("*any",), ("any",), "opaque", "A value that only Python knows, computed from the operands and possibly from other "
               "things. If an operand is a prompt, unknown code may read or extend it.", ("calls", "reason")),
        OpSpec("prefill", ("ctx",), (), "effect", "Computes and pins the KV of a prompt.", ("scope",), frozenset({"planned"})),
        OpSpec("release", ("ctx",), (), "effect", "Ends a pin.", (), frozenset({"planned"})),
        OpSpec("switch", ("any",), (), "terminator", "Branches to the arm whose case equals the operand; arms that yield continue at `then`.",
               ("taken", "leaves")),
        OpSpec("loop", ("any", "*any"), (), "terminator", "Iterates over the items of the first operand (none: an unknown number of times). The parameters "
               "of the body, and of the block at `then`, are the other operands at first, and then the values that the last iteration yielded.", ("taken",)),
        OpSpec("yield", ("*any",), (), "terminator", "Ends an arm or an iteration of a loop, with the values it yields."),
        OpSpec("continue", ("*any",), (), "terminator", "Ends an iteration of the innermost loop from an arm in it."),
        OpSpec("break", ("*any",), (), "terminator", "Ends the innermost loop from an arm in it."),
        OpSpec("return", ("any", "ctx", "*any"), (), "terminator", "Ends the run: value, final prompt, then the value of each variable.", ("vars", "outputs")),
        OpSpec("raise", ("any",), (), "terminator", "Ends the run with an exception."),
    )
}
# fmt: on

FUNCTION = OpSpec(
    "py.*", ("*any",), ("any",), "pure", "A function of Python without side effects, by its name: `py.eq`, `py.str.strip`, `py.json.loads`.", ("kwargs",)
)
"""All ops whose kind begins with `py.`: functions in the evaluator's table."""


IMAGES = ("image", "video")
"""Kinds that append what has no text."""


def spec_of(kind: str) -> OpSpec | None:
    """Return the table's entry for a kind; None for an unknown one."""
    if (found := OPS.get(kind)) is not None:
        return found
    return FUNCTION if kind.startswith("py.") and len(kind) > 3 else None


def default_type(kind: str, i: int) -> str | None:
    """Return the type that an op's `i`-th result has unless its text says another; None if its text has to."""
    found = spec_of(kind)
    types = found.results if found is not None else ()
    return types[i] if i < len(types) else None


def spec(op: Op) -> OpSpec:
    """Return the table's entry for an op; KeyError for an unknown kind (the verifier's error is better)."""
    found = spec_of(op.kind)
    if found is None:
        raise KeyError(op.kind)
    return found


def trait(op: Op) -> Trait:
    """Return the op's trait."""
    return spec(op).trait


def request(op: Op, *, but: Collection[str] = ()) -> dict[str, Attr]:
    """Return the attributes that define a request: without its identity, the plan, the variable's name, and those in
    `but`."""
    return {k: v for k, v in op.attrs.items() if k != "name" and k not in IDENTITY and k not in PLANNED and k not in but}


def address(op: Op) -> tuple[str, int] | None:
    """Return the stream and ordinal of a request; None where they are undecided."""
    stream, ordinal = op.attr("stream"), op.attr("ordinal")
    if not isinstance(stream, str) or not isinstance(ordinal, int) or op.attr("shifted"):
        return None
    return stream, ordinal
