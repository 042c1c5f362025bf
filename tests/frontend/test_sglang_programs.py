"""What SGLang's frontend offers besides programs (those are in the conformance table): bound arguments, the module's functions, `Runtime`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

import lmc as sgl
from tests.conformance.table import TABLE
from tests.conformance.table.sglang import CHARACTER, METHODS, OCTETS, STATEMENTS

few_shot_qa, mt_bench_turns, decode_int, ip_address, json_by_one_regex, json_by_schema, every_dtype, at_least = (
    TABLE[name].program
    for name in (
        "few_shot_qa", "mt_bench_turns", "decode_int", "ip_address", "json_by_one_regex", "json_by_schema", "every_dtype", "at_least",
    )
)  # fmt: skip


def test_each_method_says_what_it_compared():
    keys = {}
    for method in ("length", "greedy", "unconditional"):
        state = TABLE[f"true_or_false_{method}"].program.run(statement="x", backend=sgl.Mock())
        keys[method] = set(state.get_meta_info("answer"))
        assert state["answer"] in ("True", "False", "Unknown")
        assert keys[method] >= {"normalized_prompt_logprobs", "input_token_logprobs"}
    assert "greedy_logprob_matrix" in keys["greedy"]
    assert "normalized_unconditional_prompt_logprobs" in keys["unconditional"]


def test_constrained_answers_are_of_their_language():
    mock = sgl.Mock()
    sgl.set_default_backend(mock)
    try:
        assert all(re.fullmatch(r"[-+]?[0-9]+", decode_int()[name]) for name in ("hours", "days"))
        assert re.fullmatch(OCTETS, ip_address()["answer"])
        assert re.fullmatch(CHARACTER, json_by_one_regex("Ann")["json_output"])
        assert set(json.loads(json_by_schema(q="x")["json_output"])) == {"city", "n"}
        state = every_dtype()
        int(state["int_res"]), float(state["float_res"]), int(state["named"])
        assert state["bool_res"] in ("True", "False")
        assert re.fullmatch(sgl.REGEX_STR, state["str_res"]) or "\n" in mock.call_log[-5].ask.params.stop
        state["int_res"] = int(state["int_res"])
        assert type(state["int_res"]) is int
    finally:
        sgl.set_default_backend(None)


def test_min_tokens():
    state = at_least.run(q="x", backend=sgl.Mock())
    assert state.get_meta_info("answer")["completion_tokens"] >= 64


def texts(states: Any) -> list[str]:
    return [state.text() for state in states]


def test_bound_arguments_by_run_batch_trace_and_cache():
    @sgl.function
    def ask(s, prompt, question):
        s += prompt
        s += "Q: Which river runs through London?\nA: The Thames\n"
        s += "Q: " + question + "\nA:" + sgl.gen("answer", stop="\n")

    mock = sgl.Mock()
    bound = ask.bind(prompt="Answer as a child would.\n")
    given = ask.run("Answer as a child would.\n", "x", backend=mock, seed=1)
    assert bound.run(question="x", backend=mock, seed=1).text() == given.text()
    (one,) = bound.run_batch([{"question": "x"}], backend=mock)
    assert one.text().startswith("Answer as a child would.\nQ: Which")

    shown = str(bound.trace())
    assert bound.trace().last_node.print_graph_dfs() == shown
    assert "graph @ask(%question: any)" in shown
    assert '%c1 = append(%c0, "Answer as a child would.\\n")' in shown
    assert "gen(%c" in str(ask.trace(question="y"))

    cached = sgl.Mock()
    bound.cache(cached)
    prefix = "Answer as a child would.\nQ: Which river runs through London?\nA: The Thames\n"
    assert cached.counters().prefilled_tokens == len(prefix)
    bound.run(question="x", backend=cached).sync()
    assert cached.counters().prefilled_tokens == len(prefix + "Q: x\nA:")


def test_cache_computes_roles_by_the_backend_s_template():
    mock = sgl.Mock()
    mt_bench_turns.cache(mock)
    before = mock.counters().prefilled_tokens
    state = mt_bench_turns.run(question_1="Describe a lighthouse.", question_2="Now as a haiku.", backend=mock)
    state["answer_1"]
    text = state.text()
    known = text[: text.index("Describe")]
    assert before == len(known.replace("<|im_start|>", "!").replace("<|im_end|>", "!"))  # each is one token


# -- the module ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_default():
    sgl.set_default_backend(None)
    yield
    sgl.set_default_backend(None)


def test_cache_and_info_of_no_backend_make_none(no_default):
    assert sgl.flush_cache() is False
    assert sgl.get_server_info() is None
    assert sgl.global_config.default_backend is None


def test_cache_and_info_of_a_backend(no_default):
    mock = sgl.Mock()
    sgl.set_default_backend(mock)
    few_shot_qa.run(question="x").sync()
    computed = mock.counters().prefilled_tokens
    assert sgl.global_config.default_backend is mock
    assert sgl.get_server_info() == sgl.get_server_info(mock) == {"name": "mock", "tokenizer": "bytes", "calls": 1}
    few_shot_qa.run(question="x").sync()
    assert mock.counters().prefilled_tokens == computed  # cached
    assert sgl.flush_cache(empty_cache=False) is True
    few_shot_qa.run(question="x").sync()
    assert mock.counters().prefilled_tokens == 2 * computed


def test_global_config_is_lmc_s(no_default):
    mock = sgl.Mock()
    sgl.global_config.default_backend = mock
    assert few_shot_qa.run(question="x").emitter.run.backend is mock
    assert sgl.global_config.verbosity == 0
    sgl.global_config.enable_parallel_encoding = False  # without effect: text is what it is
    with pytest.raises(sgl.UnsupportedOpError, match=r"verbosity = 2: print\(state"):
        sgl.global_config.verbosity = 2
    with pytest.raises(AttributeError, match=r"lmc\.config"):
        sgl.global_config.verbose = 1


# -- on the small model ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tiny_smollm2):
    engine = sgl.Runtime(model_path=tiny_smollm2, max_total_tokens=4096, log_level="error")
    yield engine
    engine.check()
    engine.shutdown()


ON_THE_MODEL = {
    "few_shot_qa": {},
    "gen_with_choices": {"temperature": 0, "max_new_tokens": 8},
    "decode_int": {"temperature": 0, "max_new_tokens": 8},
    "ip_address": {"max_new_tokens": 24},
    "every_dtype": {"temperature": 0, "max_new_tokens": 8},
    "tips_of_two_forks": {"temperature": 0, "max_new_tokens": 8},
    "group_appends": {"temperature": 0},
}


@pytest.mark.model
@pytest.mark.parametrize("name", ON_THE_MODEL)
def test_the_model_says_the_same_in_every_execution(small, name):
    program, options = TABLE[name].program, {"seed": 1, **ON_THE_MODEL[name], "backend": small}
    items = TABLE[name].variants[0][0][:2]
    expected = [program.run(**item, **options) for item in items]
    fast = sgl.compile(program)
    for states in ([fast(**item, **options) for item in items], fast.batch(items, **options)):
        assert texts(states) == texts(expected)
        assert [set(s.variables) for s in states] == [set(s.variables) for s in expected]


@pytest.mark.model
def test_what_the_model_must_obey(small):
    sgl.set_default_backend(small)
    try:
        assert re.fullmatch(OCTETS, ip_address(max_new_tokens=24)["answer"])
        hours = decode_int(temperature=0, max_new_tokens=8)
        assert int(hours["hours"]) and int(hours["days"])
        state = at_least(q="The capital of France?", temperature=0)
        assert state.get_meta_info("answer")["completion_tokens"] >= 64
        json.loads(json_by_schema(q="The city of Lisbon as JSON: ", temperature=0)["json_output"])
        for method in METHODS:
            assert TABLE[f"true_or_false_{method}"].program(**STATEMENTS[0])["answer"] in ("True", "False", "Unknown")
        stream = few_shot_qa(question="Which river runs through Paris?", stream=True)
        pieces = list(stream.text_iter("answer"))
        assert "".join(pieces) == stream["answer"] and len(pieces) > 1
    finally:
        sgl.set_default_backend(None)


@pytest.mark.model
def test_cache_keeps_the_prefix_on_the_model(small):
    sgl.flush_cache(small)
    few_shot_qa.cache(small)
    state = few_shot_qa.run(question="Which river runs through Rome?", backend=small, max_new_tokens=4)
    assert state.get_meta_info("answer")["cached_tokens"] > 30


def test_runtime_refuses_what_it_has_not():
    with pytest.raises(sgl.UnsupportedOpError, match=r"dp_size=2.*Engine\(dp"):
        sgl.Runtime(model_path="nowhere.gguf", dp_size=2)
    with pytest.raises(sgl.ArgumentError, match="did you mean 'max_running_requests'"):
        sgl.Runtime(model_path="nowhere.gguf", max_running_request=2)
    with pytest.raises(sgl.ProgramError, match="no chat template 'vicuna'"):
        sgl.Runtime(model_path="nowhere.gguf", chat_template="vicuna")


SCRIPT = """
import lmc as sgl

@sgl.function
def multi_turn(s, question_1, question_2):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(question_1)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=12))
    s += sgl.user(question_2)
    s += sgl.assistant(sgl.gen("answer_2", max_tokens=12))

def single():
    state = multi_turn.run(question_1="What is the capital of France?", question_2="List two rivers.", temperature=0)
    for m in state.messages():
        print(m["role"], ":", m["content"])
    print("answer_1", state["answer_1"])

def stream():
    state = multi_turn.run(question_1="What is the capital of France?", question_2="List two rivers.", temperature=0, stream=True)
    for out in state.text_iter():
        print(out, end="", flush=True)

def batch():
    states = multi_turn.run_batch([
        {"question_1": "What is the capital of France?", "question_2": "List two rivers."},
        {"question_1": "What is the capital of Japan?", "question_2": "List two foods."},
    ], temperature=0, num_threads=2)
    for s in states:
        print(s.messages()[-1])

if __name__ == "__main__":
    runtime = sgl.Runtime(model_path="smollm2", max_total_tokens=2048, port=30000, tp_size=1, mem_fraction_static=0.8)
    runtime.endpoint.chat_template = sgl.get_chat_template("chatml")
    sgl.set_default_backend(runtime)
    single()
    stream()
    batch()
    print(sgl.get_server_info(runtime.endpoint)["model"], sgl.flush_cache())
    runtime.cache_prefix("You are a helpful assistant.")
    print(len(runtime.get_tokenizer().encode("Hello there")))
    runtime.shutdown()
"""


@pytest.mark.model
def test_a_whole_script_runs(tmp_path):
    """Launch a runtime, a run, a stream, a batch, shut down; only the import differs from what it was written for."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stdout.count("assistant") >= 2 + 2 + 2  # of the run, the stream's template, the batch
