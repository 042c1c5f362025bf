"""The mistakes of other systems: each item is a program on which somebody was wrong."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

import lmc
from lmc.backend.mock import Mock
from tests.searching import TIMES

from .harness import EFFECTS, conform, effect, opaque, scripted

# -- tools of the programs ------------------------------------------------------------------------------------------------


def tool(x: Any) -> str:
    effect("tool", x)
    return f"<{x}>"


def calculator(text: str) -> str:
    effect("calculator", text)
    return str(len(text))


def broken(x: Any) -> str:
    effect("broken", x)
    raise RuntimeError(f"cannot {x}")


# -- 1, 2: branches ----------------------------------------------------------------------------------------------------------


@lmc.function
def branch_on_output(s: Any, q: str) -> str:
    s += q + lmc.gen("action", max_tokens=8)
    if s["action"] == "Search":
        s += " found " + lmc.gen("x", max_tokens=4)
        return "searched"
    elif len(s["action"]) > 6:
        s += " long " + lmc.gen("y", max_tokens=4)
    else:
        s += " short"
    return s["action"]


def test_branch_on_output():
    conform(branch_on_output, [{"q": str(i)} for i in range(8)])
    conform(branch_on_output, [{"q": "a"}], backend=scripted(action="Search"))


@lmc.function
def loop_on_output(s: Any, q: str) -> int:
    s += q
    n = 0
    while True:
        s += lmc.gen("x", max_tokens=3)
        n += 1
        if "a" in s["x"] or n >= 6:
            break
    return n


def test_loop_on_output():
    conform(loop_on_output, [{"q": str(i)} for i in range(10 if TIMES else 4)])


@lmc.function
def branch_on_arguments(s: Any, flag: bool, docs: list[str], n: int, key: str) -> str:
    table = {"a": "first", "b": "second"}
    if flag:
        s += "flag "
    for i, d in enumerate(docs):
        s += f"{i}: {d}\n"
    for f in s.fork(n):
        f += lmc.gen("x", max_tokens=3)
    s += table[key] + lmc.gen("y", max_tokens=3)
    return f"{len(docs)} {docs[0]}"


def test_branch_on_arguments():
    items = [
        {"flag": True, "docs": ["u", "v"], "n": 2, "key": "a"},
        {"flag": False, "docs": ["w"], "n": 0, "key": "b"},
        {"flag": True, "docs": [], "n": 1, "key": "a"},  # docs[0] raises
        {"flag": True, "docs": ["w"], "n": 1, "key": "c"},  # table[key] raises
    ]
    conform(branch_on_arguments, items)


# -- 3: string operations ------------------------------------------------------------------------------------------------------


@lmc.function
def strings(s: Any, q: str) -> Any:
    s += f"{q!r:>12}|{q:<6}|" + lmc.gen("x", max_tokens=20)
    x = s["x"]
    words = x.strip().split()
    s += words[0].upper() + "/" + x[1:4] + "/" + x[-1] + ("%s-%d" % (x, len(x))) + "{} {k}".format(x, k=q)
    m = re.search(r"([aeiou])(\w)", x)
    s += m.group(1) if m else "none"
    s += "".join(sorted(x)) + str(x.count("a")) + x.replace("a", "A") + " ".join(w[::-1] for w in words)
    data = json.loads('{"k": ["' + x.replace('"', "") + '"]}')
    s += data["k"][0] + json.dumps(data) + repr(x)
    return int(len(x)), x.partition(" ")[0], x.isdigit(), not x, -len(x), x * 2


def test_strings():
    conform(strings, [{"q": "a"}, {"q": "beta"}])


# -- 4: re-used names and expressions ---------------------------------------------------------------------------------------------


@lmc.function
def reuse(s: Any, q: str) -> str:
    e = lmc.gen("x", max_tokens=5)
    for _ in range(3):
        s += q + e
    forks = s.fork(2)
    forks += e + q
    for f in forks:
        f += e
    s += e + "".join(f["x"] for f in forks)
    return s["x"]


def test_reuse():
    conform(reuse, [{"q": "a"}, {"q": "b"}], temperature=0)
    conform(reuse, [{"q": "a"}, {"q": "b"}], temperature=0.9)


# -- 5: host effects -----------------------------------------------------------------------------------------------------------


@lmc.function
def effects(s: Any, q: str) -> str:
    effect("start", q)
    s += q + lmc.gen("x", max_tokens=5)
    r = tool(s["x"])
    s += r + lmc.gen("y", max_tokens=5)
    effect("mid", s["y"], len(r))
    if "a" in s["y"]:
        effect("a")
    s += tool("const") + tool(q)
    return r


def test_effects():
    conform(effects, [{"q": str(i)} for i in range(6)])


@lmc.function
def prints(s: Any, q: str) -> None:
    print("q", q, sep=":")
    s += q + lmc.gen("x", max_tokens=5)
    print(s["x"], [s["x"], q], {"k": s["x"]})


def test_print(capsys: pytest.CaptureFixture[str]):
    prints.run(q="z", backend=Mock(), seed=1)
    expected = capsys.readouterr().out
    fast = lmc.compile(prints, backend=Mock())
    assert capsys.readouterr().out == ""
    fast(q="z", seed=1)
    assert capsys.readouterr().out == expected
    fast(q="z", seed=1)
    assert capsys.readouterr().out == expected


# -- 6: mutable objects -----------------------------------------------------------------------------------------------------------

RESULTS: list[str] = []
COUNT = 0


def _reset() -> None:
    global COUNT
    RESULTS.clear()
    COUNT = 0


@lmc.function
def outside_list(s: Any, q: str) -> int:
    s += q + lmc.gen("x", max_tokens=5)
    RESULTS.append(s["x"])
    RESULTS.append("end")
    s += str(len(RESULTS)) + RESULTS[0]
    return len(RESULTS)


@lmc.function
def outside_global(s: Any, q: str) -> int:
    global COUNT
    COUNT += 1
    s += f"{COUNT}" + lmc.gen("x", max_tokens=5)
    COUNT = COUNT + len(s["x"])
    return COUNT


def _stops() -> list[str]:
    return ["a", "b"]


@lmc.function
def stops(s: Any, q: str, stop: list[str]) -> str:
    s += q + lmc.gen("x", max_tokens=9, stop=stop) + lmc.gen("y", max_tokens=9, stop=["e"])
    stop.append("i")
    s += lmc.gen("z", max_tokens=9, stop=stop)
    return s["x"] + str(stop)


def test_mutable():
    conform(outside_list, [{"q": "a"}, {"q": "b"}], reset=_reset, batch=False)  # items would share the list
    conform(stops, [{"q": "a", "stop": _stops()}, {"q": "b", "stop": []}])


def test_global_store():
    for _ in range(2):
        _reset()
        expected = [outside_global.run(q="a", backend=Mock(), seed=1).ret_value, COUNT]
        fast = lmc.compile(outside_global, backend=Mock())
        _reset()
        assert [fast(q="a", seed=1).ret_value, COUNT] == expected
        assert fast(q="a", seed=1).ret_value > expected[0]


@lmc.function
def default_mutable(s: Any, q: str, seen: list[str] = []) -> int:  # noqa: B006
    seen.append(q)
    s += q + lmc.gen("x", max_tokens=3)
    return len(seen)


def test_mutable_default():
    fast = lmc.compile(default_mutable, backend=Mock())
    n = default_mutable.run(q="a", backend=Mock()).ret_value
    assert fast(q="a").ret_value == n + 1
    assert fast(q="b").ret_value == n + 2


# -- 7: exceptions -------------------------------------------------------------------------------------------------------------


@lmc.function
def raises_between(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    effect("before")
    n = int(s["x"])
    effect("after", n)
    s += lmc.gen("y", max_tokens=5)
    return s["y"]


@lmc.function
def catches(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    try:
        effect("try")
        n = int(s["x"])
        s += "number"
    except ValueError as error:
        effect("except", str(error))
        n = -1
        s += "no number" + lmc.gen("z", max_tokens=4)
    else:
        effect("else")
    finally:
        effect("finally")
    s += lmc.gen("y", max_tokens=5)
    return f"{n} {s['y']}"


@lmc.function
def in_role(s: Any, q: str) -> str:
    try:
        with s.user():
            s += q
            raise KeyError(q)
    except KeyError as error:
        s += lmc.user(f"after {error}")
    s += lmc.assistant(lmc.gen("x", max_tokens=4))
    return s["x"]


@lmc.function
def tool_raises(s: Any, q: str) -> str:
    s += q + lmc.gen("x", max_tokens=5)
    try:
        s += broken(s["x"])
    except RuntimeError as error:
        s += f"failed: {error}"
    s += lmc.gen("y", max_tokens=5)
    broken("again")
    return "never"


def test_exceptions():
    conform(raises_between, [{"q": "a"}])
    conform(raises_between, [{"q": "a"}], backend=scripted(x="12", y="ok"))
    conform(catches, [{"q": "a"}])
    conform(catches, [{"q": "a"}], backend=scripted(x="12", y="ok"))
    conform(in_role, [{"q": "a"}])
    conform(tool_raises, [{"q": "a"}, {"q": "b"}])


def test_backend_fault():
    def faulty() -> Mock:
        return Mock(fault=lambda ask, _: RuntimeError("backend down") if getattr(ask, "name", "") == "x" else None)

    conform(branch_on_output, [{"q": "a"}], backend=faulty)
    conform(catches, [{"q": "a"}], backend=faulty)
    conform(unread_forks, [{"q": "a"}], backend=faulty)


@lmc.function
def unread_forks(s: Any, q: str) -> str:
    forks = s.fork(2)
    for f in forks:
        f += "fork" + lmc.gen("x", max_tokens=4)
    s += q + lmc.gen("y", max_tokens=4)
    return s["y"]


def test_item_of_a_batch():
    fast = lmc.compile(raises_between, backend=Mock(answers={"x": lambda p, a: "1" if "b" in p else "no", "y": "k"}))
    states = fast.batch([{"q": "a"}, {"q": "b"}, {"q": "c"}], errors="return")
    assert [type(s.error()).__name__ for s in states] == ["ValueError", "NoneType", "ValueError"]
    assert states[1].ret_value == "k"
    with pytest.raises(ValueError, match="invalid literal"):
        fast.batch([{"q": "a"}, {"q": "b"}])


# -- 8: early return, unread gens -----------------------------------------------------------------------------------------------


def test_unread_forks_are_not_generated():
    mock = Mock()
    lmc.compile(unread_forks, backend=mock)(q="a")
    assert len(mock.call_log) == 1
    mock = Mock()
    lmc.compile(unread_forks, backend=mock, opt=0)(q="a")
    assert len(mock.call_log) == 3


# -- 9: nested forks -----------------------------------------------------------------------------------------------------------


@lmc.function
def nested(s: Any, q: str) -> list[str]:
    s += lmc.user(q)
    found = []
    with s.assistant():
        outer = s.fork(2)
        for i, f in enumerate(outer):
            f += f"{i}" + lmc.gen("a", max_tokens=4)
            inner = f.fork(2)
            inner += lmc.gen("b", max_tokens=4)
            s += "parent" + lmc.gen("p", max_tokens=3)
            for g in inner:
                found.append(g["b"] + f["a"])
        best = max(found, key=len)
        s += best + lmc.gen("end", max_tokens=3)
    return found


@lmc.function
def joined(s: Any, q: str) -> str:
    s += q
    forks = s.fork(3)
    forks += lmc.gen("v", max_tokens=4)
    forks.join()
    s += ",".join(s["v"])
    return s["v"][1]


@lmc.function
def concatenated(s: Any, q: str) -> str:
    s += q
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"<{i}>" + lmc.gen("v", max_tokens=4)
    forks.join("concate_and_append")
    s += lmc.gen("w", max_tokens=4)
    return s["w"]


def helper(s: Any, q: str) -> str:
    s += q + lmc.gen("h", max_tokens=4)
    return s["h"] + "!"


@lmc.function
def with_helper(s: Any, q: str) -> str:
    forks = [f for f in s.fork(2)]
    out = [helper(f, q + str(i)) for i, f in enumerate(forks)]
    s += helper(s, "x") + "".join(out)
    return "".join(out)


def test_forks():
    for program in (nested, joined, concatenated, with_helper):
        conform(program, [{"q": "a"}, {"q": "b"}], temperature=0)
        conform(program, [{"q": "a"}], temperature=1)


# -- 10: sub-programs ------------------------------------------------------------------------------------------------------------


@lmc.function
def child(s: Any, tip: str, n: int = 2) -> str:
    s += "tip: " + tip
    for _ in range(n):
        s += lmc.gen("c", max_tokens=4)
    return s["c"].upper()


@lmc.function
def parent(s: Any, q: str) -> str:
    s += q + lmc.gen("t", max_tokens=5)
    c = child(tip=s["t"])
    d = child(s["t"] + "x", n=1)
    s += c.ret_value + d["c"] + lmc.gen("u", max_tokens=3)
    return c.text() + d.ret_value


def test_sub_programs():
    conform(parent, [{"q": "a"}, {"q": "b"}], temperature=0.5)


# -- 11: "x" in s ---------------------------------------------------------------------------------------------------------------


@lmc.function
def contains(s: Any, q: str) -> Any:
    found = ["x" in s]
    s += q + lmc.gen("x", max_tokens=3)
    found.append("x" in s)
    if "y" not in s:
        s["y"] = q + "!"
    return found, s["y"]


def test_contains():
    conform(contains, [{"q": "a"}])


# -- 17–26: where a first prototype was wrong ---------------------------------------------------------------------------------------


@lmc.function
def mutable_result(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    r = json.loads(s["x"])
    r2 = json.loads(s["x"])
    r.append(1)
    s += str(len(r)) + str(len(r2))
    return r is r2, r


def test_17_mutable_result():
    conform(mutable_result, [{"q": "a"}], backend=scripted(x="[1]"))


@lmc.function
def unused_raiser(s: Any, q: str) -> None:
    s += q + lmc.gen("n", max_tokens=4)
    int(s["n"])
    effect("charge")


def test_18_unused_op_that_raises():
    conform(unused_raiser, [{"q": "a"}])
    conform(unused_raiser, [{"q": "a"}], backend=scripted(n="5"))


@lmc.function
def values_in_containers(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for f in forks:
        f += q + lmc.gen("v", max_tokens=2)
    vs = [f["v"] for f in forks]
    v, w = vs
    out = [vs.count("no"), "%s" % (v,), "{}".format(v), {v: 1}.get(w), v in {w}, v is None, isinstance(v, str)]
    match v:
        case "aa":
            out.append("aa")
        case str() as other:
            out.append(other + "?")
    out.append(id(v) == id(w))
    return out


def test_19_values_in_containers():
    conform(values_in_containers, [{"q": "a"}, {"q": "b"}])


@lmc.function
def order_of_forks(s: Any, q: str) -> Any:
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += q + str(i) + lmc.gen("score", max_tokens=4)
    best = max(forks, key=lambda f: f["score"])
    ranked = sorted(forks, key=lambda f: f["score"], reverse=True)
    s += best["score"] + lmc.gen("x", max_tokens=3)
    found = any(check(f["score"]) for f in ranked)
    return found, [r["score"] for r in ranked], min(len(f["score"]) for f in forks)


def check(x: str) -> bool:
    effect("check", x)
    return "a" in x


def test_20_order_and_short_circuits():
    conform(order_of_forks, [{"q": str(i)} for i in range(4)])


def turn(q: str) -> Any:
    return lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=4))


class Node:
    def __init__(self, s: Any) -> None:
        self.s = s
        self.children: list[str] = []

    def go(self, q: str) -> str:
        self.s += turn(q)
        self.children.append(self.s["a"])
        return self.children[-1]


@lmc.function
def helpers(s: Any, q: str) -> Any:
    s += turn(q)

    def ask(t: str) -> str:
        nonlocal s
        s += t + lmc.gen("a", max_tokens=4)
        return s["a"].strip()

    first = ask("more")
    node = Node(s)
    return first, node.go(first), len(node.children)


def test_21_helpers_without_a_state():
    conform(helpers, [{"q": "a"}, {"q": "b"}])


def fill(q: str, out: list[str]) -> None:
    effect("fill", q)
    out.append(q)
    out.append(q + "!")


KEPT: list[Any] = []


def size(m: list[Any]) -> int:
    KEPT.append(m)
    return len(m)


@lmc.function
def containers_escape(s: Any, q: str) -> Any:
    out: list[str] = []
    fill(q, out)
    s += q + lmc.gen("x", max_tokens=3)
    m = [s["x"]]
    n = size(m)
    m.append("2")
    return len(out), n, m, KEPT[-1] is m, KEPT[-1]


def test_22_containers_that_escape():
    conform(containers_escape, [{"q": "a"}, {"q": "b"}], reset=KEPT.clear, outside=lambda: KEPT, batch=False)  # items would share the list


MODE = "a"


def set_mode(mode: str) -> None:
    global MODE
    effect("mode", mode)
    MODE = mode


def _mode_a() -> None:
    global MODE
    MODE = "a"


@lmc.function
def outside_changes(s: Any, q: str) -> str:
    if MODE == "a":
        s += "mode a "
    set_mode("b")
    s += lmc.gen("x", max_tokens=3)
    if MODE == "a":
        s += "still a"
    else:
        s += "now " + MODE
    return MODE


@lmc.function
def queue_argument(s: Any, queue: list[str]) -> int:
    n = 0
    while queue:
        s += queue.pop(0) + lmc.gen("x", max_tokens=3)
        n += 1
        if n == 2:
            queue.append("extra")
    return n


def test_23_outside_changes():
    fast = conform(outside_changes, [{"q": "a"}], reset=_mode_a, outside=lambda: MODE)
    set_mode("c")
    assert fast(q="a", backend=Mock()).text().startswith("mode a") is False
    conform(queue_argument, [{"queue": ["u", "v", "w"]}, {"queue": []}, {"queue": ["z"]}])


def generator() -> Any:
    effect("generator")
    yield "one"
    effect("second")
    yield "two"


@lmc.function
def iterations(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    keys = [k for k in json.loads(s["x"])]
    for g in generator():
        s += g + lmc.gen("y", max_tokens=2)
    a, *rest = json.loads(s["x"])
    for k, v in json.loads(s["x"]).items():
        s += f"{k}={v}"
    return keys, a, rest, {k: v for k, v in json.loads(s["x"]).items()}


def test_24_iterations():
    conform(iterations, [{"q": "a"}], backend=scripted(x='{"k": 1, "l": 2, "m": 3}'))


@lmc.function
def uses_itself(s: Any, q: str, depth: int) -> str:
    s += q + lmc.gen("x", max_tokens=3)
    s += recurse(q, depth)
    return s["x"]


def recurse(q: str, depth: int) -> str:
    return NESTED(q=q + "+", depth=depth - 1, backend=Mock()).ret_value if depth else "leaf"


NESTED = lmc.compile(uses_itself)

LOCK = threading.Lock()


@lmc.function
def locks(s: Any, q: str) -> str:
    with LOCK:
        effect("locked", LOCK.locked())
        s += q + lmc.gen("x", max_tokens=3)
        r = tool(s["x"])
    effect("free", LOCK.locked())
    return r


def test_25_reentry_and_threads():
    states = NESTED.batch([{"q": str(i), "depth": i % 3} for i in range(100)], backend=Mock(), seed=1)
    want = uses_itself.run_batch([{"q": str(i), "depth": i % 3} for i in range(100)], backend=Mock(), seed=1)
    assert [s.text() for s in states[:1]] == [s.text() for s in want[:1]]
    conform(locks, [{"q": "a"}])
    fast = lmc.compile(branch_on_output, backend=Mock())
    expected = {q: branch_on_output.run(q=q, backend=Mock(), seed=1).text() for q in map(str, range(40))}
    got: dict[str, str] = {}
    threads = [threading.Thread(target=lambda q=q: got.__setitem__(q, fast(q=q, seed=1).text())) for q in expected]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == expected


@lmc.function
def late_branch(s: Any, q: str) -> str:
    early = s.fork(1)[0]
    early += lmc.gen("early", max_tokens=5)
    unused = q.upper() + "?"
    s += q + lmc.gen("x", max_tokens=3)
    if s["x"] == "rare":
        return early["early"] + unused
    return "common"


def test_26_late_branch():
    fast = lmc.compile(late_branch)
    for x in ("a", "b", "c", "d", "e", "f", "rare", "rare"):
        mock, ref = Mock(answers={"x": x}), Mock(answers={"x": x})
        state, want = fast(q="a", backend=mock, seed=1), late_branch.run(q="a", backend=ref, seed=1)
        assert (state.ret_value, state.text()) == (want.ret_value, want.text())


# -- programs of the paper's kind ----------------------------------------------------------------------------------------------------


@lmc.function
def react(s: Any, question: str) -> str:
    s += "Question: " + question + "\n"
    for i in range(1, 6):
        s += f"Thought {i}:" + lmc.gen("thought", stop="\n", max_tokens=16) + "\n"
        s += f"Action {i}:" + lmc.gen("action", stop="\n", max_tokens=16) + "\n"
        m = re.match(r"(\w+)\[(.*)\]", s["action"])
        if m is None:
            s += "Invalid action.\n"
            continue
        name, argument = m.group(1), m.group(2)
        if name == "Finish":
            return argument
        observation = TOOLS[name](argument) if name in TOOLS else f"no tool {name}"
        s += f"Observation {i}: " + observation + "\n"
    return "gave up"


TOOLS = {"Calculator": calculator, "Look": tool}


def test_react():
    actions = ["Calculator[1+1]", "Look[x]", "nonsense", "Fly[away]", "Finish[42]"]
    fast = conform(react, [{"question": "q"}], backend=scripted(action=actions))
    conform(react, [{"question": "q"}])


@lmc.function
def consistency(s: Any, q: str, n: int) -> str:
    s += q
    forks = s.fork(n)
    for f in forks:
        f += lmc.gen("a", max_tokens=1)
    votes = Counter(f["a"] for f in forks)
    return votes.most_common(1)[0][0]


def test_self_consistency():
    conform(consistency, [{"q": "a", "n": 5}, {"q": "b", "n": 3}], temperature=0.9)


@dataclass
class Config:
    style: str = "brief"
    limit: int = 6


CONFIG = Config()


@lmc.function
def configured(s: Any, q: str, config: Any) -> str:
    s += CONFIG.style + q + lmc.gen("x", max_tokens=CONFIG.limit) + config.style
    s += lmc.gen("y", max_tokens=config.limit, regex=r"[ab]{2,5}")
    CONFIG.limit += 0
    config.style = "changed"
    return config.style + s["y"]


def test_objects_outside():
    conform(configured, [{"q": "a", "config": Config("long", 5)}, {"q": "b", "config": Config()}])


def test_effects_are_each_once_per_run():
    fast = lmc.compile(effects, backend=Mock(), opt=1)
    EFFECTS.clear()
    fast(q="a", seed=3)
    once = list(EFFECTS)
    for _ in range(3):
        EFFECTS.clear()
        fast(q="a", seed=3)
        assert once == EFFECTS


@lmc.function
def leaves(s: Any, q: str) -> Any:
    s += q
    opaque(q)
    s += lmc.gen("x", max_tokens=4)
    opaque(s["x"])
    return s["x"]


