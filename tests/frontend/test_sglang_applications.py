"""The applications that SGLang's benchmarks, examples and tutorials document, written anew: they mean the same in every execution."""

from __future__ import annotations

import collections
import json
import re
from typing import Any

import pydantic

import lmc as sgl
from lmc import assistant, assistant_begin, assistant_end, function, gen, system, user
from tests.conformance.harness import effect, scripted
from tests.frontend.kinds import Kinds
from tests.searching import some

kind = KINDS = Kinds()


# -- benchmarks of knowledge -----------------------------------------------------------------------------------------

LETTERS = ["A", "B", "C", "D"]


def exam_question(row: list[str], with_answer: bool) -> str:
    lines = [row[0], *(f"{letter}. {choice}" for letter, choice in zip(LETTERS, row[1:5]))]
    return "\n".join(lines) + "\nAnswer:" + (f" {row[5]}\n\n" if with_answer else "")


SHOTS = "Questions on rivers.\n\n" + exam_question(["Longest?", "Nile", "Thames", "Po", "Ebro", "A"], True)
EXAM = [exam_question([f"{q}?", "Rhine", "Seine", "Tiber", "Elbe", ""], False) for q in ("Paris", "Rome", "Bonn")]


@kind(*[{"examples": SHOTS, "question": q} for q in EXAM], temperature=0, max_new_tokens=1)
@sgl.function
def letters_by_one_token(s, examples, question):
    s += examples + question + sgl.gen("answer")


@kind(*[{"question": q} for q in EXAM])
@sgl.function
def letters_by_select(s, question):
    s += SHOTS
    s += question + sgl.select("answer", choices=[" A", " B", " C", " D"])
    return LETTERS.index(s["answer"].strip())


NUMBER = re.compile(r"-?\d+")


def last_number(text: str) -> int | None:
    found = NUMBER.findall(text.replace(",", ""))
    return int(found[-1]) if found else None


@kind({"question": "3 + 4?"}, {"question": "10 - 2?"}, backend=scripted(answer=["So it is 1,007.", "Nobody knows."]), temperature=0)
@sgl.function
def word_problems(s, question):
    s += "Question: 2 + 2?\nAnswer: Two and two make 4.\n\n"
    s += "Question: " + question + "\nAnswer:" + sgl.gen("answer", max_tokens=64, stop=["Question", "Assistant:", "<|separator|>"])
    return last_number(s["answer"])


@kind({"passage": "Bees make honey.", "question": "do bees make honey"}, {"passage": "Ants do not.", "question": "do ants"})
@sgl.function
def yes_or_no(s, passage, question):
    s += passage + "\nQuestion: " + question + "?\nAnswer:" + sgl.gen("answer", regex="( yes| no)")
    return s["answer"] == " yes"


@kind({"prefix": "line torpid-kid: 3\nline merry-fox: 7\n", "body": "", "suffix": "What is in line merry-fox?"}, temperature=0)
@sgl.function
def line_retrieval(s, prefix, body, suffix):
    s += prefix
    s += body
    s += suffix
    s += sgl.gen("answer", max_tokens=16)


# -- several ways to one answer --------------------------------------------------------------------------------------


@kind({"question": "How many legs have six cats?"}, {"question": "And a spider?"}, temperature=0.7)
@sgl.function
def chains_and_a_vote(s, question, width=3):
    s += "Question: " + question + "\nAnswer: "
    forks = s.fork(width)
    for i in range(width):
        forks[i] += f"(way {i + 1}) Let us think step by step. " + sgl.gen("chain", max_tokens=12, stop="\n")
    s += "\n".join(f"Answer {i + 1}: " + forks[i]["chain"].strip() for i in range(width))
    s += "\nThe best of them is " + sgl.select("best", ["1", "2", "3"])
    return forks[int(s["best"]) - 1]["chain"]


def propose(s, question, width):
    s += sgl.user("How would you solve this? Propose one plan.\n" + question)
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen("plan", max_tokens=8, temperature=0.4))
    return forks


def score(s, width):
    s += sgl.user("How promising is it, from 1 to 9?")
    forks = s.fork(width)
    forks += sgl.assistant(sgl.gen("score", regex="[1-9]", temperature=0.4))
    return forks


@kind({"question": "Sort 3 1 2."}, {"question": "24 from 1 2 3 4."})
@sgl.function
def tree_of_thought(s, question, width=2):
    best, plan = -1, None
    for planned in propose(s, question, width):
        for solved in propose(planned, "Carry it out.", width):
            scores = [int(f["score"]) for f in score(solved, width)]
            if sum(scores) > best:
                best, plan = sum(scores), solved
    s += sgl.assistant("The best plan is " + plan["plan"])
    return best


@kind({"question": "6 * 7?"}, {"question": "10 - 3?"})
@sgl.function
def majority_of_forks(s, question):
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += "Again, " * i + question + sgl.gen("answer", temperature=0.9, max_tokens=4)
    forks.join()
    answers = s["answer"]
    s += "So: " + max(sorted(set(answers)), key=answers.count) + sgl.gen("why", max_tokens=4)
    return sorted(set(s["answer"]), key=s["answer"].index)


def most_common(answers: list[str]) -> str:
    return collections.Counter(answers).most_common(1)[0][0]


@kind({"question": "6 * 7?"}, backend=lambda: sgl.Mock(answers=lambda prompt, ask: ["42", "41", "42"][len(prompt) % 3]))
@sgl.function
def self_consistency(s, question):
    s += question + sgl.gen("answer", n=3, temperature=0.9, max_tokens=4)
    return most_common(s["answer"])


@kind({"topic": "rain"}, {"topic": "bread"}, temperature=0.2)
@sgl.function
def skeleton_of_thought(s, topic):
    s += sgl.user(f"Only the skeleton of an answer, three points of three words: what of {topic}?")
    s += sgl.assistant("1. " + sgl.gen("points", max_tokens=24, stop="4."))
    points = [p.strip() for p in re.split(r"[\s,]+", s["points"])][:3]
    forks = s.fork(len(points))
    for i, (f, point) in enumerate(zip(forks, points), 1):
        f += sgl.user(f"Write point {i}, {point}, in one sentence.") + sgl.assistant(sgl.gen("text", max_tokens=12))
    return "\n".join(f["text"] for f in forks)


DIMENSIONS = {"clarity": "Is it clear?", "wit": "Is it funny?", "truth": "Is it true?"}


@kind({"article": "Cats are liquid."}, {"article": "Time flies like an arrow."}, temperature=0)
@sgl.function
def judge_of_many_dimensions(s, article):
    s += "Judge this.\n```\n" + article + "\n```\n\n"
    forks = s.fork(len(DIMENSIONS))
    for (name, ask), f in zip(DIMENSIONS.items(), forks):
        f += "The dimension is " + name + ". " + ask + "\n"
        f += "Judgement: " + sgl.gen("judgement", max_tokens=12, stop="END")
    s += "I judged:\n"
    for name, f in zip(DIMENSIONS, forks):
        s += name + ": " + f["judgement"].strip() + "\n"
    s += "In all" + sgl.gen("summary", max_tokens=12, stop="END")
    s += ". The grade is " + sgl.gen("grade", max_tokens=2, regex="[A-D][+-]?")
    return s["grade"]


# -- documents -------------------------------------------------------------------------------------------------------

DOCS = ["Ann lives in Rome.", "Bob lives in Bonn.", "Cid moved from Rome to Paris.", "Dee is a cat."]


@kind({"docs": DOCS, "question": "Who lives in Bonn?"}, {"docs": DOCS[:2], "question": "Who is Ann?"}, temperature=0)
@sgl.function
def many_documents(s, docs, question):
    s += sgl.user_begin()
    s += "Answer from these documents.\n"
    forks = s.fork(len(docs))
    forks += lambda i: "".join(["\nDocument ", str(i), "\n", docs[i], "\nEnd of document"])
    forks.join("concate_and_append")
    s += "\nQuestion: " + question
    s += sgl.user_end()
    s += sgl.assistant(sgl.gen("answer", max_tokens=16))


INDEX = {"rome": ["Rome is in Italy.", "Rome has hills."], "bonn": ["Bonn is on the Rhine."]}


def retrieve(query: str, k: int = 2) -> list[str]:
    effect("retrieve", query)
    return INDEX.get(query.strip().lower(), ["nothing"])[:k]


@kind({"question": "Where is Rome?"}, {"question": "Where is Bonn?"}, backend=scripted(query=" Rome", answer="Italy. And more"))
@sgl.function
def retrieval(s, question):
    s += "Question: " + question + "\nSearch for:" + sgl.gen("query", stop="\n", max_tokens=8)
    passages = retrieve(s["query"])
    s += "\nContext:\n" + "\n".join(f"[{i}] {p}" for i, p in enumerate(passages, 1))
    s += "\nReasoning: Let us think step by step." + sgl.gen("rationale", stop="\n", max_tokens=16)
    s += "\nAnswer:" + sgl.gen("answer", stop=["\n", "."], max_tokens=16)
    return {"answer": s["answer"], "passages": passages}


@kind({"question": "Where do both meet?"}, backend=lambda: sgl.Mock(answers={"query": [" Rome", " Bonn"]}))
@sgl.function
def retrieval_of_several_hops(s, question, hops=2):
    context: list[str] = []
    for _ in range(hops):
        with s.copy() as step:
            step += "Context: " + " ".join(context) + "\nQuestion: " + question + "\nSearch for:" + sgl.gen("query", stop="\n")
            for passage in retrieve(step["query"], k=1):
                if passage not in context:
                    context.append(passage)
    s += "\n".join(context) + "\nSo" + sgl.gen("answer", max_tokens=8)
    return context


# -- structure -------------------------------------------------------------------------------------------------------

CITY = (
    r"""\{\n  "name": "[\w\d\s]+",\n  "country": "[\w\d\s]+",\n  "latitude": [-+]?[0-9]*\.?[0-9]+,\n  "population": [0-9]{1,8},\n"""
    r"""  "top 3 landmarks": \["[\w\d\s]+", "[\w\d\s]+", "[\w\d\s]+"\]\n\}"""
)


@kind({"document": "Lisbon lies on the Tagus."}, {"document": "Oslo lies on a fjord."}, temperature=0)
@sgl.function
def facts_of_a_document(s, document):
    s += "Extract the facts of a city.\n" + document + "\n"
    with s.var_scope("json_output"):
        s += sgl.gen("facts", max_tokens=256, regex=CITY)
    return json.loads(s["json_output"])["population"] if s["json_output"].endswith("}") else None


class Capital(pydantic.BaseModel):
    name: str
    population: int


@kind({"country": "France"}, {"country": "Peru"}, max_new_tokens=256)
@sgl.function
def by_a_pydantic_model(s, country):
    s += sgl.user("The capital of " + country + " as JSON.")
    s += sgl.assistant(sgl.gen("as_model", json_schema=Capital))
    s += sgl.user("Again.") + sgl.assistant(sgl.gen("as_text", json_schema=json.dumps(Capital.model_json_schema())))
    s += sgl.user("Again.") + sgl.assistant(sgl.gen("as_dtype", dtype=Capital))
    return [Capital.model_validate_json(s[name]).population for name in ("as_model", "as_text", "as_dtype")]


@kind({"name": "Ann"})
@sgl.function
def a_regex_from_parts(s, name):
    fields = {"job": r"[a-z]{3,8}", "age": r"[1-9][0-9]?", "happy": "(true|false)"}
    pattern = r"\{" + ", ".join(f'"{key}": ' + (f'"{value}"' if key == "job" else value) for key, value in fields.items()) + r"\}"
    s += name + " is " + sgl.gen("json", regex=pattern, max_tokens=64)
    return sorted(json.loads(s["json"]))


@kind()
@sgl.function
def letters_beyond_ascii(s):
    s += "四字成语：" + sgl.gen("idiom", regex="[\u4e00-\u9fff]{4}", temperature=0)
    return len(s["idiom"])


@kind({"question": "A host?"}, backend=scripted(thinking="It is small.</think> no", ip="10.0.0.1"))
@sgl.function
def thoughts_before_structure(s, question):
    s += user(question)
    s += assistant_begin()
    s += "<think>" + gen("thinking", stop="</think>", max_tokens=64) + "</think>\n"
    s += gen("ip", regex=r"(\d{1,3}\.){3}\d{1,3}", max_tokens=16)
    s += assistant_end()
    return s["thinking"], s["ip"]


# -- conversations ---------------------------------------------------------------------------------------------------


@kind({"qas": [{"prompt": "Hi.", "new_tokens": 4}, {"prompt": "Why?", "new_tokens": 8}]}, {"qas": [{"prompt": "Ho.", "new_tokens": 3}]})
@sgl.function
def turns_from_data(s, qas):
    for qa in qas:
        s += qa["prompt"]
        s += sgl.gen(max_tokens=qa["new_tokens"], ignore_eos=True)


@kind({"questions": ["Hello?", "And now?", "Bye."]}, temperature=0.5)
@sgl.function
def a_long_conversation(s, questions):
    s += sgl.system("You are short.")
    answers = []
    for i, question in enumerate(questions):
        with s.user():
            s += question
        with s.assistant():
            s += sgl.gen(f"answer_{i}", max_tokens=8, stop="\n")
        answers.append(s[f"answer_{i}"])
    return [m["role"] for m in s.messages()], answers


@kind({"country": "France"}, {"country": "Chad"}, max_new_tokens=16)
@function
def from_imported_names(s, country):
    s += system("You are a helpful assistant that answers questions.")
    s += user(f"The capital of {country}?")
    s += assistant(gen("capital", stop=[".", "\n"]))
    s += user("And its best dish?") + assistant(gen("dish"))
    return s["capital"]


def tool_call(text: str) -> tuple[str, dict[str, Any]] | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    return call["tool"], call["arguments"]


def weather(city: str) -> str:
    effect("weather", city)
    return f"Rain in {city}."


TOOLS = {"weather": weather, "upper": lambda city: city.upper()}
CALLS = ['{"tool": "weather", "arguments": {"city": "Oslo"}}', '{"tool": "upper", "arguments": {"city": "Oslo"}}', "Take a coat."]


def calls_tools() -> sgl.Mock:
    return sgl.Mock(answers=lambda prompt, ask: CALLS[prompt.count("The tool says")])


@kind({"question": "Oslo?"}, {"question": "Rome?"}, backend=calls_tools)
@sgl.function
def agent_with_tools(s, question):
    s += sgl.system("Tools: " + ", ".join(TOOLS)) + sgl.user(question)
    for _ in range(4):
        s += sgl.assistant(sgl.gen("reply", max_tokens=64))
        call = tool_call(s["reply"])
        if call is None:
            return s["reply"]
        name, arguments = call
        s += sgl.user("The tool says: " + TOOLS[name](**arguments))
    return None


# -- a town of agents ------------------------------------------------------------------------------------------------

PERSONA = "Name: Isa\nAge: 34\n"


@kind({"event": "met a fox"}, {"event": "brushed teeth"}, temperature=0)
@sgl.function
def how_much_it_matters(s, event, persona=PERSONA):
    s += "On a scale of 1 to 9, how much does this matter to her?\n" + persona + "Event: " + event + "\nRate: "
    s += sgl.gen("rate", max_tokens=2, regex="[1-9]")
    return int(s["rate"]) * 10


@kind({"event": "the bed is unmade"}, {"event": "the shop is open"})
@sgl.function
def as_triples(s, event):
    s += f"Task: an event as (subject, predicate, object).\nInput: {event}\nOutput: ("
    for i, part in enumerate(("subject", "predicate", "object")):
        s += sgl.gen(part, max_tokens=6, stop=[",", ")"]) + (", " if i < 2 else ")")
    return tuple(s[part].strip() for part in ("subject", "predicate", "object"))


@kind({"where": "the kitchen", "hour": 8}, {"where": "the park", "hour": 17})
@sgl.function
def where_to_go(s, where, hour):
    places = ["kitchen", "park", "shop"] if hour < 12 else ["park", "bar"]
    s += PERSONA + f"It is {hour:02d}:00. She is in {where}. She goes to: " + sgl.gen("place", choices=places)
    return s["place"]


@kind({"names": ["Isa", "Tom"], "rounds": 2}, {"names": ["Ana", "Bo", "Cy"], "rounds": 1})
@sgl.function
def they_talk(s, names, rounds):
    line = ""
    for turn in range(rounds * len(names)):
        name = names[turn % len(names)]
        s += f"{name}: " + sgl.gen("line", max_tokens=6, stop="\n") + "\n"
        line = s["line"]
    return line


class Memory:
    def __init__(self):
        self.rows = []

    def add(self, row):
        effect("add", row)
        self.rows.append(row)

    def render(self):
        return "\n".join(f"- {row}" for row in self.rows)


class Inhabitant:
    """Some of its methods reach the language, others do not, and all of them work on what they find in it."""

    def __init__(self, name):
        self.name, self.memory, self.said = name, Memory(), 0

    @property
    def persona(self):
        return f"You are {self.name}, who has spoken {self.said} times."

    def count(self, most=2):
        self.said += 1
        if self.said > most:
            raise ValueError(f"{self.name} is tired")

    @staticmethod
    def first_word(text):
        return (text.split() or [""])[0].lower()

    def speak(self, s, about):
        self.count()
        s += sgl.user(f"{self.persona}\n{self.memory.render()}\n{about}?") + sgl.assistant(sgl.gen("line", max_tokens=8))
        self.memory.add(self.first_word(s["line"]))


def introduce(inhabitant, greeting="This is"):
    return f"{greeting} {inhabitant.name} ({len(inhabitant.memory.rows)})."


@kind({"topic": "the fair"}, {"topic": "the rain"})
@sgl.function
def inhabitants_with_memories(s, topic):
    people = [Inhabitant("Isa"), Inhabitant("Tom")]
    s += " ".join(introduce(p) for p in people)
    for p in people * 2:
        p.speak(s, topic)
    try:
        people[0].speak(s, topic)
    except ValueError as error:
        s += sgl.user(f"{error}. " + introduce(people[0], greeting=s["line"]))
    return [(p.name, p.said, p.memory.rows) for p in people]


# -- all of them -----------------------------------------------------------------------------------------------------


@some("name", KINDS, 6)
def test_means_the_same_in_every_execution(name):
    KINDS[name].check()
