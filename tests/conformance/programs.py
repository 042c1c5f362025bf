"""A generator of random programs: source text that uses the language inside ordinary Python, compiled so that its source is found."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

import lmc

from . import outside
from .harness import effect

_numbers = itertools.count()

HEAD = """
import json, re
from collections import Counter
import lmc

@lmc.function
def child(s, tip):
    s += tip + lmc.gen("c", max_tokens=2)
    effect("child", s["c"])
    return s["c"] + "."

@lmc.function
def program(s, q, xs):
    v, w, n, L, D = q, "w", 0, [], {}
    def inner(t):
        nonlocal n
        n += 1
        s.__iadd__(t + lmc.gen("i", max_tokens=2))
        return s["i"]
"""


def compiled(source: str) -> lmc.Function:
    """The program of a source text, which `linecache` and thus capture can read."""
    file = f"<program {next(_numbers)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tools = {n: getattr(outside, n) for n in ("TOOLS", "STEPS", "ask", "flaky", "keep", "shout", "tool", "words")}
    names: dict[str, Any] = {"__name__": "generated", "outside": outside, "effect": effect, **tools}
    exec(compile(source, file, "exec"), names)
    return names["program"]


class Writer:
    """Writes one program. `pick` chooses among alternatives; everything else follows from its choices."""

    def __init__(self, pick: Callable[[Sequence[Any]], Any]) -> None:
        self.pick = pick
        self.lines: list[str] = []
        self.indent = 1
        self.states = ["s"]
        self.fresh = itertools.count()
        self.in_role = False
        self.in_loop = False
        self.left = 11  # statements

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def text(self) -> str:
        t = self.pick(["v", "w", "q"])
        return self.pick([
            "v", "w", "q", "'k'", f"{t}.upper()", f"{t}[:2]", f"f'{{{t}}}|{{n:02d}}'", f"{t}.replace('a', 'b')", "str(n)", "str(L)", "','.join(map(str, L))",
            f"'%s-%d' % ({t}, n)", f"{t} + '.'", f"({t} if n else 'zero')", f"json.dumps([{t}, n])", f"re.sub('[aeiou]', '_', {t})", f"str(D.get({t}))",
            "str(len(xs))", f"max({t}, 'm')", "str(sorted(D))", "str(outside.LIMIT)", "' '.join(STEPS)", f"(lambda a: a.strip())({t})",
        ])  # fmt: skip

    def condition(self) -> str:
        t = self.pick(["v", "w"])
        return self.pick([
            f"'a' in {t}", f"len({t}) > 3", f"{t} < 'm'", "n % 2 == 0", "not L", f"{t} == 'k'", f"{t}.startswith('b') or n < 2", "L and D",
            "any('a' in str(x) for x in L)", f"(m := len({t})) > 4", f"1 < len({t}) <= 5", "outside.LIMIT > 3", f"{t} in D", f"{t} not in xs", "'x' in s",
        ])  # fmt: skip

    def gen(self) -> str:
        name = self.pick(["x", "x", "y"])
        more = self.pick(["", "", ", stop='a'", ", regex='[ab]{1,3}'", ", max_tokens=1 + n % 3", ", temperature=0"])
        return self.pick([
            f"lmc.gen('{name}'{', max_tokens=3' if 'max_' not in more else ''}{more})", f"lmc.select('{name}', choices=['a', 'k', w + '?'])",
            f"lmc.gen('{name}', max_tokens=2)",
        ])  # fmt: skip

    def body(self) -> None:
        self.indent += 1
        for _ in range(self.pick([1, 1, 2, 3])):
            self.statement()
        self.indent -= 1

    def loop(self) -> None:
        outer, self.in_loop = self.in_loop, True
        self.body()
        self.in_loop = outer

    def statement(self) -> None:
        self.left -= 1
        simple = 2 * [self.append, self.append, self.read, self.assign, self.tool, self.collect, self.outside_, self.helper] + [self.leave]
        nested = [self.if_, self.if_, self.for_, self.while_, self.forks, self.try_, self.role, self.match, self.scope]
        self.pick(simple if self.left <= 0 or self.indent > 4 else simple + 2 * nested)()

    # statements

    def append(self) -> None:
        s = self.pick(self.states)
        turn = f"lmc.user({self.text()}) + lmc.assistant({self.gen()})"
        self.put(f"{s} += " + self.pick([f"{self.text()} + {self.gen()}", self.gen(), self.text()] + ([] if self.in_role else [turn])))

    def read(self) -> None:
        s, name = self.pick(self.states), self.pick(["x", "y", "i"])
        self.put(self.pick([f"v = {s}['{name}'] if '{name}' in {s} else v", f"w = {s}['{name}'] if '{name}' in {s} else 'none'", f"w = {s}.text()[-9:]"]))

    def assign(self) -> None:
        self.put(self.pick([
            f"v = {self.text()}", f"w = {self.text()}", "n += len(v)", f"v, w = w, {self.text()}", "n = int(bool(v)) + n * 2", "v, *_ = (v + ' z').split()",
            f"s['k'] = {self.text()}", "n += sum(len(str(x)) for x in L)", "del L[1:]", "w += v",
        ]))  # fmt: skip

    def tool(self) -> None:
        t = self.text()
        self.put(self.pick([
            f"v = tool({t})", f"effect('e', {t}, n)", f"L = words({t})", f"v = TOOLS['{self.pick(['shout', 'tool'])}']({t})", f"n += keep(L + [{t}])",
            f"xs.append({t})", f"v = child(tip={t}).ret_value", f"w = shout({t})",
        ]))  # fmt: skip

    def collect(self) -> None:
        t = self.text()
        self.put(self.pick([
            f"L.append({t})", f"D['d'] = {t}", f"D[{t}] = n", "L = [a.upper() for a in v.split() if 'a' in a]", "L = sorted(L, key=str)",
            f"L += [{t}, 'l']", "L = [*L, v][-3:]", f"D = {{a: len(a) for a in [{t}, 'e']}}", "L = [(i, a) for i, a in enumerate(v.split())]",
            "L = list(Counter(v).items())[:2]", "D.update(k=v)", "L.reverse()", "keep(L)", "L = L + [w]", "(a, *L), b = (L or [w]), 2", "L = [*map(str, L)]", "w = ' '.join(a for a in v.split())", "L.insert(0, n)", "L.extend([w, v])",
            "L.sort(key=str)", "L = list(filter(None, L))", "L = [b for a in L for b in str(a)[:2]]", "D = {**D, 'm': v}", "D.setdefault('s', []).append(v)",
            "L = list(zip(v, STEPS))", "n += L.count(v)", "w = repr(tuple(L))", "L = [x for x in L if x != v]", "D.pop('d', None)",

        ]))  # fmt: skip

    def outside_(self) -> None:
        self.put(self.pick(["outside.set_limit(n)", "outside.LIMIT = 5", "n += outside.LIMIT", "outside.add_step('s')", "w = outside.counted(w)", "w = STEPS[0]",
                            "outside.Settings.level += 1", "n += outside.Settings.level", "w = str(next(outside.IDS))"]))  # fmt: skip

    def leave(self) -> None:
        self.put(self.pick(["n += id(v) * 0", "n += id(w) * 0", "n += eval('0')", "w = max(w, key=str)"]))

    def helper(self) -> None:
        s = self.pick(self.states)
        choices = [f"v = inner({self.text()})", f"w = (lambda t: inner(t) + '!')({self.text()})"]
        self.put(self.pick(choices if self.in_role else [*choices, f"v = ask({s}, {self.text()}, name='x')"]))

    def if_(self) -> None:
        self.put(f"if {self.condition()}:")
        self.body()
        if self.pick([True, False]):
            self.put("else:")
            self.body()
        if self.in_loop and self.pick([True, False]):
            self.put(f"if {self.condition()}: {self.pick(['break', 'continue'])}")
        elif self.pick([False, False, False, True]):
            self.put(f"if {self.condition()}: return {self.text()}")

    def for_(self) -> None:
        i = f"i{next(self.fresh)}"
        self.put(f"for {i} in {self.pick(['range(2)', 'v.split()[:2]', 'STEPS[:2]', 'STEPS', 'list(xs)', 'L[:2]', 'w[:2]', 'D'])}:")
        self.loop()
        if self.pick([False, True]):
            self.put("else:")
            self.body()

    def while_(self) -> None:
        c = f"c{next(self.fresh)}"
        self.put(f"{c} = 0")
        self.put(f"while {c} < 3 and ({self.condition()}):")
        self.indent += 1
        self.put(f"{c} += 1")
        self.indent -= 1
        self.loop()

    def forks(self) -> None:
        s, g = self.pick(self.states), f"g{next(self.fresh)}"
        f = g.replace("g", "f")
        self.put(f"{g} = {s}.fork({self.pick([1, 2, 2, 3])})")
        self.put(f"for {f} in {g}:")
        self.states.append(f)
        self.loop()
        self.states.pop()
        self.put(f"{g} += {self.gen()}")
        self.put(self.pick([
            f"{g}.join()", "pass", f"L = [{f}['x'] for {f} in {g} if 'x' in {f}]", f"{g}.join('concate_and_append')", f"v = max([{f}.text() for {f} in {g}])[-5:]",
            f"v = max({g}, key=lambda f: f.text())['y'] if all('y' in f for f in {g}) else v",
        ]))  # fmt: skip

    def try_(self) -> None:
        self.put("try:")
        self.body()
        self.indent += 1
        self.put(self.pick([f"v = flaky({self.text()})", "n = int(v)", f"raise ValueError({self.text()})", "w = L[0]", "pass"]))
        self.indent -= 1
        self.put(self.pick(["except (ValueError, IndexError) as error:", "except Exception as error:", "except ValueError as error:"]))
        self.indent += 1
        self.put("w = str(error)")
        self.indent -= 1
        self.body()
        if self.pick([True, False]):
            self.put("finally:")
            self.body()

    def role(self) -> None:
        if self.in_role:
            return self.append()
        self.put(f"with s.{self.pick(['user', 'assistant', 'system'])}():")
        self.in_role = True
        outer, self.in_loop = self.in_loop, False
        self.body()
        self.in_role, self.in_loop = False, outer

    def scope(self) -> None:
        self.put(self.pick(["with s.var_scope('k'):", "with s.copy() as f:"]))
        self.body()

    def match(self) -> None:
        self.put(f"match {self.pick(['v', 'w[:1]', 'v.split()', '(v, n)', 'L'])}:")
        self.indent += 1
        for pattern in self.pick([["'k' | 'a'", "_"], ["[a, *b]", "str(a)"], ["('a', 1)", "(str(a), int(b)) if b"]]):
            self.put(f"case {pattern}:")
            self.body()
        self.indent -= 1


@st.composite
def sources(draw: st.DrawFn) -> str:
    """The source of a program that takes `q` (a text) and `xs` (a list of texts)."""
    writer = Writer(lambda options: draw(st.sampled_from(options)))
    while writer.left > 0:
        writer.statement()
    writer.put("return v, w, n, L, D, len(xs)")
    return HEAD + "\n".join(writer.lines) + "\n"
