"""The examples run: on the mock with made-up answers, and on the small model with sensible ones."""

import importlib
import json
import re
from itertools import product
from pathlib import Path

import pytest

import lmc
from examples.react import calculator
from tests.searching import some

# a program's name, its file and arguments
PROGRAMS = {
    "judge": ("judge", {"essay": "Reading maketh a full man."}),
    "extraction": ("extract", {"text": "Maria Lopez, who is 34, teaches music in Madrid."}),
    "react": ("react", {"question": "What is 12 * 7?"}),
    "tree_of_thought": ("solve", {"question": "How can I learn to swim?"}),
    "self_consistency": ("vote", {"question": "Tom has 3 bags with 4 apples each. How many apples?"}),
    "chat": ("chat", {"questions": ["What is the capital of France?", "And of Italy?"]}),
    "async_tools": ("guide", {"place": "Lisbon"}),
    "durable_research": ("research", {"question": "Which animals sleep the longest?"}),
    "tools": ("helper", {"question": "How warm is it in Rome?"}),
    "classify": ("classify", {"text": "The shoes fit perfectly and look beautiful."}),
}
EXAMPLES = list(PROGRAMS)


def example(name):
    program, arguments = PROGRAMS[name]
    return getattr(importlib.import_module(f"examples.{name}"), program), arguments


def outcome(run):
    """Return what a run shows: return value and text, or the exception (made-up answers may not be JSON)."""
    try:
        state = run()
        return state.ret_value, state.text(), state.messages()
    except Exception as error:
        return type(error).__name__, str(error)


@some(("seed", "name"), product(range(5), EXAMPLES), len(EXAMPLES) + 1)  # another with each seed
def test_interpreted_compiled_and_batch_agree_on_the_mock(name, seed, monkeypatch):
    program, arguments = example(name)
    if name == "durable_research":
        monkeypatch.setattr("examples.durable_research.READING", 0.001)
    options = {"seed": seed}
    interpreted = outcome(lambda: program.run(**arguments, backend=lmc.Mock(), **options))
    compiled = outcome(lambda: lmc.compile(program, backend=lmc.Mock())(**arguments, **options))
    batch = outcome(lambda: lmc.compile(program, backend=lmc.Mock()).batch([arguments], **options)[0])
    assert interpreted == compiled == batch


def test_judge_shares_its_prompt_in_a_batch():
    """32 judges: each unique prompt token is computed once."""
    program, _ = example("judge")
    backend = lmc.Mock()
    items = [{"essay": f"Essay number {i} about {'reading ' * 20}"} for i in range(32)]
    lmc.compile(program, backend=backend).batch(items, temperature=0)
    spent = backend.counters()
    assert spent.prefilled_tokens > 0
    assert spent.prefill_optimality >= 0.99


def test_every_record_of_the_extraction_parses():
    program, _ = example("extraction")
    states = lmc.compile(program, backend=lmc.Mock()).batch([{"text": str(i)} for i in range(40)])
    assert all(set(state.ret_value) == {"name", "age", "city"} for state in states)


@pytest.mark.parametrize("text, value", [
    ("12 * 7", "84"), ("(1 + 2) / 4", "0.75"), ("-3 - -5", "2"), (" 8*40 ", "320"),
])
def test_calculator(text, value):
    assert calculator(text) == value


@pytest.mark.parametrize("text", ["", "1 / 0", "2 ** 9", "__import__('os')", "1 +", "'a' * 3", "f(1)", "x", "(" * 500, "1e999 - 1e999 if 1 else 0"])
def test_calculator_says_what_is_wrong_and_runs_nothing(text):
    assert calculator(text).startswith("error: ")


@pytest.fixture(scope="module")
def engine():
    engine = lmc.Engine("smollm2")
    yield engine
    engine.close()


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("judge", "extraction", "classify")])  # of those see below
def test_compiled_runs_on_the_small_model(name, engine):
    program, arguments = example(name)
    state = lmc.compile(program, backend=engine)(**arguments, temperature=0, seed=0)
    assert state.ret_value is not None
    assert state.usage.calls >= 1


@pytest.mark.model
def test_grade_of_the_judge_is_json(engine):
    program, _ = example("judge")
    essay = "Reading maketh a full man; conference a ready man; and writing an exact man. Histories make men wise."
    answer = lmc.compile(program, backend=engine)(essay=essay, temperature=0).ret_value
    assert answer == "not an essay" or set(json.loads(answer)) == {"grade", "why"}


@pytest.mark.model
def test_extraction_reads_the_facts(engine):
    program, arguments = example("extraction")
    record = lmc.compile(program, backend=engine)(**arguments, temperature=0).ret_value
    assert (record["name"], record["age"], record["city"]) == ("Maria Lopez", 34, "Madrid")


@pytest.mark.model
def test_classification_is_mostly_right(engine):
    classify, _ = example("classify")
    rows = [json.loads(line) for line in importlib.import_module("examples.classify").DATA.read_text().splitlines()]
    states = lmc.compile(classify, backend=engine).batch([{"text": row["text"]} for row in rows])
    assert sum(s.ret_value == row["label"] for s, row in zip(states, rows)) >= 6


def test_the_durable_example_is_killed_and_finished(capsys, monkeypatch):
    module = importlib.import_module("examples.durable_research")
    monkeypatch.setenv("PYTHONPATH", str(Path(lmc.__file__).parent.parent))
    monkeypatch.setenv(module.LOOKED_UP, "")  # put back afterwards
    module.main()
    said = capsys.readouterr().out
    killed, asked, looked_up = (int(n) for n in re.findall(r"in look-up (\d+)|asked (\d+) times|were (\d+) look", said) for n in n if n)
    assert killed >= 4 and asked <= 4 and killed + looked_up in (6, 7)  # the call in which it was killed is made again
