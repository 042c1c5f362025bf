"""One request for several answers: never wrong, never an empty value, and as few calls as the model allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import lmc
from lmc.backend.api.place import Rest
from lmc.backend.api.speculation import follow
from lmc.segments import Gen, SamplingParams
from tests.api.http import Planted
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

FIELDS = ("Name", "Born", "Field", "Country", "Prize", "Language")
VALUES = ("Ada Lovelace", "1815", "mathematics", "England", "none", "English")
TEXT = "The following is about a person whom many of its readers know. " * 20


@lmc.function
def extraction3(s, text):
    s += text + "\nName:" + lmc.gen("Name", max_tokens=40, stop="\n")
    s += "\nBorn:" + lmc.gen("Born", max_tokens=40, stop="\n")
    s += "\nField:" + lmc.gen("Field", max_tokens=40, stop="\n")


@lmc.function
def extraction6(s, text):
    s += text + "\nName:" + lmc.gen("Name", max_tokens=40, stop="\n")
    s += "\nBorn:" + lmc.gen("Born", max_tokens=40, stop="\n")
    s += "\nField:" + lmc.gen("Field", max_tokens=40, stop="\n")
    s += "\nCountry:" + lmc.gen("Country", max_tokens=40, stop="\n")
    s += "\nPrize:" + lmc.gen("Prize", max_tokens=40, stop="\n")
    s += "\nLanguage:" + lmc.gen("Language", max_tokens=40, stop="\n")


@lmc.function
def chat3(s, text):
    s += lmc.user(text)
    with s.assistant():
        s += "Name:" + lmc.gen("Name", max_tokens=40, stop="\n")
        s += "\nBorn:" + lmc.gen("Born", max_tokens=40, stop="\n")
        s += "\nField:" + lmc.gen("Field", max_tokens=40, stop="\n")


def record(values=VALUES, fields=FIELDS) -> str:
    return "".join(f"{'' if i == 0 else chr(10)}{name}: {value}" for i, (name, value) in enumerate(zip(fields, values)))


def writer(whole: str):
    """A model that goes on with the record wherever a prompt stops within it."""

    def script(prompt: str) -> str | None:
        at = max((i for i in range(len(whole) + 1) if prompt.endswith(whole[:i])), default=0)
        return whole[at:] + "\n"

    return script


def asked(program, backend, n=1, compiled=True, **options):
    items = [{"text": f"{i}. {TEXT}"} for i in range(n)]
    if compiled:
        return lmc.compile(program).batch(items, backend=backend, temperature=0, **options)
    return [program.run(**item, backend=backend, temperature=0, **options) for item in items]


@pytest.mark.parametrize(("program", "fields", "least"), ((extraction3, 3, 2.8), (extraction6, 6, 5.0)), ids=("3", "6"))
def test_a_model_that_follows_needs_one_call_an_item(openai, program, fields, least):
    model = TextModel(writer(record()))
    one_by_one, _ = openai(model, False, speculate=False)
    backend, server = openai(model, False)
    expected = asked(program, one_by_one, 5)
    states = asked(program, backend, 5)
    for state, other in zip(states, expected):
        assert [state[f] for f in FIELDS[:fields]] == [other[f] for f in FIELDS[:fields]] == [f" {v}" for v in VALUES[:fields]]
        assert state.text() == other.text()
    assert len(server.seen) == 5, "one call an item"
    spent, before = backend.spent(), one_by_one.spent()
    assert before.usage.prompt_tokens / spent.usage.prompt_tokens >= least
    assert spent.speculated == 5 * (fields - 1) and spent.wasted == 0
    assert sum(s.usage.prompt_tokens for s in states) == spent.usage.prompt_tokens
    assert [s.get_meta_info("Born")["speculated"] for s in states] == [True] * 5


def test_a_turn_of_a_chat_is_one_call(openai):
    model = TextModel(writer(record()))
    backend, server = openai(model, True)
    (state,) = asked(chat3, backend)
    assert [state[f] for f in FIELDS[:3]] == [f" {v}" for v in VALUES[:3]]
    assert len(server.seen) == 1 and server.seen[0].body["messages"][-1]["role"] == "user"
    assert state.messages()[-1] == {"role": "assistant", "content": record(VALUES[:3], FIELDS[:3])}


@pytest.mark.parametrize("chat", (False, True), ids=("text", "chat"))
@pytest.mark.parametrize("broken", range(3))
def test_a_model_that_breaks_the_template_costs_at_most_one_call_more(openai, chat, broken):
    fields = [*FIELDS]
    fields[broken] = "Something else"  # what the model writes where the program writes a field
    program = chat3 if chat else extraction3
    model = TextModel(writer(record(fields=fields)))
    one_by_one, _ = openai(model, chat, speculate=False)
    backend, server = openai(model, chat)
    (expected,), (state,) = asked(program, one_by_one), asked(program, backend)
    assert [state[f] for f in FIELDS[:3]] == [expected[f] for f in FIELDS[:3]]
    assert state.text() == expected.text()
    assert len(server.seen) <= 3 + 1
    assert backend.spent().wasted <= 1


def test_a_model_that_says_nothing_of_the_kind_is_asked_gen_by_gen(openai):
    model = TextModel()
    one_by_one, _ = openai(model, False, speculate=False)
    backend, server = openai(model, False)
    (expected,), (state,) = asked(extraction6, one_by_one), asked(extraction6, backend)
    assert state.text() == expected.text() and all(state[f] for f in FIELDS)
    assert len(server.seen) <= 7


@pytest.mark.parametrize("logprobs", (True, False), ids=("tokens listed", "tokens not listed"))
def test_a_limit_holds(openai, logprobs):
    """An answer longer than its max_tokens is asked alone, and is cut there."""

    @lmc.function
    def program(s, text):
        s += text + "\nName:" + lmc.gen("Name", max_tokens=40, stop="\n")
        s += "\nBorn:" + lmc.gen("Born", max_tokens=3, stop="\n")
        s += "\nField:" + lmc.gen("Field", max_tokens=40, stop="\n")

    model = TextModel(writer(record()))
    backend, server = openai(model, False, stand_in={} if logprobs else {"refuses": ("logprobs",)})
    (state,) = asked(program, backend)
    assert state["Born"] == " 18" and state.get_meta_info("Born")["finish_reason"]["type"] == "length"
    assert state["Name"] == " Ada Lovelace"
    assert len([s for s in server.seen if s.reported]) == 3


def test_the_first_answer_is_within_its_limit_too(openai):
    @lmc.function
    def program(s, text):
        s += text + "\nName:" + lmc.gen("Name", max_tokens=5, stop="\n")
        s += "\nBorn:" + lmc.gen("Born", max_tokens=40, stop="\n")

    model = TextModel(writer(record()))
    backend, server = openai(model, False)
    (state,) = asked(program, backend)
    assert state["Name"] == " Ada " and backend.spent().wasted == 1 and len(server.seen) == 3


def test_a_server_that_refuses_so_long_an_answer_is_asked_one_by_one(openai):
    too_large = {"error": {"message": "max_tokens is too large: 131. This model supports at most 100 completion tokens.", "param": "max_tokens"}}
    plant = lambda n, path, body: Planted("status", 400, body=too_large) if body["max_tokens"] > 100 else None
    backend, server = openai(TextModel(writer(record())), False, stand_in={"plant": plant})
    (state,) = asked(extraction3, backend)
    assert [state[f] for f in FIELDS[:3]] == [f" {v}" for v in VALUES[:3]] and len(server.seen) == 4


@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
def test_the_form_of_the_language(openai, compiled):
    """@function(num_api_spec_tokens=…), as SGLang's programs have it."""
    program = lmc.function(extraction3.func, num_api_spec_tokens=80)
    model = TextModel(writer(record()))
    backend, server = openai(model, False)
    (state,) = asked(program, backend, compiled=compiled)
    assert [state[f] for f in FIELDS[:3]] == [f" {v}" for v in VALUES[:3]] and len(server.seen) == 1


@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
def test_the_form_of_the_language_in_a_chat(openai, compiled):
    """As in SGLang's documentation, with a variable read inside of the turn."""

    @lmc.function(num_api_spec_tokens=80)
    def character(s, text):
        s += lmc.user(text)
        with s.assistant():
            s += "Name:" + lmc.gen("Name", max_tokens=40, stop="\n")
            upper = s["Name"].upper()
            s += "\nBorn:" + lmc.gen("Born", max_tokens=40, stop="\n")
        return upper

    backend, server = openai(TextModel(writer(record())), True)
    (state,) = asked(character, backend, compiled=compiled)
    assert (state["Name"], state["Born"], state.ret_value) == (" Ada Lovelace", " 1815", " ADA LOVELACE")
    assert len(server.seen) == 1 and server.seen[0].body["messages"][-1]["role"] == "user"


def test_forks_follow_each_on_their_own(openai):
    @lmc.function(num_api_spec_tokens=60)
    def program(s):
        s += "Q" + lmc.gen("a", max_tokens=9, stop=";")
        forks = s.fork(2)
        for f, tail in zip(forks, ("; x=", "; y=")):
            f += tail + lmc.gen("b", max_tokens=9, stop=";")
        s["seen"] = [f["b"] for f in forks]

    model = TextModel(writer("a1; x=b2; y=c3;"))
    backend, server = openai(model, False)
    assert program.run(backend=backend, temperature=0)["seen"] == ["b2", "a1"]  # where the second fork is, the model begins anew
    assert len(server.seen) == 2 and backend.spent().speculated == 1


def test_a_budget_of_calls_is_for_calls_that_are_asked_one_by_one(openai):
    model = TextModel(writer(record()))
    backend, server = openai(model, False)
    with pytest.raises(lmc.BudgetExceeded):
        asked(extraction3, backend, budget=lmc.Budget(calls=2))
    assert len(server.seen) == 2


def test_streams_see_the_program_s_order(openai):
    model = TextModel(writer(record()))
    backend, _ = openai(model, False)
    state = lmc.compile(extraction3).stream(text="t", backend=backend, temperature=0)
    assert "".join(state.text_iter()) == "t" + "\n" + record(VALUES[:3], FIELDS[:3])


GEN = Gen(SamplingParams(max_new_tokens=8, stop=("\n",), temperature=0))


def rest(whole: str, ended: str = "length", **more) -> Rest:
    return Rest(whole, ended, SamplingParams(temperature=0), **more)


@pytest.mark.parametrize(
    ("given", "parts", "found"),
    (
        (rest(" 1\nB: 2\n"), (" 1\nB:",), " 2"),
        (rest(" 1\nB: 2\n", at=2), ("\nB:",), " 2"),
        (rest(" 1\nB: 2"), (" 1\nB:",), None),  # where it ends has not come
        (rest(" 1\nB: 2", "stop"), (" 1\nB:",), " 2"),  # nothing more to say
        (rest(" 1\nB: 2", "stop", stops=("END",)), (" 1\nB:",), None),  # or the text END, at which this answer goes on
        (rest(" 1\nB: 2", "stop", stops=("\n",)), (" 1\nB:",), " 2"),
        (rest(" 1\nC: 2\n"), (" 1\nB:",), None),
        (rest("B: 123456789\n"), ("B:",), None),  # nobody knows how many tokens this is
        (rest("B: 123456789\n", tokens=("B:", " 1234", "56789", "\n")), ("B:",), " 123456789"),
        (rest("B: \u4e16\u754c\u548c\n"), ("B:",), None),
    ),
)
def test_an_answer_is_taken_only_where_that_is_certain(given, parts, found):
    got = follow(given, parts, GEN, GEN.params.stop)
    assert (got.text if got else None) == found


def test_another_temperature_is_another_request():
    assert follow(rest("a\n"), (), Gen(SamplingParams(max_new_tokens=8, stop=("\n",), temperature=0.5)), ("\n",)) is None


@lmc.function
def triage(s, q):
    s += lmc.user(q)
    (check,) = s.fork(1)
    check += lmc.assistant("") + lmc.user("Hard?") + lmc.assistant(lmc.select("hard", ["yes", "no"]))
    if check["hard"] == "yes":
        s += lmc.assistant(lmc.gen("a", max_tokens=40))
    else:
        s += lmc.assistant(lmc.gen("a", max_tokens=4))
    return s["a"]


def test_both_arms_of_a_decision(openai):
    backend, server = openai(TextModel())
    fast = lmc.compile(triage, backend=backend)
    items = [{"q": q} for q in ("a", "b", "c", "d")]
    expected = [s.ret_value for s in fast.batch(items, temperature=0)]
    assert len(server.seen) == 8 and backend.spent().wasted == 0
    assert [s.ret_value for s in fast.batch(items, temperature=0, speculate="branches")] == expected


def test_equal_greedy_requests_are_one(openai):
    @lmc.function
    def program(s, q):
        s += lmc.user(q)
        for i, f in enumerate(s.fork(3)):
            f += lmc.assistant(lmc.gen("a", max_tokens=9))
            s[f"a{i}"] = f["a"]
        return s["a0"], s["a1"], s["a2"]

    model = TextModel()
    backend, server = openai(model, True)
    fast = lmc.compile(program, backend=backend)
    assert fast("x", temperature=0).ret_value == (model.says("x")[:9],) * 3 and len(server.seen) == 1
    assert len(set(fast("x", temperature=0.9).ret_value)) == 3, "samples are not"


def test_programs_of_many_threads_do_not_mix(openai):
    """One backend, one compiled program, two functions, many threads: each answer is of its own prompt, one call an item."""
    model = TextModel(lambda prompt: writer(record((prompt.partition(".")[0].strip(), *VALUES[1:])))(prompt))
    backend, server = openai(model, False, concurrency=8)
    programs = [lmc.compile(extraction3), lmc.compile(extraction6)]

    def one(i):
        state = programs[i % 2](text=f"{i}. {TEXT}", backend=backend, temperature=0)
        return state["Name"], state["Born"], state.usage.calls

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(24))) == [(f" {i}", " 1815", 1) for i in range(24)]
    assert len(server.seen) == 24 and backend.spent().speculated == 12 * 2 + 12 * 5


def test_token_usage_as_sglang_reads_it(openai):
    """SGLang's own test of `num_api_spec_tokens`."""
    backend, _ = openai(TextModel(writer(record())), False)
    with_spec = lmc.function(num_api_spec_tokens=64)(extraction3.func)
    usage = backend.token_usage
    with_spec.run(text=TEXT, backend=backend).sync()
    ahead = usage.prompt_tokens
    assert usage.completion_tokens > 0 and repr(usage) == f"TokenUsage(prompt_tokens={ahead}, completion_tokens={usage.completion_tokens})"
    usage.reset()
    assert (usage.prompt_tokens, usage.completion_tokens) == (0, 0)
    extraction3.run(text=TEXT, backend=backend).sync()
    assert ahead < usage.prompt_tokens == backend.spent().usage.prompt_tokens - ahead
