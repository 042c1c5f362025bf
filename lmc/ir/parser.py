"""Reads the text form of a graph (text.py) by the grammar in ir.lark. Reading executes nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NoReturn

from lmc.errors import IRError, Loc, excerpt, shown
from lmc.ir.core import DEFAULT, FORMAT_VERSION, TYPES, Attr, Block, Case, Graph, Op, Operand, Symbol, Type, Value
from lmc.ir.ops import OPS, default_type, spec_of
from lmc.segments import Mark, Special

if TYPE_CHECKING:
    from lark import Lark, Token

Node = Any  # a tree of lark's or None: it does not type a rule's children

_VERSION = re.compile(r"\A(?:\s*//[^\n]*\n)*?\s*// lmc ir (\S+)")  # in the first comments


def parse(text: str, file: str = "<ir>") -> Graph:
    """Parse one graph. Checks syntax and names; the op table's rules are checked by the verifier.

    Raises IRError with the position in `file`, the line with a caret, and the expected tokens.
    """
    _check_version(text, file)
    from lark.exceptions import UnexpectedInput

    try:
        tree: Node = _parser().parse(text)  # pyright: ignore[reportUnknownMemberType]
        return _GraphReader(text, file).graph(tree)
    except UnexpectedInput as e:
        _syntax_error(e, text, file)
    except RecursionError:
        raise IRError("lists are nested too deeply", loc=Loc(file, 1)) from None


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(resources.files("lmc.ir").joinpath("ir.lark").read_text("utf-8"), parser="lalr", maybe_placeholders=True)


def _check_version(text: str, file: str) -> None:
    match = _VERSION.match(text)
    if match and match[1] != str(FORMAT_VERSION):
        line = text.count("\n", 0, match.start(1)) + 1
        raise IRError(
            f"this is IR format {match[1]}; this lmc reads format {FORMAT_VERSION}. "
            "Print the graph again with this version of lmc, or read the file with the version that wrote it",
            loc=Loc(file, line),
        )


class _GraphReader:
    """Converts lark's tree to a graph. Values are collected first, because a use needs its definition's type."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.values: dict[str, Value] = {}

    def graph(self, tree: Node) -> Graph:
        name, *rest = (child for child in tree.children if not _is_arrow(child))
        params: list[Value] = []
        parts: dict[str, list[Any]] = {"constant": [], "opening": [], "block": []}
        result: Type = "any"
        for child in rest:
            if child is None:
                continue
            if not hasattr(child, "data"):
                result = self._type(child)
            elif child.data == "param":
                params.append(self._define(child.children[0], self._type(child.children[1])))
            else:
                parts[child.data].append(child)
        for block in (*parts["opening"], *parts["block"]):
            for child in block.children:
                if getattr(child, "data", "") == "op":
                    self._define_results(child)
                elif getattr(child, "data", "") == "block_params":
                    for p in child.children:
                        if p is not None:
                            self._define(p.children[0], self._type(p.children[1]))
        constants = {self._name(c.children[0]): self._constant(c) for c in parts["constant"]}
        blocks = [self._block("entry", None, b.children, b.children[0].children[1]) for b in parts["opening"]]
        blocks += [self._block(self._name(b.children[0]), b.children[1], b.children[2:], b.children[0]) for b in parts["block"]]
        return Graph(self._name(name), tuple(params), tuple(blocks), result, constants)

    # -- definitions

    def _define(self, token: Token, type: Type) -> Value:
        name = self._name(token)
        if name in self.values:
            self._fail(token, f"%{name} is defined twice")
        self.values[name] = value = Value(name, type)
        return value

    def _define_results(self, op: Node) -> None:
        results: Node = op.children[0]
        kind: Token = op.children[1]
        if (found := spec_of(str(kind))) is None:
            import difflib

            near = difflib.get_close_matches(str(kind), OPS, n=1)
            self._fail(kind, f"there is no op {str(kind)!r}" + (f"; did you mean {near[0]}?" if near else ""))
        for i, result in enumerate(_children(results)):
            token, annotated = result.children
            type = self._type(annotated) if annotated is not None else default_type(str(kind), i)
            if type is None:
                self._fail(token, f"{kind} has {len(found.results)} results")
            self._define(token, type)  # pyright: ignore[reportArgumentType]

    def _type(self, token: Token) -> Type:
        if str(token) not in TYPES:
            self._fail(token, f"there is no type {str(token)!r}; types are {', '.join(sorted(TYPES))}")
        return str(token)  # pyright: ignore[reportReturnType]

    # -- blocks and ops

    def _block(self, label: str, params: Node, ops: list[Any], at: Token) -> Block:
        if not ops:
            self._fail(at, f"block ^{label} has no terminator")
        read = [self._op(op) for op in ops]
        values = tuple(self.values[self._name(p.children[0])] for p in _children(params) if p is not None)
        return Block(label, tuple(read[:-1]), read[-1], values)

    def _op(self, tree: Node) -> Op:
        results, kind, operands, cases, then, attrs, loc = tree.children
        return Op(
            str(kind),
            self._operands(operands),
            tuple(self.values[self._name(r.children[0])] for r in results.children) if results is not None else (),
            self._attrs(attrs),
            tuple(self._case(c) for c in cases.children if c is not None) if cases is not None else (),
            self._loc(loc),
            self._name(then.children[0]) if then is not None else None,
        )

    def _constant(self, tree: Node) -> Op:
        _, kind, operands, attrs, loc = tree.children
        return Op(str(kind), self._operands(operands), (), self._attrs(attrs), (), self._loc(loc))

    def _operands(self, tree: Node) -> tuple[Operand, ...]:
        return tuple(self._operand(x) for x in tree.children) if tree is not None else ()

    def _operand(self, tree: Node) -> Operand:
        if tree.data == "use":
            token = tree.children[0]
            if (value := self.values.get(self._name(token))) is None:
                self._fail(token, f"{token} is not defined")
            return value
        if tree.data == "operand":
            return self._atom(tree.children[0])
        text = self._string(tree.children[0])
        return Special(text) if tree.data == "special" else Mark(text, tree.data)

    def _case(self, tree: Node) -> tuple[Case, str]:
        case, _, label = tree.children
        return (DEFAULT if case.data == "default" else self._atom(case.children[0])), self._name(label)

    def _attrs(self, tree: Node) -> dict[str, Attr]:
        attrs: dict[str, Attr] = {}
        for attr in tree.children if tree is not None else ():
            if attr is not None:
                name, value = attr.children
                if str(name) in attrs:
                    self._fail(name, f"attribute {name} stands twice")
                attrs[str(name)] = self._attr(value)
        return attrs

    def _attr(self, tree: Node) -> Attr:
        if tree.data == "tuple":
            return tuple(self._attr(x) for x in tree.children if x is not None)
        return self._atom(tree.children[0])

    def _loc(self, tree: Node) -> Loc | None:
        if tree is None:
            return None
        file, line, col = tree.children
        return Loc(self._string(file), self._integer(line), self._integer(col) if col is not None else 0)

    # -- atoms

    def _atom(self, tree: Node) -> Any:
        if tree.data in _CONSTANTS:
            return _CONSTANTS[tree.data]
        token = tree.children[0]
        match tree.data:
            case "symbol":
                return Symbol(self._name(token))
            case "string":
                return self._string(token)
            case "integer":
                return self._integer(token)
            case "float":
                return float(token)
            case _:
                return self._bytes(token)

    def _integer(self, token: Token) -> int:
        try:
            return int(token)
        except ValueError:
            self._fail(token, f"a number of {len(token)} digits is too long")

    def _string(self, token: Token) -> str:
        return self._unquote(token, str(token))

    def _name(self, token: Token) -> str:
        name = str(token)[1:]
        return self._unquote(token, name) if name.startswith('"') else name

    def _unquote(self, token: Token, quoted: str) -> str:
        try:
            return json.loads(quoted)
        except ValueError as e:
            self._fail(token, f"not a JSON string: {e}")

    def _bytes(self, token: Token) -> bytes:
        try:
            return bytes.fromhex(self._string(token))
        except ValueError:
            self._fail(token, "bytes are written as hexadecimal digits, two each")

    def _fail(self, token: Token, message: str) -> NoReturn:
        _error(message, self.text, self.file, token.line or 1, token.column or 1)


def _children(tree: Node) -> list[Node]:
    return tree.children if tree is not None else []


def _is_arrow(child: Any) -> bool:
    return getattr(child, "type", "") == "ARROW"


_CONSTANTS: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": math.inf,
    "minus_inf": -math.inf,
    "nan": math.nan,
}


# -- errors --------------------------------------------------------------------------------------------------------

_WORDS = {
    "VALUE": "a value (%name)",
    "SYMBOL": "a symbol (@name)",
    "LABEL": "a label (^name)",
    "NAME": "a name",
    "STRING": 'a string ("…")',
    "INT": "an integer",
    "FLOAT": "a float",
    "LPAR": "'('",
    "RPAR": "')'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "LSQB": "'['",
    "RSQB": "']'",
    "COMMA": "','",
    "COLON": "':'",
    "EQUAL": "'='",
    "ARROW": "'->'",
    "THEN": "'then'",
}
_LITERAL_WORDS = frozenset({"STRING", "INT", "FLOAT", "INF", "NAN", "TRUE", "FALSE", "NONE", "BYTES", "SYMBOL"})


def _expected(terminals: set[str]) -> str:
    names = {name for name in terminals if not name.startswith("__")}
    words: list[str] = []
    if names >= _LITERAL_WORDS:
        words.append("a literal (string, number, true, false, none, bytes, @symbol)")
        names = {n for n in names - _LITERAL_WORDS if not n.endswith("INF")}
    words += sorted(_WORDS.get(n) or _keyword(n) for n in names if n != "$END")
    if "$END" in names:
        words.append("the end of the text")
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "nothing more"


@cache
def _keyword(terminal: str) -> str:
    return next((t.pattern.value for t in _parser().terminals if t.name == terminal), terminal.lower())


def _syntax_error(e: Any, text: str, file: str) -> NoReturn:
    """Turn lark's UnexpectedCharacters (has `allowed`) or UnexpectedToken (has `expected`) into an IRError."""
    wanted = _expected(set(e.allowed if hasattr(e, "allowed") else e.accepts or e.expected))
    if not hasattr(e, "allowed"):
        if e.token.type == "$END":
            _error(f"the text ends too early; expected {wanted}", text, file, *_end(text))
        found = shown(str(e.token))
    elif text[e.pos_in_stream] == '"':
        found = "a string that does not end on its line or has a raw control character"
    else:
        found = repr(text[e.pos_in_stream])
    _error(f"found {found}; expected {wanted}", text, file, e.line, e.column)


def _end(text: str) -> tuple[int, int]:
    lines = text.rstrip().split("\n")
    return len(lines), len(lines[-1]) + 1


def _error(message: str, text: str, file: str, line: int, column: int) -> NoReturn:
    """Raise IRError at a 1-based line and column, with the line and a caret."""
    loc = Loc(file, line, column - 1)
    if not loc.excerpt():
        message += "\n" + excerpt(text.split("\n")[line - 1] if line <= text.count("\n") + 1 else "", column - 1)
    raise IRError(message, loc=loc)
