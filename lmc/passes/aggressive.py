"""Code motion in prompts: arguments behind constants, so that more of a prompt is the same in every run.

    You read essays.                      You read essays.
    {essay}                          →    Rate the style from 1 to 5.
    Rate the style from 1 to 5.           {essay}
    Answer:                               Answer:

This changes prompts, so it runs only on request (`lmc.compile(fn, aggressive=True)`). The idea is from arXiv
2312.07104, appendix D.2, where a model is asked what to move; here the rules are fixed:

* Only the beginning of a run's prompt is changed, before the first request or fork, in
  the first message that has an argument. Anything later follows an argument in any case.
* Text moves by lines, called paragraphs here. A paragraph with an argument stays where it is; the constant
  ones after the first such paragraph move in front of it, in their order.
* Only what is clearly an instruction moves: a sentence that begins with a verb that says what to do (Answer, Use, Rate, …),
  after an argument that stands alone on its line or after a label, outside brackets, quotes, fences and tags.
* A paragraph stays where it is if its position may matter: if it refers to something (above, following, this, it, …), if it belongs to the lines
  around it (a label, a heading, a list item, a fence, a tag), or if it is the last one before the model answers and does not end a
  sentence (a cue). The paragraphs after it then stay too, in their order.

Only what is sent to the model changes: the program's own state has the original text (lmc/runahead/moving.py). Text
that differs from the graph's, or in which it cannot be determined where an argument ends, is sent unchanged.

`program.explain()` and `lmc opt` report every changed prompt, before and after, with the first paragraph that stayed and the reason.
`LMC_SKIP_PASSES=aggressive` (or compiling without it) restores the original order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lmc.ir.analysis import ctx_children
from lmc.ir.builder import Rewriter, rewrite, with_operands
from lmc.ir.core import Graph, Op, Operand, Value
from lmc.ir.ops import address, trait
from lmc.passes.base import Pass, PassContext, register
from lmc.segments import Mark, Special

Paragraph = tuple[Operand, ...]
"""Operands between newlines, including the final newline."""
Place = tuple[Any, tuple[str, int] | None]
"""Address and line of a request."""
Pieces = tuple[Any, ...]
"""A text in parts; arguments are None."""


@register
@dataclass(frozen=True)
class Aggressive(Pass):
    """Moves constant paragraphs of a run's first text in front of its arguments. Changes prompts: only on request.

    min_chars  a paragraph shorter than this is not worth moving
    """

    name: ClassVar[str] = "aggressive"
    min_chars: int = 16

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        first = first_texts(graph)

        def rule(op: Op, _: Rewriter) -> Sequence[Op] | None:
            if op.kind != "append" or op.results[0] not in first:
                return None
            parts = op.operands[1:]
            moved, why = self.moved(parts, last=first[op.results[0]])
            where = f"{op.loc}: " if op.loc else ""
            if moved == parts:
                if why and any(isinstance(x, Value) for x in parts):
                    ctx.note(f"{where}nothing moves: {why}")
                return None
            ctx.count("prompts changed")
            ctx.note(f"{where}from\n{_shown(parts)}\nto\n{_shown(moved)}" + (f"\nnot moved: {why}" if why else ""))
            return (with_operands(op, (op.operands[0], *moved)),)

        return rewrite(graph, rule)

    def moves(self, graph: Graph) -> Mapping[Place, tuple[Pieces, Pieces, Pieces]]:
        """Return by request the text that its prompt begins with, as it is in a graph and as this pass orders it, and the pieces between it and the
        first request."""
        first = first_texts(graph)
        found: dict[Place, tuple[Pieces, Pieces, Pieces]] = {}
        for op in graph.ops():
            if trait(op) != "samples" or (behind := _behind(graph, op, first)) is None:
                continue
            text, rest = behind
            written = text.operands[1:]
            sent, _ = self.moved(written, last=first[text.results[0]])
            if sent != written:
                found[address(op), None if op.loc is None else (op.loc.file, op.loc.line)] = _pieces(written), _pieces(sent), rest
        return found

    def moved(self, parts: Sequence[Operand], last: bool) -> tuple[tuple[Operand, ...], str]:
        """Return the operands with movable paragraphs moved, and why the rest stays. `last`: the model answers right
        after them."""
        begin, end = _message(parts)
        paragraphs = _paragraphs(parts[begin:end])
        at = next((i for i, p in enumerate(paragraphs) if _has_argument(p)), None)
        if at is None:
            return tuple(parts), "it has no argument"
        before, held, behind, why = paragraphs[:at], [paragraphs[at]], paragraphs[at + 1 :], ""
        taken: list[Paragraph] = []
        if not _is_closed("\n".join(map(_text, [*before, *held]))):
            return tuple(parts), "its first argument stands inside of brackets, quotes or tags"
        for i, paragraph in enumerate(behind):
            if why := _in_a_sentence(held[-1]):
                held += behind[i:]
                break
            if _has_argument(paragraph):
                held.append(paragraph)
                continue
            why = self._stays(paragraph, held[-1], i == len(behind) - 1 and (last or end < len(parts)))
            if why:
                held += behind[i:]
                break
            taken.append(paragraph)
        if not any(_text(p).strip() and len(_text(p)) >= self.min_chars for p in taken):
            return tuple(parts), why or "there is no constant paragraph behind its argument"
        in_order = _ended([*before, *taken, *held], _ends_line(paragraphs[-1]))
        return (*parts[:begin], *_joined(in_order), *parts[end:]), why

    def _stays(self, paragraph: Paragraph, before: Paragraph, at_end: bool) -> str:
        text = _text(paragraph).strip()
        whole = _text(paragraph)
        shown = repr(text if len(text) <= 40 else text[:37] + "…")
        if any(isinstance(x, Special) for x in paragraph):
            return f"{shown} has a special token"
        if (found := _POINTS.search(text)) is not None:
            return f"{shown} points at its place ({found[0].lower()!r})"
        if _OPENS.search(text):
            return f"{shown} belongs to the lines around it"
        if _text(before).rstrip().endswith(("`", "<", "{", "(", "[", '"""')) and _QUOTES.search(text):
            return f"{shown} closes what the argument stands in"
        if whole[:1] in (" ", "\t"):
            return f"{shown} is indented"
        if text and not _is_closed(text):
            return f"{shown} opens or closes what the lines around it do not show"
        if at_end and text and not text.endswith((".", "!", "?")):
            return f"{shown} leads to the answer"
        if text and (_TELLS.search(text) is None or not text.endswith((".", "!"))):
            return f"{shown} is not plainly an instruction"
        return ""


_POINTS = re.compile(
    r"\b(above|below|following|follows|preceding|previous|previously|earlier|later|next|last|former|latter|now|then|"
    r"therefore|thus|so far|this|that|these|those|here|it|its|they|their|them|the (?:text|passage|input|question) (?:ends|begins))\b",
    re.IGNORECASE,
)
_OPENS = re.compile(r":$|^#|^[-*•>|]|^\d+[.)]|^```|^~~~|^\"\"\"|^</?\w|>$|^[A-Z][\w ]{0,24}:(?:\s|$)")
_TELLS = re.compile(
    r"^(Please |Do not |Don't |Never |Always |Only )?(Act|Add|Analyze|Answer|Avoid|Be|Check|Choose|Classify|Compare|Decide|Describe|Do|Evaluate|"
    r"Explain|Extract|Find|Focus|Give|Grade|Identify|Judge|Keep|List|Mention|Name|Output|Pick|Rank|Rate|Reply|Report|Respond|"
    r"Return|Review|Rewrite|Say|Solve|State|Sum|Summarize|Translate|Use|Write)\b(?! *[=(:])",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"^(```|\"\"\"|</)")


# -- position
# -------------------------------------------------------------------------------------------------------------


def first_texts(graph: Graph) -> Mapping[Value, bool]:
    """Return the text that each run begins with: the appends right after the empty prompt, and whether a request
    follows immediately."""
    children = ctx_children(graph)
    found: dict[Value, bool] = {}
    for op in graph.ops():
        if op.kind == "ctx.new" and len(children[op.results[0]]) == 1:
            (text,) = children[op.results[0]]
            if text.kind == "append":
                behind = children[text.results[0]]
                found[text.results[0]] = bool(behind) and all(b.kind != "append" for b in behind)
    return found


def _pieces(operands: Sequence[Operand]) -> Pieces:
    return tuple(None if isinstance(x, Value) else x for x in operands)


def _behind(graph: Graph, ask: Op, first: Mapping[Value, bool]) -> tuple[Op, tuple[Any, ...]] | None:
    """Return the first text of the prompt that a request extends, and the pieces between it and the first request; None if there are several."""
    pieces: list[Any] = []
    node: Operand = ask.operands[0]
    while isinstance(node, Value):
        made = graph.producer.get(node)
        if made is None:  # text added by arms or turns is not known here
            texts = set(_texts(graph, node, first, set()))
            if len(texts) != 1 or (text := texts.pop()) is None:
                return None
            return graph.producer[text], (None, *reversed(pieces))
        if trait(made) == "samples":  # it matters if that answer is known from a journal
            return _behind(graph, made, first)
        if made.kind != "append":
            return None
        if node in first:
            return made, tuple(reversed(pieces))
        pieces += reversed(_pieces(made.operands[1:]))
        node = made.operands[0]
    return None


def _texts(graph: Graph, node: Operand, first: Mapping[Value, bool], seen: set[Operand]) -> Iterator[Value | None]:
    """Return the first texts that a prompt may begin with; None for another beginning, or one with an answer after it."""
    while isinstance(node, Value) and node not in seen:
        seen.add(node)
        if node in first:
            yield node
            return
        made = graph.producer.get(node)
        if made is None:
            for feeding in graph.feeds.get(node, ()):
                yield from _texts(graph, feeding, first, seen)
            if not graph.feeds.get(node):
                yield None
            return
        if made.kind == "append":
            node = made.operands[0]
        elif trait(made) == "samples":  # after an answer the prompt has a handle, and nothing moves: it may begin with any text
            return
        else:
            yield None
            return


def _message(parts: Sequence[Operand]) -> tuple[int, int]:
    """Return the operands of the content of the first message with an argument; all of them when there are no
    messages."""
    begin = 0
    for i, x in enumerate(parts):
        if isinstance(x, Mark):
            if x.edge == "end" and any(isinstance(p, Value) for p in parts[begin:i]):
                return begin, i
            begin = i + 1
    return begin, len(parts)


# -- paragraphs --------------------------------------------------------------------------------------------------------


def _paragraphs(parts: Sequence[Operand]) -> list[Paragraph]:
    found: list[Paragraph] = []
    now: list[Operand] = []
    for x in parts:
        for piece in re.findall(r"[^\n]*\n|[^\n]+", x) if isinstance(x, str) else (x,):
            now.append(piece)
            if isinstance(piece, str) and piece.endswith("\n"):
                found.append(tuple(now))
                now = []
    return [*found, tuple(now)] if now else found


def _has_argument(paragraph: Paragraph) -> bool:
    return any(isinstance(x, Value) for x in paragraph)


def _in_a_sentence(paragraph: Paragraph) -> str:
    """Return why the text after a paragraph with an argument may continue its sentence: it is not arguments alone, with
    or without a label."""
    strings = [x.strip() for x in paragraph if isinstance(x, str)]
    indented = isinstance(paragraph[0], str) and paragraph[0][:1] in (" ", "\t")
    if indented or any(x and (re.fullmatch(r"[A-Z][\w ]{0,24}:", x) is None) for x in strings):
        return "its argument stands in the middle of a text"
    return ""


def _is_closed(text: str) -> bool:
    """Return whether exactly the brackets, quotes, fences and tags that it opens are closed in it."""
    pairs = all(text.count(a) == text.count(b) for a, b in ("()", "[]", "{}"))
    tags = len(re.findall(r"<[A-Za-z][^<>]*>", text)) == len(re.findall(r"</[^<>]*>", text))
    return pairs and tags and text.count('"') % 2 == 0 and text.count("`") % 2 == 0


def _text(paragraph: Paragraph) -> str:
    return "".join(x for x in paragraph if isinstance(x, str))


def _ends_line(paragraph: Paragraph) -> bool:
    return isinstance(paragraph[-1], str) and paragraph[-1].endswith("\n")


def _ended(paragraphs: Sequence[Paragraph], at_end: bool) -> list[Paragraph]:
    """Return one paragraph per line; the last one ends its own only if the text did."""
    whole = [p if _ends_line(p) else (*p, "\n") for p in paragraphs]
    if not at_end:
        *rest, end = whole[-1]
        assert isinstance(end, str)
        whole[-1] = (*rest, end[:-1]) if end[:-1] else tuple(rest)
    return whole


def _joined(paragraphs: Sequence[Paragraph]) -> list[Operand]:
    joined: list[Operand] = []
    for x in (x for p in paragraphs for x in p):
        if isinstance(x, str) and joined and isinstance(joined[-1], str):
            joined[-1] += x
        else:
            joined.append(x)
    return joined


def _shown(parts: Sequence[Operand]) -> str:
    """Return a prompt for a person: arguments in braces, indented."""
    text = "".join(f"{{{x.name}}}" if isinstance(x, Value) else x.spelling if isinstance(x, Special) else x if isinstance(x, str) else "" for x in parts)
    return "\n".join(f"    {line}" for line in text.splitlines())
