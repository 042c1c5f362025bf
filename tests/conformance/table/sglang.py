"""Programs of the kinds that SGLang documents, written for its frontend: they run after `import lmc as sgl`."""

import json
import re
from typing import Any

import pydantic

import lmc as sgl
from tests.conformance.harness import Case, case, effect, scripted


@case([{"question": "Which river runs through Cairo?"}, {"question": "Which river runs through Prague?"}], temperature=0)
def few_shot_qa(s, question):
    s += "Short questions with short answers.\n\n"
    s += "Q: Which river runs through London?\n"
    s += "A: The Thames\n"
    s += "Q: Which river runs through Vienna?\n"
    s += "A: The Danube\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", stop="\n", temperature=0)


@case([{"question_1": "Describe a lighthouse.", "question_2": "Now as a haiku."}], temperature=0.7, max_new_tokens=24)
def mt_bench_turns(s, question_1, question_2):
    s += sgl.system("You are a careful writer.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1"))
    with s.user():
        s += question_2
    with s.assistant():
        s += sgl.gen("answer_2")


@case([{"question": "Name a prime."}])
def begin_and_end(s, question):
    s += sgl.system_begin() + "Terse." + sgl.system_end()
    s += sgl.user_begin()
    s += "Question: " + question
    s += sgl.user_end()
    s += sgl.assistant_begin()
    s += "Answer: " + sgl.gen("answer", max_tokens=32, stop=["\n", "."])
    s += sgl.assistant_end()


@case([{"question": "Name a prime."}])
def roles_of_the_state(s, question):
    s.system("Terse.")
    s += s.user(question)  # appended once
    s += s.assistant(sgl.gen("answer", max_tokens=8))
    return s


STATEMENTS = [{"statement": "The sea is dry."}, {"statement": "Bonn is a city."}, {"statement": "Blue is best."}]
METHODS: dict[str, Any] = {
    "default": {}, "length": {"choices_method": sgl.token_length_normalized}, "greedy": {"choices_method": sgl.greedy_token_selection},
    "unconditional": {"choices_method": sgl.unconditional_likelihood_normalized}, "name": {"choices_method": "greedy_token_selection"},
}  # fmt: skip


def statements(options: dict[str, Any]) -> Case:
    @case(STATEMENTS)
    def true_or_false(s, statement):
        s += "True, False or Unknown?\nStatement: Water is wet.\nAnswer: True\n"
        s += "Statement: " + statement + "\nAnswer:"
        s += sgl.select("answer", choices=["True", "False", "Unknown"], temperature=0.0, **options)
        return s["answer"]

    return true_or_false


BY_METHOD = {f"true_or_false_{name}": statements(options) for name, options in METHODS.items()}


@case([{"question": "What is 2 * 2?"}, {"question": "Who wrote Emma?"}, {"question": "What is 7 * 6?"}])
def gen_with_choices(s, question):
    s += "To answer " + question + " I need a "
    s += sgl.gen("tool", choices=["calculator", "search engine"]) + ". "
    if s["tool"] == "calculator":
        s += "The expression is" + sgl.gen("expression", max_tokens=12)
    elif s["tool"] == "search engine":
        s += "The key word is" + sgl.gen("word", max_tokens=12)


OCTETS = r"((25[0-5]|2[0-4]\d|[01]?\d\d?)\.){3}(25[0-5]|2[0-4]\d|[01]?\d\d?)"


@case([{}], temperature=0.1)
def decode_int(s):
    s += "Hours in a day: " + sgl.gen_int("hours") + "\n"
    s += "Days in a year: " + sgl.gen_int("days") + "\n"


@case([{}])
def ip_address(s):
    s += "Q: What is the address of the name server?\n"
    s += "A: " + sgl.gen("answer", temperature=0, regex=OCTETS)


@case([{}], max_new_tokens=64)
def json_by_dtypes(s):
    s += "Basic facts of Lisbon as a JSON object:\n"
    with s.var_scope("json_output"):
        s += '{\n  "name": ' + sgl.gen_string() + ",\n"
        s += '  "country": ' + sgl.gen(dtype=str) + ",\n"
        s += '  "where": ' + sgl.gen_string("where") + "\n"
        s += "}"


CHARACTER = r"""\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(North|South|East)",\n    "age": [0-9]{1,2}\n\}"""


@case([{"name": "Ann"}, {"name": "Bob"}])
def json_by_one_regex(s, name):
    s += sgl.user(f"{name} is a character of a play. Fill in what is known.")
    s += sgl.assistant(sgl.gen("json_output", max_tokens=256, regex=CHARACTER))


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "n": {"type": "integer", "minimum": 0, "maximum": 9999999}},
        "required": ["city", "n"],
    }
)


@case([{"q": "Lisbon"}])
def json_by_schema(s, q):
    s += q + sgl.gen("json_output", max_tokens=256, json_schema=SCHEMA)


@case([{}])
def every_dtype(s):
    s += "Full name: " + sgl.gen("str_res", dtype=str, stop="\n") + "\n"
    s += "Year: " + sgl.gen("int_res", dtype=int) + "\n"
    s += "Pi: " + sgl.gen("float_res", dtype=float) + "\n"
    s += "Blue? " + sgl.gen("bool_res", dtype=bool) + "\n"
    s += "By name: " + sgl.gen("named", dtype="int") + "\n"


@case([{"question": "2 + 2?", "width": 3}])
def paths_from_the_candidates(s, question, width):
    s += sgl.user("Question: " + question) + sgl.assistant_begin()
    first, forks = s.fork(1)[0], s.fork(width)
    first += sgl.gen("top", max_tokens=0, return_logprob=True, top_logprobs_num=width, return_text_in_logprobs=True)
    for f, (_, _, text) in zip(forks, first.get_meta_info("top")["output_top_logprobs"][0]):
        f += text + sgl.gen("answer", temperature=0, max_tokens=4)
    first += "!"
    return first["top"], first.text()[-3:], [f.text()[-6:] for f in forks]


@case([{"q": "x"}, {"q": "y"}])
def surprise(s, q):
    s += sgl.user(q) + sgl.assistant(sgl.gen("answer", max_tokens=6, return_logprob=True, logprob_start_len=0))
    meta = s.get_meta_info("answer")
    return meta["prompt_tokens"] == len(meta["input_token_logprobs"]), sum(lp for lp, _, _ in meta["output_token_logprobs"])


@case([{}])
def tips_of_two_forks(s):
    s += "Two tips: 1. Balanced diet. 2. Exercise.\n\n"
    forks = s.fork(2)
    for i, f in enumerate(forks):
        f += f"Tip {i + 1} as a paragraph:\n"
        f += sgl.gen("detailed_tip", max_tokens=32, stop="\n\n")
    s += "Tip 1:" + forks[0]["detailed_tip"] + "\nTip 2:" + forks[1]["detailed_tip"] + "\n"
    s += "In summary" + sgl.gen("summary")


@case([{"q": "Why?"}])
def group_appends(s, q):
    forks = s.fork(3)
    forks += q + "\n"
    forks += ["one", "two", "three"]
    forks += sgl.gen("x", max_tokens=8)
    forks.join("gather_variable")
    s += " / ".join(s["x"])
    return s["x"]


@case([{"q": "capital?"}])
def at_least(s, q):
    s += sgl.user(q)
    s += sgl.assistant(sgl.gen("answer", min_tokens=64, max_tokens=128))


@case([{"q": "x"}], stop=["zzz"], max_new_tokens=40, top_p=0.9, top_k=20, min_p=0.05, frequency_penalty=0.1, presence_penalty=0.2)
def own_and_inherited(s, q):
    s += q + sgl.gen("a", stop=[" ", "\n"]) + sgl.gen("b", stop=(" k",), temperature=0.2) + sgl.gen("c")
    s += sgl.gen("d", stop_regex=r"[aeiou]{2}|m", stop_token_ids=[13], ignore_eos=True, top_k=5)


REASONED = {"answer": "<think>\nTwo cities.\n</think>\n\nBern.", "second": "no thought", "cut": "<think>and then"}


@case([{"question": "The capital of Switzerland?"}], backend=scripted(**REASONED))
def reasons(s, question):
    s += sgl.user(question)
    s += sgl.assistant_begin()
    s += "So: " + sgl.separate_reasoning(sgl.gen("answer", max_tokens=512), model_type="qwen3")
    s += sgl.assistant_end()
    s += sgl.user("Sure?") + sgl.assistant(sgl.separate_reasoning(sgl.gen("second") + "." + sgl.gen("cut"), model_type="qwen3"))
    return s["answer_reasoning_content"]


@case([{"topic": "rain"}, {"topic": "bread"}], temperature=0.2)
def skeleton_of_thought(s, topic):
    s += sgl.user(f"Only the skeleton of an answer, three points of three words: what of {topic}?")
    s += sgl.assistant("1. " + sgl.gen("points", max_tokens=24, stop="4."))
    points = [p.strip() for p in re.split(r"[\s,]+", s["points"])][:3]
    forks = s.fork(len(points))
    for i, (f, point) in enumerate(zip(forks, points), 1):
        f += sgl.user(f"Write point {i}, {point}, in one sentence.") + sgl.assistant(sgl.gen("text", max_tokens=12))
    return "\n".join(f["text"] for f in forks)


INDEX = {"rome": ["Rome is in Italy.", "Rome has hills."], "bonn": ["Bonn is on the Rhine."]}


def retrieve(query: str, k: int = 2) -> list[str]:
    effect("retrieve", query)
    return INDEX.get(query.strip().lower(), ["nothing"])[:k]


@case([{"question": "Where do both meet?"}], backend=lambda: sgl.Mock(answers={"query": [" Rome", " Bonn"]}))
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


class Capital(pydantic.BaseModel):
    name: str
    population: int


@case([{"country": "France"}, {"country": "Peru"}], max_new_tokens=256)
def by_a_pydantic_model(s, country):
    s += sgl.user("The capital of " + country + " as JSON.")
    s += sgl.assistant(sgl.gen("as_model", json_schema=Capital))
    s += sgl.user("Again.") + sgl.assistant(sgl.gen("as_text", json_schema=json.dumps(Capital.model_json_schema())))
    s += sgl.user("Again.") + sgl.assistant(sgl.gen("as_dtype", dtype=Capital))
    return [Capital.model_validate_json(s[name]).population for name in ("as_model", "as_text", "as_dtype")]


@case([{}])
def letters_beyond_ascii(s):
    s += "四字成语：" + sgl.gen("idiom", regex="[\u4e00-\u9fff]{4}", temperature=0)
    return len(s["idiom"])


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


@case([{"topic": "the fair"}, {"topic": "the rain"}])
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
