"""Programs as people write them, one thing after another: what run-ahead is for."""

# ruff: noqa

from __future__ import annotations

import hashlib
import heapq
import json
import re

import lmc

DOCS = [f"document {i} about topic {i % 5}. " * 5 for i in range(12)]
def h(t):
    return int(hashlib.md5(t.encode()).hexdigest(), 16)

def answers(prompt, ask):
    n = ask.name or ""
    k = h(prompt[-400:] + n)
    if n == "plan": return "\n".join(f"{i+1}. step {k % 97} part {i}" for i in range(5))
    if n == "score": return str(k % 10)
    if n == "date": return f"2024-0{k % 9 + 1}-11" if k % 4 else "unclear"
    if n == "vote": return ["A", "B", "A"][k % 3]
    if n == "json": return json.dumps({"name": f"n{k%7}", "items": [k % 5, k % 3]})
    if n == "action": return "Finish[ok]" if prompt.count("Obs:") >= 4 else f"Search[{k % 100}]"
    if n == "names": return ",".join(f"x{(k >> i) % 6}" for i in range(3))
    return f"{n} says {k % 1000}"
# 1 map-reduce
@lmc.function
def summarize(s, doc):
    s += lmc.system("You summarize.") + lmc.user("Summarize: " + doc)
    s += lmc.assistant(lmc.gen("summary", max_tokens=64))
    return s["summary"].strip()
@lmc.function
def map_reduce(s, docs):
    parts = []
    for i, d in enumerate(docs):
        one = summarize(d)
        parts.append(f"{i}: {one['summary'].strip()}")
    s += lmc.user("Combine:\n" + "\n".join(parts))
    s += lmc.assistant(lmc.gen("final", max_tokens=64))
    return s["final"]
# 2 judge panel
@lmc.function
def ask_judge(s, essay, dim):
    s += lmc.system(f"You grade {dim}.") + lmc.user(essay) + lmc.assistant(lmc.gen("why") + " Score: " + lmc.gen("score", max_tokens=2))
@lmc.function
def panel(s, essay):
    marks = {}
    for dim in ("clarity", "originality", "evidence", "style", "rigor"):
        j = ask_judge(essay, dim)
        marks[dim] = int(j["score"])
        if marks[dim] < 0 or marks[dim] > 10:
            raise ValueError("bad mark")
    mean = sum(marks.values()) / len(marks)
    s += lmc.user(f"Marks {marks}, mean {mean:.1f}. Verdict?") + lmc.assistant(lmc.gen("verdict"))
    return mean, s["verdict"]
# 3 plan and execute
@lmc.function
def execute(s, goal, step):
    s += lmc.user(f"Goal: {goal}\nDo only: {step}") + lmc.assistant(lmc.gen("result"))
@lmc.function
def plan_execute(s, goal):
    s += lmc.user("Plan for " + goal) + lmc.assistant(lmc.gen("plan"))
    results = []
    for step in s["plan"].splitlines():
        step = re.sub(r"^\d+\.\s*", "", step).strip()
        if not step:
            continue
        r = execute(goal, step)
        results.append(r["result"])
    s += lmc.user("Results:\n" + "\n".join(results)) + lmc.assistant(lmc.gen("report"))
    return s["report"]
# 4 extraction of 8 fields with checks
FIELDS = ["name", "date", "amount", "currency", "sender", "receiver", "iban", "topic"]
@lmc.function
def ask_field(s, doc, field, hint=""):
    s += lmc.user(f"{doc}\nWhat is the {field}?{hint}") + lmc.assistant(lmc.gen(field if field == "date" else "value", max_tokens=16))
@lmc.function
def extract(s, doc):
    out, bad = {}, []
    for field in FIELDS:
        a = ask_field(doc, field)
        v = a["date" if field == "date" else "value"].strip()
        if field == "date" and not re.fullmatch(r"\d{4}-\d\d-\d\d", v):
            a = ask_field(doc, field, " Answer as YYYY-MM-DD.")
            v = a["date"].strip()
        if not v:
            bad.append(field)
        out[field] = v
    s += lmc.user("Check: " + json.dumps(out)) + lmc.assistant(lmc.gen("check"))
    return out, bad
# 5 self-consistency with early stop
@lmc.function
def solve_once(s, q, i):
    s += lmc.user(f"{q} (try {i})") + lmc.assistant(lmc.gen("why") + " so " + lmc.gen("vote", max_tokens=1))
@lmc.function
def consistent(s, q):
    votes = {}
    for i in range(9):
        v = solve_once(q, i)["vote"]
        votes[v] = votes.get(v, 0) + 1
        if votes[v] >= 3:
            break
    best = max(sorted(votes), key=lambda v: votes[v])
    return best, votes
# 6 ReAct, undeclared tool
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
# 7 tree search
def score(path, text):
    return sum(ord(c) for c in text) % 100 - 3 * len(path)
@lmc.function
def expand(s, problem, path):
    s += lmc.user(f"{problem}\nSo far: {' > '.join(path)}\nNext?") + lmc.assistant(lmc.gen("next", max_tokens=16))
@lmc.function
def tree(s, problem, width=3, depth=3):
    beam = [(0, ())]
    for d in range(depth):
        found = []
        for sc, path in beam:
            for k in range(width):
                t = expand(problem, path + (f"#{k}",))["next"]
                heapq.heappush(found, (-score(path, t), path + (t,)))
        beam = [(-heapq.heappop(found)[0], p) if False else heapq.heappop(found) for p in range(min(width, len(found)))]
    return sorted(beam, key=lambda x: x[0])[0]
# 8 mutated set
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
# 9 nothing to do: all asked without waiting
@lmc.function
def forks(s, topic):
    s += lmc.user("Topic " + topic)
    fs = s.fork(6)
    for i, f in enumerate(fs):
        f += lmc.assistant(lmc.gen("a", max_tokens=8) + f" aspect {i} " + lmc.gen("b", max_tokens=8))
    s += lmc.user("\n".join(f["b"] for f in fs)) + lmc.assistant(lmc.gen("out"))
    return s["out"]
# 10 helper closure, nonlocal, generator, early return, exception
def paragraphs(text):
    for p in text.split("."):
        if p.strip(): yield p.strip()
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
def tool(g):
    return open("/dev/null").read() + "\n".join(f"part {i}" for i in range(6))

@lmc.function
def resync(s, g):
    plan = tool(g)
    s += "Plan: " + plan + lmc.gen("ok", max_tokens=4)
    if s["ok"] == "zz":
        return None
    out = []
    for st_ in plan.splitlines():
        out.append(execute(g, st_)["result"])
    s += "\n".join(out) + lmc.gen("z")
@lmc.function
def resync_loop(s, g):
    out = []
    for name in tool(g).splitlines():
        out.append(execute(g, name)["result"])
    s += "\n".join(out) + lmc.gen("z")


COUNT = {"n": 0}
@lmc.function
def counter(s, qs):
    out = []
    for q in qs:
        COUNT["n"] += 1
        out.append(execute("g", f"{COUNT['n']} {q}")["result"])
    s += " ".join(out) + lmc.gen("z")
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
@lmc.function
def debate(s, q, rounds=3):
    said = ["", "", ""]
    for r in range(rounds):
        new = []
        for a in range(3):
            others = "\n".join(x for i, x in enumerate(said) if i != a)
            new.append(execute(f"agent {a} round {r}: {q}", others)["result"])
        said = new
    s += "\n".join(said) + lmc.gen("verdict")
@lmc.function
def rows(s, data):
    n = 0
    for q, gold in data:
        a = execute("q", q)["result"]
        if gold in a:
            n += 1
    return n


CASES = {
    "map_reduce": (map_reduce, {"docs": DOCS}), "panel": (panel, {"essay": "An essay. " * 20}), "plan_execute": (plan_execute, {"goal": "build a hut"}),
    "extract": (extract, {"doc": "Invoice 17"}), "consistent": (consistent, {"q": "6*7?"}), "react": (react, {"q": "why"}), "tree": (tree, {"problem": "24 from 4 4 6 1"}),
    "dedup": (dedup, {"qs": [f"q{i}" for i in range(6)]}), "forks": (forks, {"topic": "sea"}), "mixed": (mixed, {"text": "one. two. three. four. five"}),
    "seeded": (seeded, {"qs": list("abcd")}), "aprog": (aprog, {"qs": list("abcd")}), "failing": (failing, {"qs": list("abc")}), "swallow": (swallow, {"qs": list("abcdef")}),
    "debate": (debate, {"q": "war?"}), "rows": (rows, {"data": [(f"q{i}", str(i % 3)) for i in range(50)]}),
}
