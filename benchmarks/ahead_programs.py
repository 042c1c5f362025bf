"""Ten programs as people write them, one thing after another, reading answers as they go; and each as an expert would write it by hand.

A `Workload` has the program, its arguments, and `expert`: the same requests, one by one the same, by `asyncio.gather`.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import lmc

Ask = Callable[..., Awaitable[str]]
"""`await ask(messages, name, max_tokens)` gives the text of an answer to messages (role, text); `begun=`: what it begins with, `regex=`: its form."""


def _number(text: str) -> int:
    return int(hashlib.blake2b(text.encode(), digest_size=6).hexdigest(), 16)


def answers(prompt: str, ask: Any) -> str:
    """Answers of the mock of an API: by name and prompt, never by order."""
    k = _number(prompt[-400:] + (ask.name or ""))
    match ask.name:
        case "plan":
            return "\n".join(f"{i + 1}. step {k % 97} part {i}" for i in range(5))
        case "score":
            return str(k % 10)
        case "label":
            return ("positive", "negative", "mixed")[k % 3]
        case "date":
            return f"2024-0{k % 9 + 1}-11" if k % 4 else "unclear"
        case "vote":
            return "AABAC"[k % 5]
        case "code":
            return f"def f(x): return x + {3 if prompt.count('failed') >= 2 else k % 3}"
        case _:
            return f"{ask.name} says {k % 1000} " + "and so on " * (k % 4)


# -- 1: map-reduce over documents -----------------------------------------------------------------------------------------

DOCS = [f"Document {i} is about topic {i % 5}. " * 20 for i in range(12)]


@lmc.function
def summarize(s, doc):
    s += lmc.system("You summarize.") + lmc.user("Summarize: " + doc)
    s += lmc.assistant(lmc.gen("summary", max_tokens=64))


@lmc.function
def map_reduce(s, docs):
    parts = []
    for i, doc in enumerate(docs):
        one = summarize(doc)
        parts.append(f"{i}: {one['summary'].strip()}")
    s += lmc.user("Combine:\n" + "\n".join(parts))
    s += lmc.assistant(lmc.gen("final", max_tokens=64))
    return s["final"]


async def expert_map_reduce(ask: Ask, docs: list[str]) -> None:
    parts = await asyncio.gather(*[ask([("system", "You summarize."), ("user", "Summarize: " + doc)], "summary", 64) for doc in docs])
    await ask([("user", "Combine:\n" + "\n".join(f"{i}: {part.strip()}" for i, part in enumerate(parts)))], "final", 64)


# -- 2: an evaluation over rows ---------------------------------------------------------------------------------------------

LABEL = "positive|negative|mixed"
ROWS = [{"text": f"Review {i}: it was {'good' if i % 3 else 'bad'}, I think.", "label": "positive" if i % 3 else "negative"} for i in range(50)]


@lmc.function
def classify(s, text):
    s += lmc.system("Answer with positive, negative or mixed.") + lmc.user(text)
    s += lmc.assistant(lmc.gen("label", max_tokens=8, regex=LABEL))


@lmc.function
def evaluate(s, rows):
    right, wrong = 0, []
    for row in rows:
        label = classify(row["text"])["label"].strip().lower()
        if label == row["label"]:
            right += 1
        else:
            wrong.append((row["text"], label))
    s += lmc.user(f"{right} of {len(rows)} right; wrong: {wrong[:3]}. Why?") + lmc.assistant(lmc.gen("why", max_tokens=64))
    return right / len(rows)


async def expert_evaluate(ask: Ask, rows: list[dict[str, str]]) -> None:
    system = ("system", "Answer with positive, negative or mixed.")
    labels = await asyncio.gather(*[ask([system, ("user", row["text"])], "label", 8, regex=LABEL) for row in rows])
    wrong = [(row["text"], label) for row, label in zip(rows, labels) if label.strip().lower() != row["label"]]
    await ask([("user", f"{len(rows) - len(wrong)} of {len(rows)} right; wrong: {wrong[:3]}. Why?")], "why", 64)


# -- 3: a panel of judges -----------------------------------------------------------------------------------------------------

SCORE = "[0-9]"
DIMENSIONS = ("clarity", "originality", "evidence", "style", "rigor")


@lmc.function
def judge(s, essay, dimension):
    s += lmc.system(f"You grade {dimension}.") + lmc.user(essay)
    s += lmc.assistant(lmc.gen("why", max_tokens=48) + " Score: " + lmc.gen("score", max_tokens=2, regex=SCORE))


@lmc.function
def panel(s, essay):
    marks = {}
    for dimension in DIMENSIONS:
        marks[dimension] = int(judge(essay, dimension)["score"])
    mean = sum(marks.values()) / len(marks)
    s += lmc.user(f"Marks {marks}, mean {mean:.1f}. Verdict?") + lmc.assistant(lmc.gen("verdict", max_tokens=48))
    return mean, s["verdict"]


async def expert_panel(ask: Ask, essay: str) -> None:
    async def one(dimension: str) -> int:
        messages = [("system", f"You grade {dimension}."), ("user", essay)]
        why = await ask(messages, "why", 48)
        return int(await ask(messages, "score", 2, begun=why + " Score: ", regex=SCORE))

    marks = dict(zip(DIMENSIONS, await asyncio.gather(*[one(dimension) for dimension in DIMENSIONS])))
    await ask([("user", f"Marks {marks}, mean {sum(marks.values()) / len(marks):.1f}. Verdict?")], "verdict", 48)


# -- 4: fields with checks in between -----------------------------------------------------------------------------------------

FIELDS = ("name", "date", "amount", "currency", "sender", "receiver", "iban", "topic")


@lmc.function
def ask_field(s, doc, field, hint=""):
    s += lmc.user(f"{doc}\nWhat is the {field}?{hint}")
    s += lmc.assistant(lmc.gen("date" if field == "date" else "value", max_tokens=16))
    return s["date" if field == "date" else "value"].strip()


@lmc.function
def extract(s, doc):
    found, missing = {}, []
    for name in FIELDS:
        value = ask_field(doc, name).ret_value
        if name == "date" and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            value = ask_field(doc, name, " Answer as YYYY-MM-DD.").ret_value
        if not value:
            missing.append(name)
        found[name] = value
    s += lmc.user("Check: " + json.dumps(found)) + lmc.assistant(lmc.gen("check", max_tokens=32))
    return found, missing


async def expert_extract(ask: Ask, doc: str) -> None:
    async def one(name: str) -> str:
        key = "date" if name == "date" else "value"
        question = f"{doc}\nWhat is the {name}?"
        value = (await ask([("user", question)], key, 16)).strip()
        if name == "date" and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
            value = (await ask([("user", question + " Answer as YYYY-MM-DD.")], key, 16)).strip()
        return value

    found = dict(zip(FIELDS, await asyncio.gather(*[one(name) for name in FIELDS])))
    await ask([("user", "Check: " + json.dumps(found))], "check", 32)


# -- 5: retrieval over sources, by a retriever that is declared pure -----------------------------------------------------------

RETRIEVAL = 0.1
"""Seconds that the retriever takes; the benchmark scales it with the answers."""


@lmc.pure
def retrieve(source: str, query: str) -> str:
    time.sleep(RETRIEVAL)
    return f"{source} says of {query}: " + f"fact {_number(source + query) % 100}. " * 8


SOURCES = ("wiki", "news", "papers", "mail", "tickets", "manual")


@lmc.function
def read_source(s, question, passage):
    s += lmc.system("Answer from the passage.") + lmc.user(f"{passage}\n{question}") + lmc.assistant(lmc.gen("note", max_tokens=48))


@lmc.function
def rag(s, question):
    notes = []
    for source in SOURCES:
        passage = retrieve(source, question)
        notes.append(read_source(question, passage)["note"].strip())
    s += lmc.user(question + "\n" + "\n".join(notes)) + lmc.assistant(lmc.gen("answer", max_tokens=64))
    return s["answer"]


async def expert_rag(ask: Ask, question: str) -> None:
    async def one(source: str) -> str:
        passage = await asyncio.to_thread(retrieve, source, question)
        return (await ask([("system", "Answer from the passage."), ("user", f"{passage}\n{question}")], "note", 48)).strip()

    notes = await asyncio.gather(*[one(source) for source in SOURCES])
    await ask([("user", question + "\n" + "\n".join(notes))], "answer", 64)


# -- 6: plan and execute ----------------------------------------------------------------------------------------------------------


@lmc.function
def execute(s, goal, step):
    s += lmc.user(f"Goal: {goal}\nDo only: {step}") + lmc.assistant(lmc.gen("result", max_tokens=48))


@lmc.function
def plan_and_execute(s, goal):
    s += lmc.user("Plan for " + goal) + lmc.assistant(lmc.gen("plan", max_tokens=96))
    results = []
    for step in s["plan"].splitlines():
        step = re.sub(r"^\d+\.\s*", "", step).strip()
        if not step:
            continue
        results.append(execute(goal, step)["result"])
    s += lmc.user("Results:\n" + "\n".join(results)) + lmc.assistant(lmc.gen("report", max_tokens=64))
    return s["report"]


async def expert_plan_and_execute(ask: Ask, goal: str) -> None:
    messages = [("user", "Plan for " + goal)]
    plan = await ask(messages, "plan", 96)
    steps = [step for line in plan.splitlines() if (step := re.sub(r"^\d+\.\s*", "", line).strip())]
    results = await asyncio.gather(*[ask([("user", f"Goal: {goal}\nDo only: {step}")], "result", 48) for step in steps])
    await ask([*messages, ("assistant", plan), ("user", "Results:\n" + "\n".join(results))], "report", 64)


# -- 7: tree search with a scoring function in Python -------------------------------------------------------------------------------


def score(path: tuple[str, ...], text: str) -> int:
    return sum(ord(c) for c in text) % 100 - 3 * len(path)


@lmc.function
def expand(s, problem, path):
    s += lmc.user(f"{problem}\nSo far: {' > '.join(path)}\nNext?") + lmc.assistant(lmc.gen("next", max_tokens=16))


@lmc.function
def tree_search(s, problem, width=3, depth=3):
    beam = [(0, ())]
    for _ in range(depth):
        found = []
        for _, path in beam:
            for k in range(width):
                text = expand(problem, (*path, f"#{k}"))["next"].strip()
                heapq.heappush(found, (-score(path, text), (*path, text)))
        beam = [heapq.heappop(found) for _ in range(min(width, len(found)))]
    return beam[0]


async def expert_tree_search(ask: Ask, problem: str) -> None:
    beam: list[tuple[str, ...]] = [()]
    for _ in range(3):
        jobs = [(*path, f"#{k}") for path in beam for k in range(3)]
        texts = await asyncio.gather(*[ask([("user", f"{problem}\nSo far: {' > '.join(job)}\nNext?")], "next", 16) for job in jobs])
        found = sorted((-score(job[:-1], text.strip()), (*job[:-1], text.strip())) for job, text in zip(jobs, texts))
        beam = [path for _, path in found[:3]]


# -- 8: a debate ------------------------------------------------------------------------------------------------------------------------

AGENTS = ("optimist", "sceptic", "lawyer")


@lmc.function
def argue(s, agent, question, others):
    s += lmc.system(f"You are the {agent}.") + lmc.user(f"{question}\nThe others said:\n" + "\n".join(others))
    s += lmc.assistant(lmc.gen("argument", max_tokens=48))


@lmc.function
def debate(s, question):
    said = dict.fromkeys(AGENTS, "nothing yet")
    for _ in range(3):
        news = {}
        for agent in AGENTS:
            others = [f"{other}: {text}" for other, text in said.items() if other != agent]
            news[agent] = argue(agent, question, others)["argument"].strip()
        said = news
    s += lmc.user(question + "\n" + json.dumps(said)) + lmc.assistant(lmc.gen("verdict", max_tokens=48))
    return s["verdict"]


async def expert_debate(ask: Ask, question: str) -> None:
    said = dict.fromkeys(AGENTS, "nothing yet")
    for _ in range(3):
        others = ["\n".join(f"{o}: {t}" for o, t in said.items() if o != a) for a in AGENTS]
        chats = [[("system", f"You are the {a}."), ("user", f"{question}\nThe others said:\n{o}")] for a, o in zip(AGENTS, others)]
        said = dict(zip(AGENTS, [text.strip() for text in await asyncio.gather(*[ask(chat, "argument", 48) for chat in chats])]))
    await ask([("user", question + "\n" + json.dumps(said))], "verdict", 48)


# -- 9: self-consistency with an early stop ---------------------------------------------------------------------------------------------

VOTE = "[ABC]"


@lmc.function
def attempt(s, question, i):
    s += lmc.user(f"{question} (try {i})") + lmc.assistant(lmc.gen("why", max_tokens=48) + " so " + lmc.gen("vote", max_tokens=1, regex=VOTE))


@lmc.function
def self_consistency(s, question, most=9, enough=3):
    votes = {}
    for i in range(most):
        vote = attempt(question, i)["vote"]
        votes[vote] = votes.get(vote, 0) + 1
        if votes[vote] >= enough:
            break
    return max(sorted(votes), key=lambda vote: votes[vote])


async def expert_self_consistency(ask: Ask, question: str) -> None:
    async def one(i: int) -> str:
        messages = [("user", f"{question} (try {i})")]
        why = await ask(messages, "why", 48)
        return await ask(messages, "vote", 1, begun=why + " so ", regex=VOTE)

    await asyncio.gather(*[one(i) for i in range(9)])


# -- 10: code repair with a test tool -----------------------------------------------------------------------------------------------------


CODE = r"def f\(x\): return x \+ [0-9]"


def run_tests(code: str) -> str:
    names: dict[str, Any] = {}
    exec(code, names)
    return "passed" if names["f"](1) == 4 else f"failed: f(1) is {names['f'](1)}, not 4"


@lmc.function
def repair(s, task):
    s += lmc.system("You write Python.") + lmc.user(task)
    for _ in range(5):
        s += lmc.assistant(lmc.gen("code", max_tokens=64, regex=CODE))
        outcome = run_tests(s["code"])
        if outcome == "passed":
            break
        s += lmc.user(f"The tests {outcome}. Try again.")
    s += lmc.user("Explain it in one sentence.") + lmc.assistant(lmc.gen("explanation", max_tokens=48))
    return s["explanation"]


async def expert_repair(ask: Ask, task: str) -> None:
    messages = [("system", "You write Python."), ("user", task)]
    for _ in range(5):
        code = await ask(messages, "code", 64, regex=CODE)
        messages.append(("assistant", code))
        outcome = run_tests(code)
        if outcome == "passed":
            break
        messages.append(("user", f"The tests {outcome}. Try again."))
    await ask([*messages, ("user", "Explain it in one sentence.")], "explanation", 48)


@dataclass(frozen=True)
class Workload:
    """A program with what it is run on, and the expert's version. `decided`: it has no undecided exits."""

    name: str
    program: Any
    arguments: dict[str, Any]
    expert: Callable[..., Awaitable[None]]
    decided: bool = True


WORKLOADS = (
    Workload("map-reduce of 12", map_reduce, {"docs": DOCS}, expert_map_reduce),
    Workload("evaluation of 50", evaluate, {"rows": ROWS}, expert_evaluate),
    Workload("panel of 5", panel, {"essay": "An essay on reading. " * 30}, expert_panel),
    Workload("8 fields", extract, {"doc": "Invoice 17 of the fourth of May. " * 10}, expert_extract),
    Workload("retrieval of 6", rag, {"question": "Why is the sky blue?"}, expert_rag),
    Workload("plan and execute", plan_and_execute, {"goal": "build a hut"}, expert_plan_and_execute),
    Workload("tree search 3 × 3", tree_search, {"problem": "24 from 4 4 6 1"}, expert_tree_search),
    Workload("debate 3 × 3", debate, {"question": "Is a hot dog a sandwich?"}, expert_debate),
    Workload("self-consistency", self_consistency, {"question": "What is 6 * 7?"}, expert_self_consistency, decided=False),
    Workload("code repair", repair, {"task": "Write f so that f(1) is 4."}, expert_repair, decided=False),
)
