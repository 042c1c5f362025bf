"""Small programs of the kinds that cse, dce, plan-speculation and plan-prefix act on: the ten figures hold none of these."""

from __future__ import annotations

from random import Random

import lmc
from benchmarks.workloads import Size, Workload, answer, text


def asked_twice(size: Size) -> Workload:
    """A classification whose result is wanted in two places, each of which asks for it."""
    reply = size.tokens(48)

    @lmc.function
    def triage(s, ticket):
        s += "Ticket: " + ticket
        label, again = s.fork(2)
        label += "\nUrgent or not:" + lmc.gen("urgent", max_tokens=4, temperature=0)
        again += "\nUrgent or not:" + lmc.gen("urgent", max_tokens=4, temperature=0)
        s += "\nIt is" + label["urgent"] + ". The answer, which must fit" + again["urgent"] + ":" + answer("reply", reply)

    return Workload("asked-twice", "300 w, the same gen 4 twice, gen 48", 100, 3, triage, lambda rng: {"ticket": text(rng, size.words(300))})


def shared_question(size: Size) -> Workload:
    """A judge whose forks all ask the same first."""
    thesis, judgement = size.tokens(64), size.tokens(96)

    @lmc.function
    def grade(s, essay):
        s += "Essay: " + essay
        forks = s.fork(3)
        for f, dimension in zip(forks, ("clarity", "originality", "evidence")):
            f += "\nIts thesis:" + lmc.gen("thesis", max_tokens=thesis, temperature=0, ignore_eos=True)
            f += f"\nJudge its {dimension}:" + answer("judgement", judgement)
        s += "\n".join([f["judgement"] for f in forks])

    return Workload("shared-question", "500 w, fork 3 x (the same gen 64, gen 96)", 80, 6, grade,
                    lambda rng: {"essay": text(rng, size.words(500))})


def unread(size: Size) -> Workload:
    """Drafts of which one is read."""
    draft = size.tokens(96)

    @lmc.function
    def drafts(s, topic):
        s += "Topic: " + topic
        forks = s.fork(3)
        for i, f in enumerate(forks):
            f += f"\nDraft {i}:" + answer("draft", draft)
        s += forks[0]["draft"]

    return Workload("unread", "100 w, fork 3 x gen 96 of which one is read", 80, 3, drafts, lambda rng: {"topic": text(rng, size.words(100))})


def switch(size: Size) -> Workload:
    """One of two instructions follows, by a choice made in a fork."""
    arms = [text(Random(f"arm {i}"), 50)[:320] for i in range(2)]
    tokens = size.tokens(32)

    @lmc.function
    def route(s, question):
        s += "Question: " + question
        router = s.fork(1)[0]
        router += "\nKind: " + lmc.select("kind", choices=["billing", "technical"])
        if router["kind"] == "billing":
            s += "\n" + arms[0] + "\nAnswer:" + answer("answer", tokens)
        else:
            s += "\n" + arms[1] + "\nAnswer:" + answer("answer", tokens)

    return Workload("switch", "60 w, select of 2 in a fork, 50 w by the choice, gen 32", 100, 2, route,
                    lambda rng: {"question": text(rng, size.words(60))})


POLICY_CHUNK = 64  # rows of a pass of the engine that it runs on


def policy(size: Size) -> Workload:
    """One of two long instructions follows, by an answer that is sampled in a fork."""
    arms = [text(Random(f"policy {i}"), 250) for i in range(2)]  # longer than the free rows of a pass: not scaled

    @lmc.function
    def handle(s, question):
        s += "Question: " + question
        triage = s.fork(1)[0]
        triage += "\nWhat it is about:" + answer("topic", 24)
        if len(triage["topic"]) % 2 == 0:
            s += "\n" + arms[0] + "\nAnswer:" + answer("answer", 4)
        else:
            s += "\n" + arms[1] + "\nAnswer:" + answer("answer", 4)

    return Workload("policy", f"60 w, gen 24 in a fork, 250 w by its answer, gen 4; {POLICY_CHUNK} rows a pass", 100, 2, handle,
                    lambda rng: {"question": text(rng, size.words(60))})


LATE_POOL = 400  # tokens: room for the document and one note, not for the document and all notes


def late(size: Size) -> Workload:
    """A document that is asked about, then many notes, then the document again; for a pool with room for a part of it."""
    words = 100  # lengths that belong to LATE_POOL: not scaled

    @lmc.function
    def review(s, document, notes):
        aside, s_doc = s.fork(2)
        s_doc += "Document: " + document
        first, last = s_doc.fork(2)
        first += "\nIts subject:" + answer("subject", 4)
        found = first["subject"]
        for note in notes:
            f = aside.fork(1)[0]
            f += f"After {found} read: " + note + "\nIn a word:" + answer("word", 4)
            found = f["word"]
        last += "\nThe notes say " + found + ". Therefore:" + answer("end", 4)
        s += last["end"]

    return Workload("late", f"100 w, gen 4, 4 x (100 w, gen 4), the first 100 w again, gen 4; a pool of {LATE_POOL} tokens", 50, 6, review,
                    lambda rng: {"document": text(rng, words), "notes": [text(rng, words) for _ in range(4)]})


def for_passes(size: Size) -> tuple[Workload, ...]:
    """One for each thing that a pass saves."""
    return asked_twice(size), shared_question(size), unread(size), switch(size), policy(size), late(size)
