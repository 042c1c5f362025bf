"""The op table: every fact about an op that the verifier, the printer, the passes and the executor ask for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from lmc.ir.core import Attr, Op

Trait = Literal["pure", "ordered", "effect", "samples", "terminator"]
Stage = Literal["traced", "planned"]
BOTH: frozenset[Stage] = frozenset({"traced", "planned"})


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What holds for every op of one kind.

    operands  type of each operand in order; "*T" as the last means any number of T; "const" is a literal or symbol
    results   types of the results in order; "*any" as the last means any number
    trait     how passes may treat it (design.md §2.2); `host.call` says its own by attributes
    stages    where it may appear; `traced` is what the tracer emits, `planned` what the passes hand to the executor
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
    "return_logprob logprob_start_len top_logprobs_num return_text_in_logprobs dtype regex json_schema ebnf lark structural_tag seed logit_bias tools"
).split()

ATTRS: dict[str, str] = {
    "name": "the variable that the answer is stored under, or none",
    "stream": 'the fork path of the state, "" for the root; with `ordinal` the identity from which the seed derives',
    "ordinal": "the number of the ask on its stream; of a return: how many asks the state has made",
    "also": "stream and ordinal of each equal ask that was merged into this one",
    "params": "names of the parameters that the trailing operands give, in their order; of a given: of its operands",
    "constraint": "the compiled constraint, a constant of the graph",
    "order": "the ask's place in the depth-first visit of the prompts, where it is not its place in the program",
    "group": "number and size of a group: its siblings are submitted together",
    "ways": "which of a group's equal samples it is, and of how many",
    "trie": "the choices are scored as one trie in one pass",
    "lookahead": "the text that one request may cover besides this answer",
    "method": "how log-probabilities become a choice",
    "temperature": "0 takes the likeliest",
    "role": "the message's role; of a return: the role that is open, or none",
    "previous": "the role of the message before, or none",
    "kwargs": "names of the trailing operands that are passed by name",
    "pure": "operands and results are immutable and nothing else is touched: may be merged; erased if it cannot raise",
    "ordered": "touches an object that can change: stays in order, is never merged",
    "total": "cannot raise",
    "inline": "quick and without effects on anything else: runs where the executor runs",
    "catch": "gives two more results instead of raising: the class of the exception (none if there is none) and the exception",
    "within": "inside of a `with` of the host: all such calls of a run are made on one thread",
    "ord": "the identity of an effect, an ordered call or a given, by which an interpreter that takes over finds its result",
    "touches": "the objects that an ordered call touches",
    "unordered": "an effect that need not wait for others of its kind: several may run at once",
    "idempotent": "may be called again when a run is taken up again",
    "timeout": "seconds after which the call raises HostTimeout",
    "awaits": "what the function gives is awaited",
    "scope": '"program" keeps the pin for all runs of the program; without it a release ends it',
    "vars": "names of the returned, or shown, state's variables; value and meta of each follow the prompt",
    "opens": "the scope of text that begins at the prompt that is shown",
    "closes": "the scope of text that ends there",
    "number": "how many appends to the state have been shown with this one",
    "forks": "how many forks the returned state has made",
    "calls": "how many programs the returned state has called",
    "outputs": "the variables that the caller wants; all others are none, and the prompt is only a stand-in",
    "id": "the number by which the path that follows is linked; negative: it cannot be",
    "reason": "why the program cannot be followed any further",
}

# What an attribute of an ask is about. All others are the request: what is asked.
IDENTITY = ("stream", "ordinal", "also")  # which asks of the program it is: the fork path of the state, and the number on it
PLANNED = ("order", "group", "ways", "trie", "lookahead")  # what passes say to the executor; the answer is the same without

_ASK = ("name", *IDENTITY, "params")

# fmt: off
OPS: dict[str, OpSpec] = {
    spec.kind: spec
    for spec in (
        OpSpec("ctx.new", (), ("ctx",), "pure", "The empty prompt."),
        OpSpec("append", ("ctx", "*str"), ("ctx",), "pure", "The prompt followed by literal text, special tokens and marks."),
        OpSpec("image", ("ctx", "any"), ("ctx",), "pure", "The prompt followed by an image."),
        OpSpec("video", ("ctx", "any", "const"), ("ctx",), "pure", "The prompt followed by frames of a video."),
        OpSpec("role.begin", ("ctx",), ("ctx",), "pure", "Opens a message.", ("role", "previous"), frozenset({"traced"})),
        OpSpec("role.end", ("ctx",), ("ctx",), "pure", "Closes the open message.", ("role",), frozenset({"traced"})),
        OpSpec("ctx.text", ("ctx",), ("str",), "pure", "The text of a prompt.", ("catch",)),
        OpSpec("ctx.slice", ("ctx", "ctx"), ("str",), "pure", "The text of the first prompt after the second, its ancestor.", ("catch",)),
        OpSpec("ctx.messages", ("ctx",), ("any",), "ordered", "The closed messages of a prompt, a new list.", ("catch",)),
        OpSpec("concat", ("*str",), ("str",), "pure", "Text joined."),
        OpSpec("given", ("*any",), ("*any",), "ordered", "Arguments of a gen or select as they are where it is written: what no run could accept is "
               "raised here, and nothing that is done to a list or dict later changes what is asked.", ("params", "ord")),
        OpSpec("gen", ("ctx", "*any"), ("ctx", "str", "any"), "samples", "Samples an answer: the prompt with it, its value, its meta info.",
               (*_ASK, *GEN_PARAMS, "constraint", "order", "group", "ways", "lookahead")),
        OpSpec("select", ("ctx", "*any"), ("ctx", "str", "any"), "samples", "Chooses one of the operands by log-probability.",
               (*_ASK, "method", "temperature", "order", "group", "trie")),
        OpSpec("read", ("any",), ("any",), "pure", "Waits for an answer or its meta info and raises what it failed with, here in program order.",
               ("catch",)),
        OpSpec("host.call", ("const", "*any"), ("*any",), "effect", "Calls a host function on real values.",
               ("kwargs", "pure", "ordered", "total", "inline", "within", "catch", "ord", "touches", "unordered", "idempotent", "timeout", "awaits")),
        OpSpec("show", ("ctx", "*any"), (), "effect", "Shows the prompt so far, and value and meta of each variable that is new, to those who "
               "watch the run.", ("vars", "opens", "closes", "number")),
        OpSpec("prefill", ("ctx",), (), "effect", "Computes and pins the KV of a prompt.", ("scope",), frozenset({"planned"})),
        OpSpec("release", ("ctx",), (), "effect", "Ends a pin.", (), frozenset({"planned"})),
        OpSpec("switch", ("any",), (), "terminator", "Goes to the block whose case equals the operand."),
        OpSpec("return", ("any", "ctx", "*any"), (), "terminator", "Ends the run: value, final prompt, then value and meta of each variable.",
               ("vars", "ordinal", "forks", "calls", "role", "previous", "outputs")),
        OpSpec("raise", ("any", "*any"), (), "terminator", "Ends the run with an exception; then the state that it leaves behind, as for a return.",
               ("vars", "ordinal", "forks", "calls", "role", "previous", "outputs")),
        OpSpec("exit", ("*any",), (), "terminator", "A path not seen yet: its operands are what the program can still reach.", ("id", "reason")),
    )
}
# fmt: on


_READS = frozenset({"read", "ctx.text", "ctx.slice", "ctx.messages"})  # raise what the backend failed with


def spec(op: Op) -> OpSpec:
    """The table's entry for an op; KeyError for an unknown kind (the verifier says it better)."""
    return OPS[op.kind]


def trait(op: Op) -> Trait:
    """The op's trait; a host call's attributes decide its own."""
    if op.kind == "host.call":
        return "pure" if op.attr("pure") else "ordered" if op.attr("ordered") else "effect"
    return OPS[op.kind].trait


def request(op: Op, *, but: Collection[str] = ()) -> dict[str, Attr]:
    """The attributes that say what an ask asks for: without its identity, the plan, the variable's name, and those in `but`."""
    return {k: v for k, v in op.attrs.items() if k != "name" and k not in IDENTITY and k not in PLANNED and k not in but}


def can_raise(op: Op) -> bool:
    """Whether the op may raise an exception into the program at its place."""
    return op.kind == "given" or ((op.kind in _READS or (op.kind == "host.call" and not op.attr("total"))) and not op.attr("catch"))


def is_terminator(op: Op) -> bool:
    return OPS[op.kind].trait == "terminator"
