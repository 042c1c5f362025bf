"""Lists, dicts, sets and heaps of answers and states; what is one object and what is another."""

from __future__ import annotations

import collections
import heapq
import json
import statistics
from typing import Any

import lmc
from lmc import gen, user
from tests.conformance.harness import case, scripted
from tests.conformance.shared import WORDS, ask, by_name, child, number_of


@case()
def builtins_on_values(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: f"{i}{q}" + lmc.gen("v", max_tokens=5)
    vs = [f["v"] for f in forks]
    lengths = list(map(len, vs))
    s += "|".join(sorted(vs)) + min(vs) + max(vs, key=len)
    s += "".join(reversed(vs[0])) + str(sum(lengths)) + str(any("a" in v for v in vs)) + str(all(vs))
    longest = [v for v, n in zip(vs, lengths) if n == max(lengths)]
    return longest, list(filter(lambda v: "e" in v, vs)), sorted(vs, key=lambda v: (len(v), v)), [*enumerate(vs, 1)]


@case()
def lists_that_reading_makes(s, q):
    s += user(q) + gen("x", max_tokens=2, n=2, temperature=0.9)
    a, b = s.fork(2)
    a["x"].append("a")
    b["x"].append("b")
    s["x"].reverse()
    metas, messages = s.get_meta_info("x"), s.messages()
    metas.append({})
    messages.append("more")
    messages[0]["role"] = "other"
    s += f"{len(s.get_meta_info('x'))} {s.messages()} {s['x'] is s.get_var('x')}"
    return a["x"], b["x"], s["x"], metas, messages


@case()
def statistics_of_forks(s: Any, q: str) -> Any:
    forks = s.fork(3)
    forks += lambda i: q + str(i) + lmc.gen("x", regex="[0-9]")
    most = statistics.multimode(f["x"] for f in forks)
    most.append("k")
    return statistics.mean(int(f["x"]) for f in forks), statistics.median([int(f["x"]) for f in forks]), most


@case()
def groups_by_an_answer(s: Any, q: str) -> Any:
    groups: dict[str, list[str]] = {"0": [], "1": []}
    for f in s.fork(3):
        f += q + lmc.gen("x", regex="[01]") + lmc.gen("y", max_tokens=2)
        groups[f["x"]].append(f["y"])
    s += "; ".join(f"{k}: {', '.join(v)}" for k, v in groups.items())
    return groups


@case([{"q": q} for q in "abc"])
def values_in_containers(s: Any, q: str) -> Any:
    forks = s.fork(2)
    for f in forks:
        f += q + lmc.gen("v", max_tokens=2)
    vs = [f["v"] for f in forks]
    v, w = vs
    out = [hash(v) == hash(str(v)), vs.count("no"), "%s" % (v,), "{}".format(v), {v: 1}.get(w), v in {w}, v is None, isinstance(v, str)]
    match v:
        case "aa":
            out.append("aa")
        case str() as other:
            out.append(other + "?")
    try:
        out.append({v: 1}[w + "?"])
    except KeyError as error:
        out.append(str(error))
    out.append(id(v) == id(w))
    return out


@case([{"q": "a"}], backend=scripted(x="[1]"))
def mutable_result(s: Any, q: str) -> Any:
    s += q + lmc.gen("x", max_tokens=4)
    r = json.loads(s["x"])
    r2 = json.loads(s["x"])
    r.append(1)
    s += str(len(r)) + str(len(r2))
    return r is r2, r


@case()
def orders_states(s: Any, q: str) -> Any:
    """A state has no place before another one, and Python says so only when it comes to that."""
    forks = s.fork(3)
    forks += lmc.gen("v", regex="[01]")
    try:
        return [score for score, _ in sorted((f["v"], f) for f in forks)]
    except TypeError as error:
        return str(error)


@case(backend=by_name)
def answers_in_what_takes_them_all(s, q):
    total = sum(number_of(q + w) for w in WORDS)
    best = max(WORDS, key=lambda w: number_of(f"how good is {w}{q}"))
    ranked = sorted(WORDS, key=lambda w: (-number_of(f"rank {w}{q}"), w))
    lowest = min((number_of(f"price of {w}{q}"), w) for w in WORDS)
    votes = collections.Counter(child(f"{w}{q}", "vote").ret_value for w in WORDS)
    kinds = {child(f"kind of {w}{q}", "label").ret_value for w in WORDS}
    mean = statistics.fmean(map(number_of, [f"{q}1", f"{q}2"]))
    two = heapq.nlargest(2, WORDS, key=lambda w: number_of(f"size of {w}{q}"))
    s += f"{total} {best} {ranked} {lowest} {votes.most_common()} {sorted(kinds)} {mean} {two}" + gen("z", max_tokens=3)
    return s["z"]


@case(backend=by_name)
def answers_that_keep_items(s, q):
    kept = [w for w in WORDS if number_of(q + w) > 4]
    named = [n for w in WORDS if (n := child(w + q, "label").ret_value) != "mixed"]
    flat = [x for w in WORDS[:2] for x in child(f"list {w}{q}", "names").ret_value.split(", ") if x]
    table = {child(f"key of {w}{q}", "label").ret_value: w for w in WORDS}
    odd = list(filter(lambda w: number_of(f"odd {w}{q}") % 2, WORDS))
    many = sum(1 for w in WORDS if number_of(f"count {w}{q}") > 3)
    s += f"{kept} {named} {flat} {table} {odd} {many}" + gen("z", max_tokens=3)
    return kept, s["z"]


@case(backend=by_name)
def groups_that_answers_make(s, q):
    """Taking an item makes one, in a loop that is skipped, too, and in a function."""
    by_letter, by_length, seen = collections.defaultdict(list), collections.defaultdict(int), collections.defaultdict(set)

    def see(word):
        seen[len(word)].add(word)

    plan = ask(s, q, "plan")
    made = by_length[plan]
    for word in plan.split():
        by_letter[word[0]].append(word)
        see(word)
    forks = s.fork(3)
    forks += [f"{list(by_letter)}", f"{len(by_length)}", f"{sorted(seen)}"]
    forks += gen("a", max_tokens=2)
    return [f["a"] for f in forks], by_letter, made


def loaded() -> set[str]:
    return eval("set()")


@case(backend=by_name)
def adds_to_what_only_python_knows(s, q):
    """What Python's frame has under its name is what it has become since."""
    seen, last = loaded(), ""
    for word in [q]:
        if word in seen:
            continue
        seen.add(word)
        (f,) = s.fork(1)
        f += word + gen("x", max_tokens=2)
        last = f["x"]
    s += f"last {last}" + gen("z", max_tokens=2)
    return s["z"]
