"""A generator of random programs: source text that uses the language inside ordinary Python, of the kinds on which capture may go wrong.

A program takes `q` (a text, another one for each item), `xs` (a list of texts) and `flag`. Its variables keep their types,
so that most of what is written also runs: `v` and `w` are text, `n` a small number, `L` a list, `D` a dict by text, `E` an
expression. A *shared* program reads and changes the outside; a private one does not, so many runs of it may go on at once.
"""

from __future__ import annotations

import itertools
import linecache
import random
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

import lmc
from tests.conformance import outside
from tests.conformance.harness import effect

HELPERS = {
    "child": '''
@lmc.function
def child(s, tip):
    s += tip + lmc.gen("c", max_tokens=2)
    effect("child", s["c"])
    return s["c"] + "."
''',
    "tree_child": '''
@lmc.function
def tree_child(s, tip, k=2):
    forks = s.fork(k)
    for f in forks:
        f += tip + lmc.gen("c", max_tokens=2)
    if "a" in forks[0]["c"]:
        s += "first" + lmc.gen("last", max_tokens=2)
        return s["last"]
    forks.join()
    return ",".join(s["c"])
''',
    "say": '''
def say(st, t, *, name="h"):
    st += t + lmc.gen(name, max_tokens=2)
    return st[name]
''',
    "turn": '''
def turn(t):
    return lmc.user(t) + lmc.assistant(lmc.gen("a", max_tokens=2))
''',
    "dig": '''
def dig(st, t, depth=2):
    st += t + lmc.gen("r", max_tokens=2)
    if depth and "a" in st["r"]:
        return dig(st, st["r"], depth - 1) + "<"
    return st["r"]
''',
    "Node": '''
class Node:
    def __init__(self, s, name):
        self.s, self.name, self.seen = s, name, []

    @classmethod
    def of(cls, s, name="x"):
        return cls(s, name)

    def go(self, t):
        self.s += t + lmc.gen(self.name, max_tokens=2)
        self.seen.append(self.s[self.name])
        return self.seen[-1]
''',
    "Twice": '''
class Logs:
    def log(self, t):
        self.logs.append(t)
        return len(self.logs)

class Asks:
    def __init__(self, s):
        self.s, self.logs = s, []

    def ask(self, t):
        self.s += t + lmc.gen("x", max_tokens=2)
        self.log(self.s["x"])
        return self.s["x"]

class Twice(Asks, Logs):
    def log(self, t):
        return super().log(f"[{t}]") + 1

    def ask(self, t):
        return super().ask(t) + super(Twice, self).ask("b")
''',
    "loud": '''
def loud(t, q):
    effect("loud", t, q)
    if "e" in t:
        raise KeyError(t)
    return t + "!"
''',
    "many": '''
def many(t):
    yield t
    yield from t.split()
''',
    "wrapped": '''
def wrapped(fn):
    def inner_(st, *args, **kwargs):
        st += "["
        result = fn(st, *args, **kwargs)
        st += "]"
        return result
    return inner_
''',
    "Chat": '''
class Turn:
    """A part of a class whose code Python calls: stores, properties, comparisons, items, text, calls and `with`."""

    kinds = []

    def __init__(self, s, text):
        self.s, self._text, self.left = s, text, 0

    @property
    def text(self):
        return self._text[-6:]

    @text.setter
    def text(self, text):
        self.left += 1
        self._text = str(text)

    @staticmethod
    def clean(text):
        return text.strip()[:5]

    def __eq__(self, other):
        return isinstance(other, Turn) and self.text == other.text

    def __lt__(self, other):
        return self.text < other.text

    def __hash__(self):
        return hash(self.text)

    def __len__(self):
        return len(self._text) % 4

    def __bool__(self):
        return "a" in self._text

    def __getitem__(self, at):
        return self._text[at]

    def __iter__(self):
        yield self.left
        yield from self._text[:2]

    def __contains__(self, text):
        return text in self._text

    def __add__(self, other):
        return type(self)(self.s, self.text + getattr(other, "text", str(other)))

    def __iadd__(self, other):
        self.text = self._text + str(other)
        return self

    def __str__(self):
        return f"<{self.text}>"

    def __format__(self, spec):
        return format(self.text, spec) if spec else str(self)

    def __getattr__(self, name):
        if name.startswith("ask_"):
            return lambda t: self.ask(t + name[4:])
        raise AttributeError(name)


class Chat(Turn):
    def __init__(self, s, text="", *more):
        super().__init__(s, text)
        self.more = list(more)
        self.kinds = [*Turn.kinds, "chat"]

    @property
    def text(self):
        return super().text + "~"

    @text.setter
    def text(self, text):
        self.more.append(text)
        Turn.text.fset(self, text)

    def ask(self, t):
        self.s += t + lmc.gen("x", max_tokens=2)
        self.text = self.s["x"]
        return self.text

    def __call__(self, t, *rest, **named):
        return self.ask(t + self.clean(t)) + "".join(map(str, rest)) + "".join(named)

    def __enter__(self):
        self.s += "("
        return self.ask

    def __exit__(self, cls, error, traceback):
        self.s += ")"
        self.more.append(cls and cls.__name__)
        return cls is IndexError
''',
    "part(": '''
@contextlib.contextmanager
def part(st, name):
    st += f"<{name}>"
    try:
        yield name + "+"
    except LookupError as error:
        st += "!"
        error.add_note("in " + name)
        if "k" in name:
            raise
    finally:
        st += "</>"
''',
    "Mood": '''
class Mood(enum.Enum):
    A = "a"
    B = "b"

    @classmethod
    def of(cls, text):
        return next((m for m in cls if m.value in text), cls.B)

    @property
    def other(self):
        return Mood.A if self is Mood.B else Mood.B
''',
    "Pair": '''
class Pair(typing.NamedTuple):
    text: str
    n: int = 1

    def long(self):
        return self.text * (self.n % 3)
''',
    "same(": '''
@lmc.host(ordered=False)
def same(x, y=None):
    return x
''',
    "scored": '''
def scored(st, t):
    st += t + lmc.gen("g", regex="[0-3]")
    return int(st["g"])
''',
}

INNER = {
    "inner": '''
    def inner(t):
        nonlocal n
        n = (n + 1) % 7
        s.__iadd__(t + lmc.gen("i", max_tokens=2))
        return s["i"]
''',
    "outer": '''
    def outer(t, seen=[]):
        nonlocal v
        seen.append(t)
        v = v[:3] + t[:1]
        return len(seen)
''',
    "Box": '''
    class Box:
        n, seen, first = 0, [], q

        def add(self, t):
            Box.n += 1
            self.seen.append(t)
            Box.last = t
            return len(self.seen)

        @classmethod
        def most(cls):
            cls.n += 2
            return max(cls.seen, default="none")
''',
    "Refused": '''
    class Refused(ValueError):
        def __init__(self, why, times=2):
            super().__init__(why, times)

        def __str__(self):
            return self.args[0] * self.args[1]
''',
    "Rec": '''
    @dataclasses.dataclass
    class Rec:
        text: str
        rows: list = dataclasses.field(default_factory=list)
        shown = property(lambda self: self.text[-5:] + str(len(self.rows)))

        def add(self, t):
            self.rows.append(t)
            return self
''',
    "Failed": '''
    class Failed(LookupError):
        code = 1

        def __init__(self, why, **more):
            super().__init__(why)
            self.why = why
            self.__dict__.update(more)

        @property
        def shown(self):
            return f"{self.why[-4:]}:{self.code}"

    class Worse(Failed):
        code = 2
''',
    "fail": '''
    def fail(t, k=0):
        if "a" in t:
            raise Failed(t, k=k)
        try:
            return str(10 // k)
        except ZeroDivisionError as error:
            raise Worse(t, cause=error) from error
''',
    "tried": '''
    def tried(fn, *args):
        try:
            return fn(*args)
        except Exception as error:
            error.times = getattr(error, "times", 0) + 1
            error.add_note(w[:3])
            X.append(error)
            return type(error).__name__
''',
    "counting": '''
    def counting(fn):
        @functools.wraps(fn)
        def inner_(*args, **kwargs):
            inner_.calls += 1
            return fn(*args, **kwargs)
        inner_.calls = 0
        return inner_

    @counting
    def twice(t, *, k=2):
        return (t * k)[-6:]
''',
    "guard": '''
    def guard(k):
        try:
            for i in range(k):
                s.__iadd__(lmc.gen("z", max_tokens=1))
                yield s["z"]
        finally:
            s.__iadd__("|")
''',
    "sums": '''
    def sums(t):
        got = yield t
        total = 0 if got is None else len(got)
        for a in t[:2]:
            total += (yield a) or 1
        return total
''',
    "tally": '''
    def tally(t):
        tally.calls += 1
        tally.last = t
        return tally.calls
    tally.calls = 0
''',
    "lazy": '''
    def lazy(k):
        for i in range(k):
            s.__iadd__(f"{i}" + lmc.gen("z", max_tokens=1))
            yield s["z"]
''',
}

HEAD = "import contextlib, copy, dataclasses, enum, functools, itertools, json, re, typing\nfrom collections import Counter\nimport lmc\n\nG = []\nN = 0\n"


BEGIN = HEAD + "\n@lmc.function\ndef program(s, q, xs, flag=False):\n    v, w, n, L, D = q, 'w', 0, [], {}\n"


def compiled(source: str) -> tuple[lmc.Function, Callable[[int], None], Callable[[], Any]]:
    """The program of a source text, which `linecache` and thus capture can read; makes its outside, in one of two ways; looks at it."""
    file = f"<program {zlib.crc32(source.encode()):x}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    tools = {n: getattr(outside, n) for n in TOOLS}
    names: dict[str, Any] = {"__name__": "generated", "outside": outside, "effect": effect, "G": [], "N": 0, **tools}
    exec(compile(source, file, "exec", dont_inherit=True), names)

    def reset(world: int = 0) -> None:
        outside.reset()
        names["N"] = world
        names["G"][:] = ["g"] * world
        if world:
            outside.LIMIT, outside.MODE, outside.Settings.level = 4, "b", 3
            outside.STEPS.append("four")
            outside.TABLE["z"] = "third"

    return names["program"], reset, lambda: (outside.look(), names["N"], list(names["G"]))


TOOLS = ("TOOLS", "STEPS", "TABLE", "ask", "bag", "fill", "flaky", "guarded", "keep", "lookup", "quiet", "shout", "size", "tool", "words")

TEXT = [
    "{t}.upper()", "{t}[:2]", "f'{{{t}}}|{{n:02d}}'", "f'{{{t}!r:>6}}'", "{t}.replace('a', 'b')", "str({n})", "str(L)", "','.join(map(str, L))", "('%s-%d' % ({t}, {n}))",
    "'{{}}/{{}}'.format({t}, {n})", "{t} + '.'", "({t} if {c} else {u})", "json.dumps([{t}, {n}])", "re.sub('[aeiou]', '_', {t})", "str(D.get({t}))", "max({t}, {u})",
    "str(sorted(D))", "(lambda a: a.strip())({t})", "({t} or 'none')", "({t} and {u})", "''.join(sorted({t}))", "{t}.split(' ')[0]", "' '.join(a for a in {t}.split())",
    "{t}.partition('a')[2]", "({t} + ' ' + {u}).split()[-1]", "str({{{t}: 1}}.get({u}))", "str(isinstance({t}, str))", "str(v is None)", "str(({t}, {n}))", "repr({t})",
    "quiet({t})", "{t}.title().swapcase()", "(re.search('[aeiou]', {t}) or [''])[0]", "str(xs)", "str({c})", "next(iter({t}), '-')", "str([a for a in {t} if a in {u}])",
]  # fmt: skip
ATOMS = ["v", "w", "v", "w", "q", "'k'", "s['x']", "s['x']", "xs[0]", "'a b'"]
CONDITIONS = [
    "'a' in {t}", "len({t}) > 3", "{t} < 'm'", "n % 2 == 0", "not L", "{t} == 'k'", "{t}.startswith('b')", "L and D", "any('a' in str(x) for x in L)", "len({t}) - n > 2",
    "1 < len({t}) <= 5", "{t} in D", "{t} not in xs", "'y' in s", "flag", "not flag", "all(x for x in xs)", "{t} != {u}", "{t} in L", "isinstance(L, list)", "n in (1, 2, 5)",
    "re.match('[a-h]', {t})", "{t}.isalpha() or {u}.isupper()", "{n} >= 2", "bool({t}) == flag", "'k' in s", "w is not None", "len(L) > len(xs)",
]  # fmt: skip
NUMBERS = ["n", "len({t})", "{t}.count('a')", "L.count({t})", "len(xs)", "len(L)", "int(s['d'])", "int(s['d']) * 2", "sum(len(a) for a in {t}.split())", "int(flag)", "max(n, len({t}))",
           "min([len({t}), 3, n])", "len({{*{t}}})", "[1, 2, 3][len({t}) % 3]", "'abk'.find({t}[:1])"]  # fmt: skip
ASSIGN = [
    "v = {t}", "w = {t}", "v = {s}['x']", "w = {s}['x']", "n = (n + {n}) % 7", "v, w = w, {t}", "n = int(bool(v)) + {n} % 5", "v, *_ = (v + ' z').split()", "{s}['k'] = {t}", "n = (n + sum(len(str(x)) for x in L)) % 9",
    "w = (w + v)[-9:]", "w += {t}[:2]", "n += 1", "n -= 1", "v = {s}.text()[-6:]", "w = {s}['y'] if 'y' in {s} else 'none'", "(v, w), n = ({t}, {u}), {n} % 5", "w = str(len({s}.messages()))",
    "E = lmc.gen('x', max_tokens={k})", "E = {t} + lmc.gen('x', max_tokens=2)", "{s}.set_var('k', {t})", "v = {s}.get_var('x')", "w = str({s}.get_meta_info('x')['completion_tokens'])",
    "v = w = {t}", "n = len([a for a in {t} if a != 'a' and (n or a)])", "w = f'{{{t}:>{{len(v) % 4}}}}'", "del v; v = {u}", "assert n >= -99, v", "w = (z := {t})[:3] + z[-2:]", "n = z if (z := {n}) < 5 else 4", "n = {{'k': 1}}.get({t}, n)",
    "global_ = lambda a: a + w; w = 'w'; v = global_({t})[-7:]", "v = (lambda a, *b, c=1, **d: f'{{a}}{{b}}{{c}}{{d}}')(*{t}.split()[:1] or 'e', c=n, e={u})[-9:]",
]  # fmt: skip
COLLECT = [
    "L.append({t})", "D['d'] = {t}", "D[{t}] = n", "L = [a.upper() for a in v.split() if 'a' in a]", "L = sorted(L, key=str)", "L += [{t}, 'l']", "L = [*L, v][-3:]",
    "D = {{a: len(a) for a in [{t}, 'e']}}", "L = [(i, a) for i, a in enumerate(v.split())]", "L = list(Counter(v).items())[:2]", "D.update(k=v)", "L.reverse()", "L = L + [w]",
    "(a, *L), b = (L or [w]), 2", "L = [*map(str, L)]", "L.insert(0, n)", "L.extend([w, v])", "L.sort(key=str)", "L = list(filter(None, L))", "L = [b for a in L for b in str(a)[:2]][:4]",
    "D = {{**D, 'm': v}}", "D.setdefault('s', []).append(v)", "L = list(zip(v, xs))", "n = L.count(v)", "w = repr(tuple(L))[-9:]", "L = [x for x in L if x != v]", "D.pop('d', None)", "del L[1:]",
    "L = json.loads(json.dumps([v, n])); L.append(1)", "a = json.loads(json.dumps([v])); b = json.loads(json.dumps([v])); a.append(2); n = len(b); w = str(a is b)", "L = {t}.split(); L.append({u})",
    "L = [json.loads(json.dumps([v]))]; L[0].append({t}); w = str(L)[-9:]", "L = [L[:1], L[:1]]; L[0].append(n)", "a = b = [{t}]; a.append(n); L = b", "a = [{t}]; L = [a, a]; a += ['q']; L = L[:1]",
    "a = {{'a': [n], 'b': [v]}}; a['ab'[len({t}) % 2]].append({u}); L = list(a.values())", "L = [[n], [v]]; L[len({t}) % 2].append({u})", "a = [0] * 3; a[len({t}) % 3] += n; L = a",
    "a = [{t}]; L = [a] * 2 + [[n]]; L[len({u}) % 3].append(v); L.append(str(a)[-9:])", "L = L + [[v]]; L[-1].append({t})", "D = {{'d': {{'n': n}}, 'e': {{'n': 0}}}}; D['de'[len({t}) % 2]]['n'] += 1",
    "D = dict(zip(['d', {t}], [1, v]))", "L = sorted([{t}, {u}, 'm'], key=len, reverse=flag)", "L = [max({t}, {u}, key=len), min([{t}, 'b'])]", "L = list({{{t}, 'k'}}); L.sort()", "D = {{k: v for k, v in sorted(D.items(), key=str)[:2]}}",
    "L = [*many({t})]", "L = [a for a in many(v) if a]", "xs.append({t})", "xs[0] = {t}", "L = xs[:2]", "L = list(xs)", "w = xs.pop() if len(xs) > 1 else w", "L = list(reversed({t}.split()))", "L[:1] = [{t}, n]",
    "L = [i + j for i in {t}[:2] for j in 'xy' if i != 'a']", "w, *L = [{t}, *L][:3]; w = str(w)[-9:]", "L = re.findall('[a-h]', {t})", "L = [m.group() for m in re.finditer('.e', {t})]", "D = {{{t}: [v]}}; D[{t}].append(n); D = {{'z': str(D)}}",
    "L = {t}.split(); L.append(n); L = [(a, isinstance(a, str)) for a in L][:4]", "L = list({t}[:3]); L[:1] = [None, n]; w = ''.join(f'{{a}}' for a in L)", "L = {t}.split(); L.insert(0, {u}); w = max(a.title() for a in L)",
    "L = [a is None or a for a in re.split('(a)|(e)', {t})][:5]", "w = str([(1, v), (True, v), (1.0, w), {{(0.0,): n}}, {{(-0.0,): n}}])[-19:]", "a = iter({t}); L = list(iter(lambda: next(a, 'a'), 'a'))[:4]",
    "L = sorted(set({t}) & {{*'abc'}}); w = str({u} in {{'a', 'k', v}})", "D = {{(n, True): {t}, (n, 1.0): w}}; D = {{str(a): D[a] for a in D}}", "n = sum([n, len({t}), True]) % 7; L = sum([[v], L[:1]], [])",
    "L = [''.join(filter(str.isalpha, {t})), ''.join(map(str.title, {u}.split()))]; L.extend(filter(str.isspace, {t}))", "w = ''.join(itertools.takewhile(str.isalpha, {t})); n = len(w) % 7",
    "L = [*Counter(filter(None, {t}.split())), ','.join(f'{{i}}{{a}}' for i, a in enumerate(filter(str.isalpha, {t}), n))][:3]",
    "L = list(enumerate({t}[:2], n))", "a = iter({{'a': {t}, 'b': n}}.items()); L = [next(a)]; L = [*L, *a]", "a = reversed({{'a': {t}, 'k': v}}); w = next(a); L = list(a)",
]  # fmt: skip
CALL = [
    "v = tool({t}, q)", "effect('e', {t}, n, q)", "effect('e', q)", "effect('e', q)", "effect('f', q)", "L = words({t}, q)", "v = TOOLS['{tool}']({t}, q)", "v = child(tip={t}).ret_value", "w = shout({t}, q)", "v = flaky({t}, q) if 'a' not in {t} else v",
    "n = size(L, q) % 7", "out = [v]; fill({t}, out, q); n = len(out) % 7", "m = [{t}]; n = size(m, q); m.append(2); L = m", "int(s['d']); effect('charge', q)", "int({t}.strip('abcdefghijklmnoprstuvwxyz <>!') or 7); effect('charge', q)", "{n}; effect('after', q)",
    "c = child(tip={s}['x']); s += {t}; v = c['c']", "c, d = child(tip={t}), child(tip={t}); v = c['c'] + d.ret_value", "w = tree_child(tip={t}).ret_value[-7:]", "L = [child(tip=a) for a in {t}.split()[:3]]; v = L[-1]['c'] if L else v; L = [a['c'] for a in L]", "c = tree_child({t}, k=1 + {n} % 2); w = c.text()[-9:]",
    "n = {n} % 7 if any(loud(a, q) for a in xs[:1] if 'e' not in a) else n", "w = next((a for a in [{t}, {u}] if quiet(a)), 'n')", "L = sorted([{t}, 'c', {u}], key=lambda a: tool(a, q))", "v = max([{t}, {u}], key=lambda a: (tool(a, q), a))",
    "L = [tool(a, q) for a in {t}.split()[:2]]", "D = bag({t}, q)", "L = [k for k in bag({t}, q)]", "for k, a in lookup({t}, q).items(): v = a[-7:]", "L = sorted(lookup({t}, q))", "v = functools.reduce(lambda a, b: tool(a + b, q)[-4:], {t}[:2], 'r')",
    "L = list(map(lambda a: shout(a, q), {t}.split()[:2]))", "v = functools.partial(tool, {t})(q)", "n = outer({t})", "v = (tool if {c} else shout)({t}, q)", "v = tool({t}, q) if {c} else shout({u}, q)",
    "{c} and effect('then', q)", "v = {t} and tool({t}, q) or shout({u}, q)", "guarded({t}, q, lambda a: a.upper())", "a, b = words({t} + ' b c', q)[:2]; v = a",
    "v = tool((1, 2), q) + tool((True, 2), q) + tool((1.0, {t}), q)[-5:]", "v = max((tool(a, q) for a in {t}.split()[:2] or 'e'), key=lambda a: shout(a, q))", "L = {t}.split(); fill({u}, L, q); L = [(a, a is None) for a in L][:3]",
    "L = {t}.split(); n = size(L, q) % 7; L.append(n); w = str([isinstance(a, str) for a in L])[-9:]",
]  # fmt: skip
LANGUAGE = [
    "v = inner({t})", "w = (lambda t: inner(t) + '!')({t})", "v = say({s}, {t})", "w = say({s}, {t}, name='y')", "v = dig({s}, {t})", "node = Node({s}, 'x'); v = node.go({t}); n = len(node.seen)",
    "L = [Node({s}, 'x').go(a) for a in {t}.split()[:2]]", "v = wrapped(say)({s}, {t})", "n = scored({s}, {t})", "L = [*lazy(2)]", "for z in lazy(3): v = z; n += 1", "v = functools.partial(say, {s})({t})",
    "p = {s}.var_scope('k'); p.__enter__(); {s} += {t}; p.__exit__(None, None, None)", "{s} += lmc.special('<|im_end|>')", "w = ''.join([say({s}, a) for a in xs[:2]])[-9:]",
    "v = next(lazy(2), 'none')", "v = {{'s': say}}['s']({s}, {t})", "v = {s}.fork(1)[0]['x']",
    "{s} += lmc.gen('m', n=2, max_tokens=2, temperature=0.7); {s}['m'].append(n); L = {s}['m']; w = str(L is {s}['m'])", "a = {s}.messages(); a.append(n); w = str({s}.messages())[-9:]; L = a[-1:]",
]  # fmt: skip
ASKED = [
    "a = [{t} or 'z']; {s} += {u} + lmc.gen('x', max_tokens=3, stop=a); a.append({u} or n)", "a = json.loads(json.dumps([{t} or 'z'])); {s} += lmc.gen('x', max_tokens=3, stop=a); a.append(n)",
    "a = [{t} or 'z', 'e']; E = lmc.gen('x', max_tokens=3, stop=a); fill({u}, a, q)", "a = Rec(w, [{t} or 'z']); {s} += lmc.gen('x', max_tokens=3, stop=a.rows); a.add(n); w = a.shown",
    "a = json.loads(json.dumps([{t}, 'k'])); {s} += lmc.select('x', a); a.append(n)", "a = json.loads(json.dumps([{t}, n]))[:1 + n % 2]; E = lmc.select('x', choices=a); effect('written', q)",
    "a = json.loads(json.dumps({{'type': 'string'}})); E = lmc.gen('x', max_tokens=3, json_schema=a); a['enum'] = [{t}]", "a = {{n % 3 + 1: 1.0}}; {s} += lmc.gen('x', max_tokens=2, logit_bias=a); a[{t}] = n",
    "E = lmc.gen('x', max_tokens={n} - 1); effect('written', q)", "lmc.gen('x', max_tokens={n}, min_tokens=n % 3); effect('written', q)", "a = functools.partial(lmc.gen, max_tokens=3, stop=xs); {s} += a('x'); xs.append({t} or 'z')",
    "E = lmc.gen('x', max_tokens=3, stop=xs); xs[0] = {t} or 'z'", "a = words({t} + ' z', q); E = lmc.gen('x', max_tokens=3, stop=a); a.append(n)",
    "g = {s}.fork(2); a = json.loads(json.dumps([{t} or 'z'])); [f.__iadd__(lmc.gen('x', max_tokens=2, stop=a)) for f in g]; a.append(n); v = g[1]['x']",
    "E = lmc.gen('x', max_tokens=3, tools=[quiet, shout][:n]); effect('written', q)", "a = dict(max_tokens=2, stop=[{t} or 'z']); {s} += lmc.gen('x', **a); a['stop'].append(n); E = lmc.gen('x', **a)",
]  # fmt: skip
DEFINED = [
    "n = Box().add({t}) % 7", "Box.n += 1; n = Box.n % 7", "Box.seen.append({t}); w = str(Box.most())[-7:]", "Box.first += 'm'; v = Box.first[-5:]", "Box.seen.append({t}); L = Box.seen", "w = getattr(Box, 'last', 'none')",
    "box = Box(); box.n += 1; n = (box.n + Box.n) % 7", "Box.seen = [{t}]", "n = tally({t}) % 7", "w = getattr(tally, 'last', 'none')[-7:]", "tally.seen = [{t}]; tally.seen.append(n); L = tally.seen",
    "a = Rec({t}).add({u}); w = a.shown[-7:]; L = a.rows", "a = Rec({t}, [n]); b = copy.copy(a); b.text += 'm'; b.add({u}); v = (a.shown + b.shown)[-9:]", "a = Rec({t}, [[n]]); b = copy.deepcopy(a).add({u}); b.rows[0].append(v); L = [*a.rows, *b.rows]",
    "node = Node.of({s}); v = node.go({t}); b = copy.copy(node); w = b.go({u}); n = len(node.seen) % 7",
    "a = Rec({t}, xs); a.add(n); a.text += 'm'; v = a.shown; n = len(Rec(v).rows)",
    "h = lambda t: t + str(h.n); h.n = n; h.n += 1; v = h({t})[-7:]", "a = Twice({s}); v = a.ask({t}); L = a.logs", "a = Twice({s}); n = a.log({t}); w = str(a.logs)[-9:]", "box = Box(); box.keep = xs; box.keep.append({t})",
    "i = 0; a = [{t}, {u}]; a[i], i = i, 1; L = a", "a = [1, 2, 3]; i = 2; i, a[i] = {n} % 3, {t}; L = a", "x = y = Twice({s}); x.next, x = n, {t}; w = x[-7:]; n = y.next", "i = 1; a = [0, 0]; a[i], i, a[i] = {t}, 0, n; L = a",
]  # fmt: skip
CLASSES = [
    "c = Chat({s}, {t}); v = c.ask({u})", "c = Chat({s}, {t}); v = c({u}, n, k=1)[-9:]; n = c.left", "c = Chat({s}, {t}); c += {u}; w = c.text; L = c.more", "c = Chat({s}, {t}) + {u}; v = str(c); n = len(c)", "c = Chat({s}, {t}); v = f'{{c}}|{{c:>5}}'",
    "a, b = Chat({s}, {t}), Chat({s}, {u}); w = str(a == b) + max(a, b).text + str(a < b)", "c = Chat({s}, {t}); L = [*c, c[0:1], {u} in c]", "L = [c.text for c in sorted([Chat({s}, {t}), Chat({s}, {u}), Chat({s}, 'm')])]", "c = Chat({s}, {t}); v = c.ask_b({u})",
    "c = Chat({s}, {t}); v = c.text if c else 'empty'; n = int(not c)", "c = Chat({s}, {t}); c.text = {u}; c.text += 'm'; w = c.text; n = c.left; L = c.more", "w = getattr(Chat({s}, {t}), 'nothing', 'none') + str(hasattr(Chat({s}), 'ask_x'))", "D = {{Chat({s}, {t}): n, Chat({s}, {t}): 5}}; D = {{str(k): D[k] for k in D}}",
    "c = Chat({s}, {t}, n); b = copy.copy(c); b.more.append({u}); b.text = 'b'; L = c.more; w = c.text", "c = Chat({s}, {t}); L = c.kinds; c.kinds.append(n); n = len(Chat.kinds)", "L = [f(a) for f in [Chat({s}, {t}), shout_] for a in {u}[:1]]", "a, b, *L = Chat({s}, {t} + 'zz')",
    "m = Mood.of({t}); w = m.name + str(m is Mood.A) + m.other.value", "L = [{{Mood.A: 1, Mood.B: n}}[Mood.of({t})], Mood('a') is Mood.A]", "m = Mood.of({t}); v = {{'a': {u}, 'b': w}}[m.value]", "p = Pair({t}, n); v = p.long()[-7:]; L = [*p, p == ({t}, n), p.n]", "a, n = Pair({t}, n % 5); w = a[-5:]", "L = sorted([Pair({t}), Pair({u}, n)]); L = [a.text for a in L]",
    "v = twice({t}); n = twice.calls % 7", "w = twice({t}, k=n % 3); L = [twice.__name__, twice.calls]", "L = [*guard(2)]", "v = next(guard(2), 'none')", "for z in guard(3): v = z; break", "g_ = sums({t}); v = next(g_); L = [g_.send({u}), *g_]", "L = list(sums({t}))[:3]",
    "a = [{t}]; L = [same(a), same([{t}])]; a.append(n); w = str(L[0] is a)", "L = same([{t}, n]); L.append(1); w = same({u})", "a = same([v]); b = same([v], n); b.append(w); L = [a is b, a, b]", "n = len(same({t})) % 7",
]  # fmt: skip
ERRORS = [
    "v = tried(int, {t})", "v = tried(json.loads, {t}); w = str(len(X))", "v = tried(lambda: L[{n}]); n = len(X) % 7", "w = X[-1].__notes__[-1] if X else w", "w = ','.join(f'{{e.times}}{{type(e).__name__}}' for e in X)[-9:]", "w = str(X[0] is X[-1]) if X else w",
    "v = tried(Chat, {t})[-9:] if flag else tried(flaky, {t}, q)", "L = [str(e)[-9:] for e in X]", "L = [e.times for e in X]", "n = sum(isinstance(e, ValueError) for e in X)", "w = str(X and X[-1].args)[-12:]", "{s}['e'] = len(X)", "effect('errors', [str(e) for e in X], q)",
    "v = tried(fail, {t}, n)", "v = tried(lambda: fail({t}, len(v)))", "w = ','.join(e.shown for e in X if isinstance(e, Failed))[-9:]",
]  # fmt: skip
OUTSIDE = [
    "outside.set_limit(n)", "outside.LIMIT = 5", "n += outside.LIMIT % 7", "outside.add_step('s')", "w = outside.counted(w)", "w = STEPS[0]", "outside.Settings.level += 1", "n += outside.Settings.level",
    "w = str(next(outside.IDS))", "n += keep(L + [{t}])", "keep(L)", "G.append({t})", "n = (n + len(G)) % 7", "global N; N += 1", "w = str(N)", "w = str(outside.LIMIT)", "v = ' '.join(STEPS)[:9]", "outside.drop('one') if 'one' in STEPS else 0",
    "w = 'deep' if outside.LIMIT > 3 else w", "outside.set_mode('b')", "w = outside.MODE", "TABLE['x'] = {t}", "w = TABLE['x']", "n = len(TABLE)", "outside.Settings.note = {t}", "w = str(outside.Settings.note)",
    "L = [a for a in STEPS]", "n = len(STEPS)", "G.extend(L[:1])", "w = str(G)[-9:]", "L = G", "D = TABLE", "keep(G)", "outside.relay(lambda a: effect('cb', a), {t})",
    "w = str(outside.METER.now)", "n = (n + outside.METER.tick()) % 7; w = str(outside.METER.now)", "L = [*outside.METER][:2]", "a, *L = outside.METER", "D = {{str(outside.METER.now): {t}}}",
]  # fmt: skip
LEAVE = ["n += hash(v) * 0", "n += hash({t}) * 0", "n += eval('0')", "w = max(w, key=str)", "n += id(v) * 0", "exec('0')"]
ITERABLES = [
    "range(2)", "range({n} % 3)", "{t}.split()[:2]", "list(xs)", "xs", "L[:2]", "{t}[:2]", "list(D)[:2]", "[{t}, 'k']", "({t}, {u})", "many({t})", "bag({t}, q)", "sorted(lookup({t}, q))", "map(str, xs)",
    "reversed(xs)", "[a for a in {t}.split() if a][:2]", "(a for a in xs)", "{t}.partition('a')", "iter([{t}])", "re.findall('[a-h]', {t})[:3]", "itertools.islice(itertools.count(), 2)", "set({t}[:1])",
]  # fmt: skip
PAIRS = ["enumerate({t}.split()[:2])", "zip({t}, xs)", "list(D.items())[:2]", "[({t}, 1), ({u}, n)]", "enumerate(xs, 1)", "zip(L, 'ab')"]
RAISERS = ["raise Failed({t}, n=n)", "raise Worse({t})", "raise X[-1] if X else Failed({t})", "tried(int, {t}); raise X[-1]", "v = fail({t}, n)", "w = str({t}.split() in {{'a', 'k'}})", "w = str(D.get({t}.split()))", "w = sum([{t}], '')", "v = flaky({t}, q)", "n = int({t})", "raise ValueError({t})", "raise Refused({t})", "raise Refused({t}, times=n % 3)", "w = L[{n}]", "w = D[{t}]", "json.loads({t})", "pass", "loud({t}, q)", "assert {c}, {t}", "v = {t}[{n}]", "a, b = {t}.split()", "n = 1 // {n}", "v = {s}['nothing']"]
CATCHES = ["(ValueError, IndexError) as error", "Exception as error", "ValueError as error", "Refused as error", "KeyError as error", "Failed as error", "Worse as error", "(LookupError, AssertionError, ArithmeticError) as error"]
PATTERNS = [
    ("{t}", ["'k' | 'a'", "str(a)", "_"]), ("{t}.split()", ["[a, *b]", "[]"]), ("({t}, n)", ["('a', 1)", "(str(a), int(b)) if b", "_"]), ("L", ["[a]", "[a, b]", "[a, *_] if a", "_"]), ("D", ["{'d': a}", "{**rest} if rest"]),
    ("{n} % 3", ["0", "1 | 2 as a"]), ("{t}[:1]", ["'a' | 'b' | 'd'", "x if x > 'k'", "_"]), ("json.loads(json.dumps([{t}, n]))", ["[str(a), 0]", "[a, int(b)]"]),
]  # fmt: skip


class Writer:
    """Writes one program. `pick` chooses among alternatives; everything else follows from its choices."""

    def __init__(self, pick: Callable[[Sequence[Any]], Any]) -> None:
        self.pick = pick
        self.lines: list[str] = []
        self.indent = 1
        self.states = ["s"]
        self.fresh = itertools.count()
        self.roles: set[str] = set()  # states with an open one
        self.loops = self.depth = 0
        self.shared = pick([False, False, True])
        self.left = pick([6, 9, 12])  # statements

    def source(self) -> str:
        """The whole text."""
        self.put("s += q + lmc.gen('x', max_tokens=4)" + self.pick(["", "", " + '\\n'"]))
        while self.left > 0:
            self.statement()
        self.put(self.pick(["return v, w, n, L, D, len(xs)", "return v, w, n, str(L), D, xs", "return (v, w, n, L, D)", "return s"]))
        body = "\n".join(self.lines) + "\n"
        if "s['d']" in body:
            body = "    s += lmc.gen('d', regex='[0-3]')\n" + body
        if "global N" in body:
            body = "    global N\n" + body.replace("global N; ", "")
        signature = BEGIN.removeprefix(HEAD)
        if "E" in body:
            signature += "    E = lmc.gen('x', max_tokens=3)\n"
        words = set(re.findall(r"\w+", body))
        if "shout_" in words:
            body = "    shout_ = lambda t: t.upper()\n" + body
        if words & {"X", "tried"}:
            body = "    X = []\n" + body
        if words & {"Worse", "fail"}:
            words.add("Failed")
        if "twice" in words:
            words.add("counting")
        inner = "".join(text for name, text in INNER.items() if name in words)
        helpers = "".join(text for name, text in HELPERS.items() if name in body)
        return HEAD + helpers + signature + inner + body

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def filled(self, template: str) -> str:
        """A template with its holes filled: {t} {u} texts, {n} a number, {c} a condition, {s} a state, {k} a small constant."""
        if "{" not in template:
            return template
        self.depth += 1
        holes = {
            "t": self.text, "u": self.text, "n": self.number, "c": self.condition, "s": lambda: self.pick(self.states), "k": lambda: self.pick(["1", "2", "3"]),
            "tool": lambda: self.pick(["shout", "tool"]),
        }  # fmt: skip
        found = {name: make() if "{" + name + "}" in template or "{" + name + "!" in template else "" for name, make in holes.items()}
        self.depth -= 1
        if "{{{t}" in template or "{{{n}" in template or "'" in template:  # texts inside of an f-string must not have its quotes
            found = {name: text.replace("'", '"') if template.startswith("f'") or " f'" in template else text for name, text in found.items()}
            if template.startswith("f'") or " f'" in template:
                found["t"] = found["t"] if '"' not in found["t"] and "\\" not in found["t"] and "{" not in found["t"] else self.pick(["v", "w", "q"])
        return template.format(**found)

    def text(self) -> str:
        if self.depth > 2 or self.pick([True, False]):
            atom = self.pick(ATOMS)
            return atom.replace("s[", f"{self.pick(self.states)}[") if atom.startswith("s[") else atom
        return self.filled(self.pick(TEXT))

    def condition(self) -> str:
        text = self.filled(self.pick(CONDITIONS))
        return text if self.depth > 1 or self.pick([True, True, False]) else f"({text} {self.pick(['and', 'or', 'and not'])} {self.filled(self.pick(CONDITIONS))})"

    def number(self) -> str:
        return self.filled(self.pick(NUMBERS)) if self.depth <= 2 else self.pick(["n", "len(v)", "2"])

    def gen(self) -> str:
        name = self.pick(["x", "x", "x", "y", "k", None])
        more = self.pick(["", "", "", ", stop='a'", ", regex='[ab]{1,3}'", ", max_tokens=1 + n % 3", ", temperature=0", ", stop=xs", ", n=1 + n % 2", ", stop=[v[:1] or 'z', 'e']", ", seed=3"])
        if "n=1" in more:
            name = "many"
        choices = self.pick(["['a', 'k', w + '?']", "['yes', 'no']", "['yes', 'no', 'perhaps']", "[{u}, 'k']", "xs", "STEPS" if self.shared else "['a']"])
        size = "" if "max_" in more or name is None else ", max_tokens=3"
        return self.pick([
            f"lmc.gen({name!r}{size}{more})", f"lmc.gen({name!r}{size}{more})", self.filled(f"lmc.select('x', choices={choices})"), "lmc.gen('x', max_tokens=2)", "lmc.gen('j', dtype=int)" , "E",
        ])  # fmt: skip

    def body(self) -> None:
        self.indent += 1
        for _ in range(self.pick([1, 1, 2, 3])):
            self.statement()
        self.indent -= 1

    def loop(self) -> None:
        self.loops += 1
        self.body()
        self.indent += 1
        if self.pick([False, False, True]):
            self.put(f"if {self.condition()}: {self.pick(['break', 'continue'])}")
        self.indent -= 1
        self.loops -= 1

    def statement(self) -> None:
        self.left -= 1
        simple: list[Callable[[], None]] = [self.append] * 4 + [self.one_of(ASSIGN)] * 2 + [self.one_of(COLLECT)] * 2 + [self.one_of(CALL)] * 2 + [self.one_of(LANGUAGE)] * 2
        simple += [self.one_of(ASKED)] + [self.one_of(DEFINED)] * 2 + [self.one_of(CLASSES)] * 3 + [self.one_of(ERRORS)] * 2
        simple += [self.one_of(OUTSIDE)] * 3 if self.shared else []
        if self.pick(range(40)) == 0:
            return self.one_of(LEAVE)()
        if self.pick(range(40)) == 0:
            return self.put("return " + self.pick(["v, n", "(L, D)", "s", "None"])) if self.indent > 1 else self.put("pass")
        nested = [self.if_] * 4 + [self.for_] * 2 + [self.while_, self.forks, self.forks, self.group, self.group, self.try_, self.role, self.match, self.scope, self.with_]
        small = self.left <= 0 or self.indent > 4
        self.pick(simple if small or self.pick([True, True, False]) else nested)()

    def one_of(self, templates: Sequence[str]) -> Callable[[], None]:
        return lambda: self.put(self.filled(self.pick(templates)))

    # statements

    def append(self) -> None:
        s = self.pick(self.states)
        forms = [f"{s} += {self.text()} + {self.gen()}", f"{s} += {self.gen()}", f"{s} += {self.text()}", f"{s} += {self.gen()} + {self.text()}"]
        if s not in self.roles or self.pick(range(30)) == 0:
            forms += [f"{s} += lmc.user({self.text()}) + lmc.assistant({self.gen()})", f"{s} += turn({self.text()})", f"{s}.user({self.text()})", f"v = ask({s}, {self.text()}, name='x')"]
        self.put(self.pick(forms))

    def if_(self) -> None:
        self.put(self.pick([f"if {self.condition()}:", f"if {self.condition()}:", f"if {self.condition()}:", f"if (m := {self.text()}) and {self.condition()}:"]))
        self.body()
        if self.pick([True, False]):
            if self.pick([True, False]):
                self.put(f"elif {self.condition()}:")
                self.body()
            self.put("else:")
            self.body()
        if self.loops and self.pick([True, False]):
            self.put(f"if {self.condition()}: {self.pick(['break', 'continue'])}")
        elif self.pick([False, False, False, True]):
            self.put(f"if {self.condition()}: return {self.text()}")

    def for_(self) -> None:
        """Ends after a few steps, whatever the body does to what is iterated."""
        c = f"c{next(self.fresh)}"
        i, j = c.replace("c", "i"), c.replace("c", "j")
        self.put(f"{c} = 0")
        if self.pick([True, True, False]):
            self.put(f"for {i} in {self.filled(self.pick(ITERABLES + (['STEPS', 'STEPS[:2]', 'TABLE', 'G[:2]'] if self.shared else [])))}:")
            self.indent += 1
            self.put(self.pick([f"w = str({i})", f"s += str({i})", "pass"]))
        else:
            self.put(f"for {i}, {j} in {self.filled(self.pick(PAIRS))}:")
            self.indent += 1
            self.put(f"w = str({i}) + str({j})")
        self.put(f"{c} += 1")
        self.put(f"if {c} > 3: break")
        self.indent -= 1
        self.loop()
        if self.pick([False, True]):
            self.put("else:")
            self.body()

    def while_(self) -> None:
        c = f"c{next(self.fresh)}"
        self.put(f"{c} = 0")
        if self.pick([False, False, True]):
            self.put(f"while xs and {c} < 3:")
            self.indent += 1
            self.put(self.pick(["s += xs.pop(0)", "w = xs.pop(); n += 1"]))
            self.put("xs = xs or ['e']")
        else:
            self.put(f"while {c} < 3 and ({self.condition()}):")
            self.indent += 1
        self.put(f"{c} += 1")
        self.indent -= 1
        self.loop()
        if self.pick([False, False, True]):
            self.put("else:")
            self.body()

    def forks(self) -> None:
        """Forks one by one, maybe nested, and then something of all of them."""
        s, g = self.pick(self.states), f"g{next(self.fresh)}"
        f = g.replace("g", "f")
        self.put(f"{g} = {s}.fork({self.pick(['1', '2', '2', '3', '1 + n % 2', 'len(xs) % 3 or 1'])})")
        if self.pick([True, False]):
            self.put(f"{s} += {self.text()}")  # the parent goes on
        self.put(self.pick([f"for {f} in {g}:", f"for i{f}, {f} in enumerate({g}):", f"for {f}, w in zip({g}, ['a', {self.text()}, 'c']):"]))
        self.states.append(f)
        if s in self.roles:
            self.roles.add(f)
        self.indent += 1
        self.put(f"{f} += {self.pick([self.text(), repr(f)])} + {self.gen()}")
        self.indent -= 1
        self.loop()
        self.states.pop()
        self.roles.discard(f)
        self.after_forks(g)

    def group(self) -> None:
        """A fork group as a whole."""
        s, g = self.pick(self.states), f"g{next(self.fresh)}"
        self.put(f"{g} = {s}.fork({self.pick(['2', '2', '3', '1 + n % 3'])})")
        for _ in range(self.pick([1, 2])):
            self.put(self.pick([f"{g} += {self.gen()}", f"{g} += {self.text()} + lmc.gen('x', max_tokens=2)", f"{g} += lambda i: str(i) + lmc.gen('x', max_tokens=2)", f"L = [say(f, {self.text()}) for f in {g}]",
                                f"for i, f in enumerate({g}): f += f'{{i}}' + lmc.gen('x', max_tokens=2)", f"L = [f.fork(2) for f in {g}]; [a.__iadd__(lmc.gen('y', max_tokens=1)) for a in L]; L = [a[1]['y'] for a in L]",
                                f"L = [scored(f, {self.text()}) for f in {g}]", f"{g}[0] += {self.gen()}", f"L = [child(tip=f['x'])['c'] for f in {g}]"]))  # fmt: skip
        self.after_forks(g)

    def after_forks(self, g: str) -> None:
        self.put(self.pick([
            f"{g}.join()", "pass", f"L = [f['x'] for f in {g}]", f"{g}.join('concate_and_append')", f"v = max([f.text() for f in {g}])[-5:]", f"v = max({g}, key=lambda f: f['x'])['x']",
            f"v = sorted({g}, key=lambda f: (len(f['x']), f['x']))[0]['x']", f"n = [f['x'] for f in {g}].count('a')", f"w = ''.join(f['x'] for f in {g} if 'a' in f['x'])[-9:]", f"n = sum('a' in f['x'] for f in {g})",
            f"w = str(any(f['x'] < 'm' for f in {g}))", f"w = next((f['x'] for f in {g} if 'e' in f['x']), 'none')", f"D = {{i: f['x'] for i, f in enumerate({g})}}", f"{g}.join(); w = str(s['x'])[-9:]", f"v = {g}[-1]['x']",
            f"w = Counter(f['x'][:1] for f in {g}).most_common(1)[0][0]", f"best = min({g}, key=lambda f: f['x']); best += lmc.gen('y', max_tokens=2); v = best['y']", f"L = [f['x'] for f in reversed({g}.states)]",
            f"v = '|'.join([f['x'] for f in {g}])[-9:]; s += v", f"a, *L = [f['x'] for f in {g}]; v = a", f"effect('forks', [f['x'] for f in {g}], q)",
        ]))  # fmt: skip

    def try_(self) -> None:
        self.put("try:")
        self.body()
        self.indent += 1
        self.put(self.filled(self.pick(RAISERS)))
        self.indent -= 1
        if self.pick([True, True, True, False]):
            self.put(f"except {self.filled(self.pick(CATCHES))}:")
            self.indent += 1
            self.put(self.pick(["w = str(error)[-19:]", "w = type(error).__name__", "effect('caught', str(error), q)"]))
            if self.pick(range(6)) == 0:
                self.put(self.pick(["raise", "raise RuntimeError(w) from error", "raise KeyError('other')"]))
            self.indent -= 1
            self.body()
            if self.pick([True, False, False]):
                self.put("else:")
                self.body()
        else:
            self.put("finally:")
            self.body()
            return
        if self.pick([True, False, False]):
            self.put("finally:")
            self.body()

    def role(self) -> None:
        s = self.pick(self.states)
        if s in self.roles:
            return self.append()
        self.put(f"with {s}.{self.pick(['user', 'assistant', 'system'])}():")
        self.roles.add(s)
        self.body()
        if self.pick(range(6)) == 0:
            self.indent += 1
            self.put(self.filled(self.pick(RAISERS[:3])))
            self.indent -= 1
        self.roles.discard(s)

    def scope(self) -> None:
        s, f = self.pick(self.states), f"f{next(self.fresh)}"
        if self.pick([True, False]):
            self.put(f"with {s}.var_scope('k'):")
            return self.body()
        self.put(f"with {s}.copy() as {f}:")
        self.states.append(f)
        if s in self.roles:
            self.roles.add(f)
        self.body()
        self.states.pop()

    def with_(self) -> None:
        """A context manager of the host, or of the program's own."""
        s = self.pick(self.states)
        own = [f"part({s}, {self.text()})", f"part({s}, 'k')", "contextlib.suppress(LookupError)"]
        manager = self.pick([f"outside.section({self.text()}, q)", f"outside.section({self.text()}, q)", *own, f"Chat({s}, {self.text()})"])
        name = "ask_" if "Chat" in manager else self.pick(["", "w"]) if "contextlib" not in manager else ""
        self.put(f"with {manager}{name and f' as {name}'}:")
        if name == "ask_":
            self.indent += 1
            self.put(f"v = ask_({self.text()})")
            self.indent -= 1
        self.body()

    def match(self) -> None:
        subject, patterns = self.pick(PATTERNS)
        self.put(f"match {self.filled(subject)}:")
        self.indent += 1
        for pattern in patterns:
            self.put(f"case {pattern}:")
            self.body()
        self.indent -= 1


def source(seed: int) -> str:
    """The program of a seed."""
    chance = random.Random(seed)
    return Writer(lambda options: options[int(chance.random() * len(options))]).source()


@st.composite
def sources(draw: st.DrawFn) -> str:
    """Programs as hypothesis chooses them."""
    return Writer(lambda options: draw(st.sampled_from(options))).source()
