"""Code that is skipped behind an undecided condition: what it may change is not taken for certain, and what it only reads stays known."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.frontend.capture.comparing import evaluation, run_python
from tests.searching import some

BEGINNING = """
import copy, functools, heapq, json, operator, random, re
from contextvars import copy_context
import lmc

XS = ["x", "y", "z", "w"]
GL = "old"
OUTS = {}

def ask(s, q):
    (f,) = s.fork(1)
    f += q + lmc.gen("a", max_tokens=4)
    return f["a"]

class Box:
    def __init__(self, items): self.items = items
    def add(self, x): self.items.append(x)

OUT = Box([])

class Left: pass

class Wrong(Exception): pass

class Right:
    def __init__(self, seen): self.seen = seen
    def __radd__(self, x): self.seen.append("r"); return self
    def __gt__(self, x): self.seen.append("gt"); return True

def adds(seen):
    for x in XS:
        seen.append(x); yield x

def put(xs, x): xs.append(x)
def put2(xs, x): put(xs, x)
def put3(xs, x):
    ys = xs
    ys.append(x)
def each_(boxes):
    for b in boxes: b.items.append("e")
def reads(xs): return f"{xs} {len(xs)}"

class Cmp:
    def __init__(self, seen): self.seen = seen
    def __enter__(self): self.seen.append("enter"); return self
    def __eq__(self, o): self.seen.append("eq"); return self is o
    def __hash__(self): return 1
"""
SPECIAL = (
    "lt:True len:1 str:'s' repr:'s' add:self radd:self iter:iter('ab') contains:True getitem:'i' setitem:None delitem:None bool:True format:'f' index:1 neg:1 "
    "call:1 exit:None reversed:iter('ab') deepcopy:self round:1 float:1.0 next:1"
)
"""Methods of `Cmp`, each of which changes the object, with their results."""
PROGRAM = """
@lmc.function
def {name}(s):
    global GL
    answer = ask(s, "q")
    L = ["a", "b"]; seen1 = ["s1"]; seen = ["s"]; D = {{"k": L, "l": ["m"]}}
    C1, C, R = Cmp(seen1), Cmp(seen), Right(seen)
    BX = Box(L); BS = [BX, Box([])]
    G = adds(L); GS = [adds(L), adds([])]
    IT = iter(XS); ITS = {{"k": IT}}
    P = functools.partial(put, L); PS = [P]; AP = L.append; FS = {{"f": lambda x: L.append(x)}}
{skipped}
    for text in (f"{{L}}", f"{{D}}", f"{{seen}} {{seen1}}", f"{{seen}}", f"{{BX.items}}", f"{{BS[0].items}}"):
        ask(s, text)
    ask(s, f"{{next(iter([*IT, 'end']))}}")
    ask(s, f"{{getattr(Box, 'kind', 0)}}")
    ask(s, f"{{GL}}")
    ask(s, "end")
"""
CHANGES = r"""
Left() + R
Left() < R
1 + C
"a" + C
C1 + C
sorted([C1, C])
[C1, C].sort()
max(C1, C)
min([C1, C])
list(map(len, [C1, C]))
list(map(str, [C1, C]))
str([C1, C])
f"{[C1, C]}"
f"{C1} {C}"
f"{C:x}"
f"{C!r}"
"%s" % C
"%s %s" % (C1, C)
"{} {}".format(C1, C)
", ".join(map(str, [C1, C]))
sum([C1, C], 0)
C in [C1]
[C1, C].index(3)
[C1, C].count(3)
[C1, C] == [1, 2]
[C1, C] == [C1, 2]
[C1, C].remove(C)
{1: C} == {1: 2}
(C1, C) < (C1, C1)
"x" in C
list(C)
a, b = C
[*C]
(*C,)
XS[C]
C["x"]
C["x"] = 1
del C["x"]
bool(C)
not C
1 if C else 2
C and 1
C or 1
-C
C(1)
C.seen and C("x")
list(reversed(C))
copy.deepcopy([C1, C])
round(C)
float(C)
range(C)
next(C)
dict([(1, C), C])
zip(C, C); list(zip(C, XS))
[x for x in C]
{C: 1}[C1]
C1 == C
C1 != C
{C1, C}
any([C1, C])
all([C1, C])
any(x == 3 for x in [C1, C])
list(filter(None, [C1, C]))
tuple(C)
set(C)
"a".join(C)
sorted(XS, key=C)
list(map(C, XS))
functools.reduce(C, XS)
functools.reduce(operator.add, [C1, C])
re.sub("a", C, "aa")
heapq.heappush([C1], C)
heapq.nsmallest(1, [C1, C])
[y for y in [C1, C] if y]
C1 is C or C1 == C
isinstance(C, str)
getattr(C, "x", 1)
hasattr(C, "x")
setattr(C, "seen", [])
C.seen.append(1)
vars(C)["seen"].append(1)
C.__dict__["seen"].append(1)
print(C)
print(f"{C}")
C += 1
C1 += C
[1] * C
"a" * C
XS[C:]
XS[:C]
"a".replace("a", "b", C)
chr(C)
json.dumps([C])
random.choice([C])
random.shuffle(L)
random.shuffle(x=L)
L.sort(key=C)
with C: pass
with C as q: q.seen.append(3)
for _ in C: pass
while C: break
if C: pass
assert C
match C:\n case Cmp(): pass
match C:\n case 1: pass
match C:\n case [a, b]: pass
del L[0]
x = L; del x[0]
seen2 = L; seen2 += [3]
L[0:1] = [4]
{**{"a": L}}["a"].append(2)
next(adds(L))
list(adds(L))
a, *b = adds(L)
[*adds(L)]
print(*adds(L))
dict.fromkeys(adds(L))
"".join(adds(L))
"z" in adds(L)
sorted(adds(L))
for x in adds(L): pass
for x in zip(adds(L), XS): pass
g = adds(L); iter(g); next(g, None)
G.send(None)
G.__next__()
next(G)
list(zip(G, XS))
(lambda: put(L, 1))()
[put(L, 1) for _ in "a"]
functools.partial(put, L)(1)
functools.partial(put, x=1)(L)
functools.partial(put, xs=L)(x=1)
getattr(L, "append")(1)
operator.methodcaller("append", 1)(L)
list.append(L, 1)
append = L.append; append(1)
list(map(L.append, XS))
BX.add(1)
BX.items.append(1)
Box.add(BX, 1)
setattr(BX, "items", [])
BX.__init__([])
BX.__dict__.update(items=3)
copy_context().run(L.append, 1)
copy_context().run(put, L, 1)
copy_context().run(put, xs=L, x=1)
copy_context().run(lambda: L.append(1))
copy_context().run(BX.add, 1)
copy_context().run(functools.partial(put, L), 1)
copy_context().run(each_, [BX])
copy_context().run(list, adds(L))
copy_context().run(list, map(L.append, XS))
copy_context().run(operator.setitem, D, "k", 3)
copy_context().run(D["k"].append, 3)
operator.setitem(D, "k", 3)
D["k"].append(1)
D.get("k").append(1)
D.setdefault("k", []).append(1)
for v in D.values(): v.append(1)
for k, v in D.items(): v.append(k)
[v.append(1) for v in D.values()]
list(D.values())[0].append(1)
max(D.values()).append(1)
(L or []).append(1)
(L if True else D).append(1)
[L][0].append(1)
dict(a=L)["a"].append(1)
Box(L).add(1)
b = Box(L); b.add(1)
b = Box(L); b.items += [3]
put(L, 1)
put(xs=L, x=1)
put(*[L, 1])
put(**{"xs": L, "x": 1})
put2(L, 1)
put2(xs=L, x=1)
put3(L, 1)
each_([BX])
each_(BS)
for bx in BS: bx.items.append(1)
for bx in BS: bx.add(1)
for bx in BS: put(bx.items, 1)
for g in GS: next(g)
for g in GS: list(g)
for g in GS:\n for _ in g: pass
[next(g) for g in GS]
next(GS[0])
[*GS[0]]
next(ITS["k"])
next(IT)
list(IT)
for _ in IT: break
a, b = IT, 1; next(a)
list(zip(IT, "p"))
"x" in IT
[*IT]
copy_context().run(next, IT)
copy_context().run(next, ITS["k"])
P(1)
PS[0](1)
AP(1)
FS["f"](1)
BX.f = 3
BX.items = [9]
Box.kind = 4
def inner(): L.append(1)\ninner()
def inner(f, x): f(x, 1)\ninner(put, L)
def inner(y=L): y.append(1)\ninner()
async def inner(): L.append(1)\nimport asyncio; asyncio.run(inner())
class K:\n L.append(1)
class K:\n x = L\n x.append(1)
class K:\n def go(self): L.append(1)\nK().go()
class K:\n y = [L]\nK.y[0].append(1)
class K(Box): pass\nK(L).add(1)
class K(Box): pass\nK(L).items.append(1)
try:\n raise KeyError(L)\nexcept KeyError as e: e.args[0].append(1)
x = y = L; y.append(1)
(x, y) = (L, 1); x.append(1)
x, = [L]; x.append(1)
(z := L).append(1)
for z in [L]: z.append(1)
for z, w in zip([L], XS): z.append(1)
for i, z in enumerate([L]): z.append(1)
[z.append(1) for z in [L]]
import contextlib\nwith contextlib.nullcontext(L) as z: z.append(1)
t = (L, 1); t[0].append(1)
t = [L]; t.extend([1]); t[0].append(2)
q = L; r = q; r.append(1)
q = D["k"]; r = q; r.append(1)
global GL; GL = "new"
""".strip().splitlines()
LEFT = r"""
for v in D.values():\n if "no" in answer: break\n v.append(1)
for k, v in D.items():\n while len(answer) > len(v): v.append(1)
[v.append(1) for v in D.values() if "no" not in answer]
any(v.append(1) for v in D.values() if "no" not in answer)
{k: v.append(1) for k, v in D.items() if "no" not in answer}
D[answer[:0] + "k"].append(1)
D.get(answer[:0] + "k").append(1)
v = L if "no" not in answer else []; v.append(1)
v = D[answer[:0] + "k"]; v += [1]
D[answer[:0] + "k"][0] = 1
v = BS[len(answer[:0])]; v.items = [1]
put(D[answer[:0] + "k"], 1)
for v in (D[answer[:0] + "k"],): v.append(1)
for v in [L] * len(answer): v.append(1)
v = [L, answer].pop(len(answer[:0])); v.append(1)
H = {}\nif answer: H["k"] = L\nH["k"].append(1)
H = {}\nif answer: H["k"] = BX\nH["k"].items.append(1)
H = {}\nif answer: H["k"] = L\nif answer: H["k"].append(1)
H = []\nif answer: H.append(L)\nfor v in list(H): v.append(1)
H = []\nif answer: H.append(L)\nfor v in H: v.append(1)
H = []\nif answer: put(H, L)\nput(H[0], 1)
H = []\nif answer: list.append(H, L)\nH[0].append(1)
H = []\nif answer: heapq.heappush(H, L)\nH[0].append(1)
H = []\nif answer: H += [L]\nH[0].append(1)
H = Box([])\nif answer: H.items = L\nH.add(1)
H = Box(L)\nif not answer: H.items = []\nH.add(1)
H = Box([])\nif answer: H.more = L\nif answer: H.more.append(1)
H = Box([])\nif answer: H.add(L)\nH.items[0].append(1)
H = {}\nif answer: H["k"] = C\nstr(H["k"])
H = {}\nH[answer] = L\nH[answer].append(1)
H = {}\nH.setdefault(answer, []).append(L)\nH.get(answer)[0].append(1)
H = {}\nH[answer] = 1; H.update(k=L)\nH["k"].append(1)
H = {}\nH[answer] = 1; H["k"] = L\n(H.get("k") or []).append(1)
H = []\nH.insert(len(answer), L)\nH[0].append(1)
H = [L] + answer.split()\nH[0].append(1)
next(iter([L] if answer else [[]])).append(1)
OUT.kept = L; OUT.kept.append(1)
H = []\ndef keeps():\n nonlocal H\n H = L\nif answer: keeps()\nH.append(1)
def gives(v):\n if answer: return v\n return []\ngives(L).append(1)
def gives(vs):\n for v in vs:\n  if answer: return v\ngives([[], L]).append(1)
H = {}; H.update(k=L)\nfor v in H.values(): put(v, 1)
H = ([], [])\nif answer: H = (L, [])\nH[0].append(1)
H = [[]]\nif answer:\n v = [L]\n H = v\nH[0].append(1)
if answer: v = [BX]; each_(v)
if answer: v = []; v.append(BX); each_(v)
if answer: v = {}; v["k"] = [L]; put(v["k"][0], 1)
H = Box([])\nif not answer: H.more = [1]\ngetattr(H, "more", L).append(1)
H = [[i] for i in range(70)] + [[C]]\nif answer: f"{H}"
H = {i: [i] for i in range(70)}; H[70] = [IT]\nif answer: list(H[70][0])
if answer: setattr(Box, "kind", 4)
if answer: setattr(Box, "ki" + "nd", 4)
setattr(Box, "kind" + answer[:0], 4)
setattr(Box, "kind" + answer[:0], L); Box.kind.append(1)
(Box if answer else Cmp).kind = 4
setattr(Box if answer else Cmp, "kind", 4)
if answer: BX.__class__.kind = 4
if answer: type(BX).kind = 4
if answer: setattr(BX, "items", L[:1])
def sets(cls): cls.kind = 4\nif answer: sets(type(BX))
def sets(cls): cls.kind = 4\nsets(Box if answer else Cmp)
Box.kind = L; Box.kind.append(1)
Box.kind = lambda self: L.append(1); BX.kind()
Box.kind = staticmethod(put); Box.kind(L, 1)
if answer: Box.kind = lambda self: L.append(1)\nif answer: BX.kind()
if answer: Box.kind = AP\nBox.kind(1)
if answer: Box.kind = L\nif answer: Box.kind.append(1)
put.kept = L; put.kept.append(1)
try: raise KeyError(L)\nexcept KeyError as e: e.args[0].append(1)
try: raise KeyError(L)\nexcept KeyError as e: e.args[len(answer[:0])].append(1)
try: raise KeyError(L)\nexcept KeyError as e:\n if answer: e.args[0].append(1)
try: raise Wrong(L)\nexcept Wrong as e: e.args[len(answer[:0])].append(1)
try: raise Wrong(L)\nexcept Wrong as e:\n if answer: e.args[0].append(1)
class K:\n def go(self): later.append(1)\nlater = L; K().go()
class K:\n def go(self): later.append(1)\nk = K(); later = L; k.go()
later = []\nif answer:\n def go(): later.append(1)\nlater = L\nif answer: go()
later = []\nif answer: go = lambda: later.append(1)\nlater = L\nif answer: go()
later = []\nif answer: go = lambda: later.append(1)\nelse: go = len\nlater = L; go()
later = []; H = {}\nif answer: H["go"] = lambda: later.append(1)\nlater = L; H["go"]()
OUTS["kept"] = L; OUTS["kept"].append(1)
""".strip().splitlines()
"""Left undecided within: by a loop, by which object is changed, or by what it was given before."""
READS = r"""
pass
print(len(L), f"{D} {BX.items}")
n = len(L) + sum(len(v) for v in D.values())
text = ", ".join(x.upper() for x in L)
k = D["k"]; text = f"{k[0]} {k}"
for v in D.values(): text = f"{v}"
for i, v in enumerate(L): text = f"{i}: {v.strip()}"
rows = []; rows.append(D["k"]); rows.append(L)
rows = [v for v in D.values()]; rows.sort(key=len)
pairs = dict(zip(XS, L)); pairs["x"] = L
total = 0; total += len(D["k"])
reads(L); reads(D["k"]); reads(xs=BX.items)
def inner(xs): return len(xs)\ninner(L)
text = json.dumps(D) + re.sub("a", "b", L[0])
first = max(L); last = sorted(L)[0]; part = L[1:]
match L:\n case [a, b]: pass
if len(L) > 9: lmc.nothing(1)
""".strip().splitlines()


def indented(n: int, code: str) -> str:
    return "".join(f"{' ' * n}{line}\n" for line in code.replace("\\n", "\n").splitlines())


def programs_of(code: str, number: str) -> dict[str, str]:
    """The source of programs that skip code: in an arm, in a loop, in a function of theirs."""
    test = '    if "no" not in answer:\n'
    inside = indented(8, code).replace("global GL; ", "")
    outer = "        nonlocal C, C1\n" if "C += " in code or "C1 +=" in code else ""
    skipped = {
        "arm": test + indented(8, code), "loop": "    for word in answer.split():\n" + indented(8, code),
        "line": indented(4, code), "function": f"    def helper():\n{outer}{inside}{test}        helper()\n",
    }  # fmt: skip
    return {f"{kind}_{number}": PROGRAM.format(name=f"{kind}_{number}", skipped=lines.rstrip()) for kind, lines in skipped.items()}


CODE = {f"{kind}{i}": code for kind, codes in (("changes", CHANGES), ("left", LEFT), ("reads", READS)) for i, code in enumerate(codes)}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    made = [f"    def __{name}__(self, *a): self.seen.append({name!r}); return {result}" for name, _, result in (x.partition(":") for x in SPECIAL.split())]
    file = tmp_path_factory.mktemp("skipped") / "skipped_programs.py"
    programs = [program for number, code in CODE.items() for program in programs_of(code, number).values()]
    file.write_text(BEGINNING + "\n".join([*made, *programs]))
    spec = importlib.util.spec_from_file_location("skipped_programs", file)
    assert spec is not None and spec.loader is not None
    found = sys.modules["skipped_programs"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def certain_and_right(module: Any, name: str) -> tuple[int, set[Any]]:
    """Return how many requests are known to be certain while the first answer is unknown, and the prompts of those that Python does not make."""
    module.GL = "old"
    vars(module.Box).get("kind") is not None and delattr(module.Box, "kind")
    python = run_python(getattr(module, name), {}, {"a": "1 2"})
    prompts = {address: prompt for address, _, prompt in python.asked}
    module.GL = "old"
    vars(module.Box).get("kind") is not None and delattr(module.Box, "kind")
    asked, _ = evaluation(getattr(module, name), {}, {})
    known = [a for a in asked if a.certain and not a.shifted and a.prompt is not None]
    return len(known), set() if python.error is not None else {a.prompt for a in known if a.prompt != prompts.get(a.address)}


@some("kind", ["arm", "loop", "function"], 3)
@pytest.mark.parametrize("i", range(len(CHANGES)))
def test_what_skipped_code_may_change_is_not_certain(module: ModuleType, i: int, kind: str) -> None:
    known, wrong = certain_and_right(module, f"{kind}_changes{i}")
    assert known and not wrong, CHANGES[i]


@pytest.mark.parametrize("i", range(len(LEFT)))
def test_what_code_may_change_that_is_left_undecided_within_is_not_certain(module: ModuleType, i: int) -> None:
    known, wrong = certain_and_right(module, f"line_left{i}")
    assert known and not wrong, LEFT[i]


@some("kind", ["arm", "loop", "function"], 3)
@pytest.mark.parametrize("i", range(len(READS)))
def test_what_skipped_code_reads_stays_known(module: ModuleType, i: int, kind: str) -> None:
    assert certain_and_right(module, f"{kind}_reads{i}") == certain_and_right(module, f"{kind}_reads0") == (10, set()), READS[i]
