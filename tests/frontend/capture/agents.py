"""Programs beside those of `benchmarks/ahead_programs.py`: tools, sets, forks, closures, seeds, coroutines, errors."""

# ruff: noqa

from __future__ import annotations

import hashlib
import re

import lmc

def h(t):
    return int(hashlib.md5(t.encode()).hexdigest(), 16)

def answers(prompt, ask):
    n = ask.name or ""
    k = h(prompt[-400:] + n)
    if n == "action": return "Finish[ok]" if prompt.count("Obs:") >= 4 else f"Search[{k % 100}]"
    if n == "names": return ",".join(f"x{(k >> i) % 6}" for i in range(3))
    return f"{n} says {k % 1000}"
@lmc.function
def execute(s, goal, step):
    s += lmc.user(f"Goal: {goal}\nDo only: {step}") + lmc.assistant(lmc.gen("result"))
# ReAct, undeclared tool
LOG = []
def search(q):
    LOG.append(q)
    return f"found {int(q) * 7 % 13} for {q}"
@lmc.function
def react(s, q):
    s += "Question: " + q + "\n"
    for i in range(8):
        s += "Thought:" + lmc.gen("thought", stop="\n") + "\nAction:" + lmc.gen("action", stop="\n")
        m = re.match(r"(\w+)\[(.*)\]", s["action"])
        if m is None or m.group(1) == "Finish":
            break
        s += "\nObs: " + search(m.group(2)) + "\n"
    return s["action"]
# a mutated set
@lmc.function
def names(s, q):
    s += lmc.user("Names in " + q) + lmc.assistant(lmc.gen("names"))
SEEN_LOG = []
@lmc.function
def dedup(s, qs):
    seen = set(); order = []
    for q in qs:
        for x in [x for x in names(q)["names"].split(",") if x not in seen]:
            seen.add(x); order.append(x); SEEN_LOG.append(x)
    s += lmc.user(" ".join(order)) + lmc.assistant(lmc.gen("final"))
    return order, seen
# nothing to do: all asked without waiting
@lmc.function
def forks(s, topic):
    s += lmc.user("Topic " + topic)
    fs = s.fork(6)
    for i, f in enumerate(fs):
        f += lmc.assistant(lmc.gen("a", max_tokens=8) + f" aspect {i} " + lmc.gen("b", max_tokens=8))
    s += lmc.user("\n".join(f["b"] for f in fs)) + lmc.assistant(lmc.gen("out"))
    return s["out"]
# helper closure, nonlocal, early return, exception
def paragraphs(text):
    return [p.strip() for p in text.split(".") if p.strip()]
@lmc.function
def mixed(s, text):
    n = 0
    def ask(p):
        nonlocal n
        n += 1
        return execute("read", f"{n}:{p}")["result"]
    got = []
    for p in paragraphs(text):
        got.append(ask(p))
    try:
        k = int(got[0])
    except ValueError:
        k = -1
    with s.user():
        s += f"k={k} " + " ".join(got)
    with s.assistant():
        s += lmc.gen("x")
    if "zzz" in s["x"]:
        return None
    with s.var_scope("tail"):
        s += lmc.user("end") + lmc.assistant(lmc.gen("y"))
    return s["y"], n
@lmc.function
def seeded(s, qs):
    out = []
    for i, q in enumerate(qs):
        out.append(execute.run(goal="g", step=q, seed=i)["result"])
    s += " ".join(out) + lmc.gen("z")
@lmc.function
async def aexec(s, q):
    s += lmc.user("do " + q) + lmc.assistant(lmc.gen("r"))
    return s["r"]
@lmc.function
async def aprog(s, qs):
    out = []
    for q in qs:
        r = await aexec.arun(q)
        out.append(r.ret_value)
    s += " ".join(out) + lmc.gen("z")
@lmc.function
def failing(s, qs):
    out = []
    for q in qs:
        try:
            out.append(execute("g", q)["result"])
        except Exception as e:
            out.append(type(e).__name__)
    s += " ".join(out) + lmc.gen("z")
@lmc.function
def swallow(s, qs):
    good = []
    for q in qs:
        v = execute("g", q)["result"]
        if int(v.split()[-1]) % 2:
            continue
        good.append(v)
    s += " ".join(good) + lmc.gen("z")
CASES = {
    "react": (react, {"q": "why"}), "dedup": (dedup, {"qs": [f"q{i}" for i in range(6)]}), "forks": (forks, {"topic": "sea"}),
    "mixed": (mixed, {"text": "one. two. three. four. five"}), "seeded": (seeded, {"qs": list("abcd")}), "aprog": (aprog, {"qs": list("abcd")}),
    "failing": (failing, {"qs": list("abc")}), "swallow": (swallow, {"qs": list("abcdef")}),
}
