"""The surface of the language: what exists under which name with which parameters, and what a user's mistakes are answered with."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import string
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

import lmc
from lmc import Mock, gen, select
from lmc.backend.mock import CAPABILITIES
from lmc.frontend import typed
from lmc.frontend.options import PROGRAM_OPTIONS, RUN_OPTIONS
from lmc.frontend.state import StateGroup

TEXT_ONLY = replace(CAPABILITIES, images=False)

# -- names, parameters, defaults -------------------------------------------------------------------------------------

SAMPLING = (
    "max_new_tokens=128, n=1, stop=None, stop_token_ids=None, stop_regex=None, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, "
    "frequency_penalty=0.0, presence_penalty=0.0, ignore_eos=False, return_logprob=None, logprob_start_len=None, "
    "top_logprobs_num=None, return_text_in_logprobs=None"
)
GEN = (
    "name=None, max_tokens=None, {min_tokens}n=None, stop=None, stop_token_ids=None, stop_regex=None, temperature=None, top_p=None, "
    "top_k=None, min_p=None, frequency_penalty=None, presence_penalty=None, ignore_eos=None, return_logprob=None, "
    "logprob_start_len=None, top_logprobs_num=None, return_text_in_logprobs=None"
)
WHAT_IS_THERE: dict[Any, str] = {
    lmc.function: "func=None, num_api_spec_tokens=None",
    lmc.gen: GEN.format(min_tokens="min_tokens=None, ") + ", dtype=None, choices=None, choices_method=None, regex=None, json_schema=None, json_whitespace=None, strict=None, "
    "ebnf=None, lark=None, structural_tag=None, seed=None, logit_bias=None, tools=None, adapter=None",
    lmc.gen_int: GEN.format(min_tokens=""),
    lmc.gen_string: GEN.format(min_tokens=""),
    lmc.select: "name=None, choices=None, temperature=0.0, choices_method=token_length_normalized, adapter=None",
    lmc.video: "path, num_frames=None, fps=None",
    lmc.system: "expr=omitted",
    lmc.user: "expr=omitted",
    lmc.assistant: "expr=omitted",
    **dict.fromkeys((lmc.system_begin, lmc.system_end, lmc.user_begin, lmc.user_end, lmc.assistant_begin, lmc.assistant_end), ""),
    lmc.separate_reasoning: "expr=None, model_type=None",
    lmc.special: "text",
    lmc.set_default_backend: "backend",
    lmc.flush_cache: "backend=None, empty_cache=True",
    lmc.get_server_info: "backend=None",
    lmc.get_chat_template: "name",
    lmc.register_chat_template: "template",
    lmc.Function.trace: "self, *, backend=None, **kwargs",
    lmc.Function.cache: "self, backend=None",
    lmc.Function.bind: "self, **kwargs",
    lmc.State.fork: "self, size=1, position_ids_offset=None",
    lmc.State.copy: "self, position_ids_offset=None",
    lmc.State.var_scope: "self, name",
    lmc.State.system: "self, expr=omitted",
    lmc.State.user: "self, expr=omitted",
    lmc.State.assistant: "self, expr=omitted",
    lmc.State.text_iter: "self, var_name=None",
    lmc.State.text_async_iter: "self, var_name=None, return_meta_data=False",
    lmc.State.get_meta_info: "self, name",
    lmc.State.get_var: "self, name",
    lmc.State.set_var: "self, name, value",
    **dict.fromkeys((lmc.State.text, lmc.State.messages, lmc.State.sync, lmc.State.error), "self"),
    StateGroup.join: "self, mode='gather_variable'",
}


def written(parameter: inspect.Parameter) -> str:
    text = str(parameter.replace(annotation=parameter.empty))
    return re.sub(r"<ChoicesMethod\.\w+: '(\w+)'>", r"\1", text)


@pytest.mark.parametrize("fn", WHAT_IS_THERE, ids=lambda f: f.__qualname__)
def test_parameters_and_defaults(fn):
    signature = inspect.signature(fn)
    star = False
    found: list[str] = []
    for p in signature.parameters.values():
        if p.name == "unknown":
            continue  # takes misspelled names, to say what was meant
        if p.kind is p.KEYWORD_ONLY and not star:
            found, star = [*found, "*"], True
        found.append(written(p))
    assert ", ".join(found) == WHAT_IS_THERE[fn]


@pytest.mark.parametrize(
    ("method", "own"),
    [
        (lmc.Function.run, "stream=False, backend=None, use_thread=True, seed=None"),
        (lmc.Function.run_batch, "backend=None, num_threads='auto', progress_bar=False, generator_style=False, errors='raise'"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_options_of_runs_and_their_defaults(method, own):
    """All by name, so their order means nothing."""
    parameters = inspect.signature(method).parameters
    options = {written(p) for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    assert set(f"{SAMPLING}, {own}".split(", ")) <= options


def test_type_checkers_know_every_option():
    """Of a call each has an overload, for `fn.options` each is a key."""
    tree = ast.parse(Path(typed.__file__).read_text())
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not (node.name == "Call" and len(node.body) < 3)}
    keys = {node.target.id for node in classes["RunOptions"].body if isinstance(node, ast.AnnAssign)}
    overloads = {arg.arg for node in classes["Call"].body if isinstance(node, ast.FunctionDef) for arg in node.args.kwonlyargs}
    assert keys == RUN_OPTIONS and overloads == PROGRAM_OPTIONS
    assert {name for name in inspect.signature(lmc.Function.options).parameters if name != "self"} == RUN_OPTIONS


def test_defaults_are_the_ones_that_are_shown():
    mock = Mock()
    lmc.function(lambda s: s.__iadd__(gen("x"))).run(backend=mock).sync()
    params = mock.call_log[0].params
    for name, parameter in inspect.signature(lmc.Function.run).parameters.items():
        if hasattr(params, name):
            assert (getattr(params, name) or None) == (parameter.default or None), name


MODULE = (
    "Anthropic Engine LiteLLM Mock OpenAI Runtime RuntimeEndpoint SGLang VLLM assistant compile config flush_cache function gen gen_int "
    "gen_string get_chat_template get_server_info global_config image register_chat_template select separate_reasoning "
    "set_default_backend special system user video REGEX_INT REGEX_FLOAT REGEX_BOOL REGEX_STR"
).split()


def test_a_parameter_may_be_called_self():
    @lmc.function
    def named(s: Any, self: str) -> Any:
        s += self + lmc.gen("x", max_tokens=2)
        return s["x"]

    backend = lmc.Mock()
    program = lmc.compile(named, backend=backend)
    found = [named.run(self="a", backend=backend), named.bind(self="a").run(backend=backend), program(self="a"), program.stream(self="a")]
    assert len({state["x"] for state in found}) == 1 and "%self" not in program.lower(self="a").dump_ir()


def test_the_module_has_its_names():
    for name in MODULE:
        try:
            getattr(lmc, name)
        except lmc.UnsupportedOpError:
            pass  # a backend of a later version says so


@pytest.mark.parametrize(
    ("regex", "yes", "no"),
    [
        (lmc.REGEX_INT, ["0", "-12", "+3 \n "], ["1.5", "", "x"]),
        (lmc.REGEX_FLOAT, ["0", "-1.5", ".5\n"], ["1.", "e5"]),
        (lmc.REGEX_BOOL, ["True", "False"], ["true", "1"]),
        (lmc.REGEX_STR, ['""', '"a b 1"'], ["a", '"a.b"']),
    ],
)
def test_regexes_of_dtypes(regex, yes, no):
    assert all(re.fullmatch(regex, text) for text in yes)
    assert not any(re.fullmatch(regex, text) for text in no)


# -- what an answer may be -------------------------------------------------------------------------------------------


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high (9+)"


class City(pydantic.BaseModel):
    name: str
    size: int


def answered(**given: Any) -> tuple[str, Any]:
    """The value of one answer of the mock, and what was asked for."""
    mock = Mock()

    @lmc.function
    def program(s):
        s += "x: " + gen("x", max_tokens=200, **given)
        return s["x"]

    interpreted = program.run(backend=mock, temperature=0)
    assert lmc.compile(program)(backend=Mock(), temperature=0).ret_value == interpreted.ret_value
    return interpreted.ret_value, mock.call_log[0]


@pytest.mark.parametrize(("dtype", "stops"), [(int, (" ", "\n")), (float, (" ", "\n")), (bool, ()), (str, ())])
def test_dtypes_constrain_and_stop_and_stay_text(dtype, stops):
    value, call = answered(dtype=dtype)
    assert isinstance(value, str)
    assert call.constraint.source == getattr(lmc, f"REGEX_{dtype.__name__.upper()}")
    assert call.params.stop == stops
    own, call = answered(dtype=dtype, stop=";")
    assert isinstance(own, str) and call.params.stop == (";", *stops)
    assert answered(dtype=dtype.__name__)[1].constraint == call.constraint


def test_other_dtypes():
    assert answered(dtype=Literal["a", 7])[0] in ("a", "7")
    assert answered(dtype=Level)[0] in ("low", "high (9+)")
    assert City.model_validate_json(answered(dtype=City)[0])


@pytest.mark.parametrize("schema", [City, City.model_json_schema(), json.dumps(City.model_json_schema())], ids=("model", "dict", "text"))
def test_schemas_in_every_form(schema):
    value, call = answered(json_schema=schema)
    assert City.model_validate_json(value)
    assert json.loads(call.constraint.source) == City.model_json_schema()


def test_ids_regexes_and_log_probabilities():
    _, call = answered(stop_token_ids=[3, 4], stop_regex="a+", ignore_eos=True, min_tokens=2, logit_bias={5: -1.5}, seed=9)
    assert (call.params.stop_token_ids, call.params.stop_regex, call.params.ignore_eos) == ((3, 4), ("a+",), True)
    assert (call.params.min_new_tokens, call.params.logit_bias) == (2, ((5, -1.5),))

    @lmc.function
    def program(s):
        s += "x" + gen("x", max_tokens=3, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True)

    for state in (program.run(backend=Mock()), lmc.compile(program)(backend=Mock())):
        meta = state.get_meta_info("x")
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 3
        assert all(logprob <= 0 and isinstance(text, str) for logprob, _, text in meta["output_token_logprobs"])
        assert [len(tops) for tops in meta["output_top_logprobs"]] == [2, 2, 2]


# -- not copied from SGLang ------------------------------------------------------------------------------------------


def both(program: Any) -> list[Any]:
    """How to call a program: interpreted, and compiled."""
    return [program.run, lmc.compile(program)]


def test_a_fork_computes_the_prefix_once():
    @lmc.function
    def program(s):
        s += "a long beginning "
        forks = s.fork(3)
        forks += gen("x", max_tokens=1)
        forks.join()

    for call in both(program):
        mock = Mock()
        assert len(call(backend=mock)["x"]) == 3
        assert mock.counters().prefilled_tokens == len("a long beginning ")


def test_no_run_before_the_runs_of_a_batch():
    seen: list[Any] = []

    @lmc.function
    def program(s, q):
        seen.append(q)
        s += q + gen("x")

    items = [{"q": "a"}, {"q": "b"}]
    for run in (program.run_batch, lmc.compile(program).batch):
        seen.clear()
        run(items, backend=Mock())
        assert sorted(seen) == ["a", "b"]


@pytest.mark.parametrize("method", list(lmc.ChoicesMethod))
def test_select_scores_the_choice_s_own_tokens_by_every_method(method):
    @lmc.function
    def program(s):
        s += "prompt" + select("x", ["no", "yes", "maybe"], choices_method=method)

    for call in both(program):
        meta = call(backend=Mock()).get_meta_info("x")
        assert [len(scored) for scored in meta["input_token_logprobs"]] == [2, 3, 5]  # the mock's tokens are bytes
        for mean, scored in zip(meta["normalized_prompt_logprobs"], meta["input_token_logprobs"], strict=True):
            assert mean == pytest.approx(sum(logprob for logprob, _, _ in scored) / len(scored))


def test_nothing_hangs_after_an_error():
    @lmc.function
    def program(s):
        s += "q" + gen("x")
        for _ in range(20):
            s += "more"
        forks = s.fork(2)
        forks += gen("y")
        forks.join("concate_and_append")

    for call in both(program):
        with pytest.raises(lmc.BackendError, match="down"):
            call(backend=Mock(fault=lambda ask, _: lmc.BackendError("down"))).text()


def test_speculated_variables_are_never_empty_and_can_be_read_inside_a_message():
    @lmc.function(num_api_spec_tokens=32)
    def program(s):
        s += lmc.user("A character.")
        with s.assistant():
            s += "Name:" + gen("name", stop="\n", max_tokens=8)
            upper = s["name"].upper()
            s += "\nAlias: " + upper + "\nJob:" + gen("job", stop="\n", max_tokens=16)
        return upper

    for call in both(program):
        state = call(backend=Mock(answers={"name": " Ada", "job": " countess"}))
        assert (state["name"], state["job"], state.ret_value) == (" Ada", " countess", " ADA")


def test_a_state_may_have_several_images_as_far_as_the_model_takes_any():
    @lmc.function
    def program(s, picture):
        s += "before"
        s += lmc.user(lmc.image("a.png") + "or" + lmc.image(picture)) + gen("x")

    for call in both(program):
        mock = Mock(capabilities=TEXT_ONLY)
        with pytest.raises(lmc.UnsupportedOpError, match="image input") as caught:
            call(picture=b"png", backend=mock)
        assert caught.value.loc.file == __file__
        assert mock.call_log == []


# -- mistakes --------------------------------------------------------------------------------------------------------


def wrong_name(s, x):
    s += "q" + gen("answer")
    return s["anwser"]  # no variable 'anwser'; there are: 'answer'; did you mean 'answer'?


def wrong_name_of_meta(s, x):
    s += "q" + gen("answer")
    return s.get_meta_info("anwser")  # no variable 'anwser'; there are: 'answer'; did you mean 'answer'?


def meta_of_what_was_set(s, x):
    s["x"] = 3
    return s.get_meta_info("x")  # 'x' was not generated, so it has no meta info


def role_in_role(s, x):
    s += lmc.user_begin() + lmc.assistant("x")  # cannot open an assistant message inside the open user message; close that one first


def role_not_open(s, x):
    s += lmc.user_end()  # cannot close a user message: no message is open


def role_of_another(s, x):
    s += lmc.user_begin() + x + lmc.assistant_end()  # cannot close an assistant message: the open message is the user's


def a_message_as_a_block(s, x):
    with s.user("q"):  # a message that is given its content is complete; for a block, write `with s.user():`
        s += "more"


def a_number(s, x):
    s += 3  # cannot append an int, only text and expressions; write str(x)


def a_template(s, x):
    s += string.Template("$x?")  # cannot append a Template, only text and expressions; make it text: f"…" in place of t"…", or its substitute(…) or render(…)


def a_copy_without_a_block(s, x):
    f = s.copy()
    f += x + gen("a")  # cannot concatenate a _GeneratorContextManager, only text and expressions; it is for a block: with s.copy() as f: …, with s.user(): …; a fork for later lines is (f,) = s.fork(1)


def nothing(s, x):
    s += None  # cannot append None; did a function forget to return its expression, or is a field empty?


def nothing_in_a_message(s, x):
    s += lmc.user(None)  # cannot concatenate None; did a function forget to return its expression, or is a field empty?


def nothing_as_a_message(s, x):
    s.user(None)  # cannot append None; did a function forget to return its expression, or is a field empty?


def a_list(s, x):
    s += lmc.user(["a"])  # cannot concatenate a list, only text and expressions; join it first: "\n".join(items)


def a_message_of_an_api(s, x):
    s += lmc.user({"role": "user", "content": x})  # cannot concatenate a dict, only text and expressions; append the content of each message in its role: lmc.user(m["content"])


def messages_of_an_api(s, x):
    s += [{"role": "user", "content": x}]  # cannot append a list, only text and expressions; append the content of each message in its role


def gen_itself(s, x):
    s += gen  # cannot append a function, only text and expressions; call it


def a_state(s, x):
    s += s.fork(1)[0]  # cannot append a State, only text and expressions; to append to it write s += …; its text is other.text() or other["name"]


def the_group(s, x):
    s += s.fork(2)  # cannot append a StateGroup, only text and expressions; append their answers: "\n".join(f["name"] for f in forks)


def an_expression_in_an_fstring(s, x):
    s += f"A {gen('answer')}"  # an expression is not text and cannot be put into an f-string; concatenate it: "…" + lmc.gen(…)


def an_expression_with_a_value_in_an_fstring(s, x):
    s += f"A {gen('answer', stop=x)}"  # an expression is not text


def an_expression_as_text(s, x):
    gen("answer").strip()  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]; it has no attribute 'strip'


def an_expression_compared_with_text(s, x):
    return gen("answer") == "yes"  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]; it equals no text and no number


def text_compared_with_a_sum(s, x):
    return "A" + gen("answer") != "A"  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]; it equals no text and no number


def an_expression_among_texts(s, x):
    return select("answer", ["yes"]) in ("yes", "no")  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]; it equals no text and no number


def an_expression_made_text(s, x):
    s += str(gen("answer"))  # an expression is not text, and str() cannot make it one; concatenate it: "…" + lmc.gen(…)


def an_expression_among_texts_that_are_joined(s, x):
    s += " ".join(map(str, [x, gen("answer")]))  # an expression is not text, and str() cannot make it one


def a_sum_without_an_assignment(s, x):
    s + gen("answer")  # a state is no text: append to it in place, with s += …


def a_state_and_text(s, x):
    s + x  # a state is no text: append to it in place, with s += …


def text_and_a_state(s, x):
    return "Answer: " + s  # a state is no text: append to it in place, with s += …; read an answer with s['name'], what its program returned with s.ret_value


def a_state_as_its_result(s, x):
    return s.fork(1)[0].strip()  # 'State' object has no attribute 'strip'; the program's result is s.ret_value, and an answer s['name']


def an_expression_that_is_not_appended(s, x):
    lmc.gen("a", max_tokens=3)
    return s["a"]  # no variable 'a'; there is none yet; s += lmc.gen('a', …) makes one


def a_variable_of_a_fork(s, x):
    for fork in s.fork(2):
        fork["a"] = x
    return s["a"]  # no variable 'a'; there is none yet; those of a fork are its own until forks.join()


def an_expression_instead_of_the_state(s, x):
    s = x + lmc.gen("a", max_tokens=3)
    return s["a"]  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]


def a_choice_as_a_condition(s, x):
    if select("a", ["yes", "no"]):  # it is neither true nor false (whether there is one: `is not None`)
        s += x


def a_gen_as_a_condition(s, x):
    while not gen("a"):  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]; it is neither true nor false
        s += x


def a_state_compared_with_text(s, x):
    return s == "yes"  # a state equals no text: read an answer with s['name'], what its program returned with s.ret_value


def text_looked_for_among_states(s, x):
    return "yes" in [s.ret_value, s]  # what its program returned with s.ret_value; if it may be either, ask isinstance(x, lmc.State) first


def an_expression_as_a_variable(s, x):
    s["a"] = gen("a")  # s['a'] = … stores a value, and asks nothing; append the expression, which names it: s += lmc.gen('a', …)


def a_primitive_as_a_method(s, x):
    s.select("a", ["yes", "no"])  # 'State' object has no attribute 'select'; append the expression: s += lmc.select(…)


def append_as_a_method(s, x):
    s.append(x)  # 'State' object has no attribute 'append'; text and expressions are appended with s += …


def a_role_as_a_block(s, x):
    with lmc.user():  # an expression is no block: a message around one is written `with s.user():`
        s += x


def a_variable_as_an_attribute(s, x):
    s += s.answers  # 'State' object has no attribute 'answers'; a variable is read as s['answers']


def an_attribute_of_nothing_like_it(s, x):
    s += s.answer  # 'State' object has no attribute 'answer'; a variable is read as s['answer']


def a_misspelled_method(s, x):
    s.asistant(x)  # 'State' object has no attribute 'asistant'; did you mean 'assistant'?


def a_deleted_variable(s, x):
    del s["x"]  # a state's variables cannot be deleted; to clear one write s['x'] = None


def an_order_of_expressions(s, x):
    sorted([x, "b"], key=lambda a: gen("score"))  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]


def an_item_of_an_expression(s, x):
    ("A" + gen("answer"))["answer"]  # an expression is no answer: append it (s += …), which asks the model, then read s["name"]


def a_name_of_all_forks(s, x):
    s.fork(2)["answer"]  # forks are numbered, and each has its own variables; write [f['answer'] for f in forks]


def an_object_as_a_type(s, x):
    s += gen("c", dtype=["yes", "no"])  # dtype=['yes', 'no']: not supported; use one of int, float


def text_as_tools(s, x):
    s += gen("c", tools="search")  # gen(tools=…) takes a list of functions, not 'search'


def no_choices(s, x):
    s += select("c", choices=[])  # select(choices=[]): there is nothing to choose from


def one_text_as_choices(s, x):
    s += select("c", x)  # select(choices=…) takes a list of strings, not 'text'


def no_list_of_choices(s, x):
    s += select("c")  # select(choices=…) takes a list of strings, not None


def a_set_of_choices(s, x):
    s += select("c", {"a", "b"})  # select(choices=…) takes a list of strings: a set has another order in each process; write sorted(…)


def unknown_method(s, x):
    s += select("c", ["a"], choices_method="best")  # one of token_length_normalized, greedy_token_selection, unconditional


def ignored(s, x):
    s += gen("c", choices=["a"], max_tokens=3)  # gen(choices=…) is a select and would ignore max_tokens=; leave it out


def two_constraints(s, x):
    s += gen("c", regex="a", dtype=int)  # an answer has one constraint; leave one out


def misspelled(s, x):
    s += gen("c", max_token=3)  # gen() has no parameter 'max_token'; did you mean 'max_tokens'?


def bad_regex(s, x):
    s += gen("c", regex="(")  # regex='(' is not a valid regular expression: missing ), unterminated subpattern at position 0


def regex_from_an_argument(s, x):
    s += gen("c", regex=x + "(")  # regex='text(' is not a valid regular expression


def number_from_an_argument(s, x):
    s += gen("c", max_tokens=x)  # max_tokens='text': must be a whole number


def schema_of_no_kind(s, x):
    s += gen("c", json_schema=3)  # json_schema=3: must be JSON text, a dict or a pydantic model


def schema_that_is_no_json(s, x):
    s += gen("c", json_schema="{")  # json_schema=… is not valid JSON


def unknown_dtype(s, x):
    s += gen("c", dtype="integer")  # dtype='integer': not supported; use one of int, float, bool, str, a Literal, an Enum, a pydantic model


def too_few_tokens(s, x):
    s += gen("c", min_tokens=8, max_tokens=4)  # min_tokens=8 is more than max_tokens=4


def unknown_family(s, x):
    s += lmc.separate_reasoning(gen("c"), model_type="qwen4")  # no such family; did you mean 'qwen3'?


def forks_of_less(s, x):
    s.fork(-1)  # fork(-1): cannot make fewer than 0 copies


def forks_of_far_more(s, x):
    s.fork(2**70)  # cannot make more than 1,000,000 copies


def forks_of_text(s, x):
    s.fork(x)  # fork() takes a number of copies, not 'text'


def join_of_no_kind(s, x):
    s.fork(2).join("append")  # join('append'): must be 'gather_variable' or 'concate_and_append'


def two_for_three(s, x):
    forks = s.fork(3)
    forks += ["a", "b"]  # 2 items for 3 forks


def image_for_a_text_model(s, x):
    s += lmc.image(x)  # mock does not support image input: use a vision-language model


def video_for_a_text_model(s, x):
    s += lmc.video(x, 4)  # mock does not support video input: use a vision-language model


@lmc.function
def child(s, tip):
    s += tip + gen("x")


def sub_program_with_a_wrong_name(s, x):
    child(tipp=x)  # has no parameter 'tipp'; did you mean 'tip'?


def sub_program_with_a_wrong_option(s, x):
    child(tip=x, max_tokens=3)  # has no parameter 'max_tokens'; did you mean 'max_new_tokens'?


def sub_program_without_its_argument(s, x):
    child()  # missing a required argument: 'tip'


async def look_up(topic):
    return topic


def a_coroutine(s, x):
    s += look_up(x)  # cannot append a coroutine, only text and expressions; await it, in an `async def` program


def the_sub_program_itself(s, x):
    s += child  # cannot append a Function, only text and expressions; call it, and append its answer: child(…)["name"]


MISTAKES = [v for v in list(globals().values()) if inspect.isfunction(v) and list(inspect.signature(v).parameters) == ["s", "x"]]


@pytest.mark.filterwarnings("ignore:coroutine 'look_up' was never awaited")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_a_mistake_is_answered_at_its_line_in_both_executions(mistake):
    lines, first = inspect.getsourcelines(mistake)
    at, says = next((first + i, line.partition("  # ")[2].strip()) for i, line in enumerate(lines) if "  # " in line)
    messages = []
    for call in both(lmc.function(mistake)):
        mock = Mock(capabilities=TEXT_ONLY)
        with pytest.raises((lmc.LmcError, KeyError)) as caught:
            call(x="text", backend=mock)
        messages.append(str(caught.value))
        assert caught.value.__context__ is None or caught.value.__suppress_context__  # no error from inside of lmc is shown beside it
        assert says in messages[-1].splitlines()[0]  # below it stands the line, with what it says
        assert f"{__file__}:{at}: " in messages[-1]
        assert [c.ask.name for c in mock.call_log] in ([], ["answer"])  # before the model is asked
    assert messages[0] == messages[1]


@lmc.function
def program(s, question, n=3):
    s += question + gen("answer", max_tokens=n)


CALLS: list[tuple[Any, str]] = [
    (lambda: program.run("a", tempreature=1), "has no parameter 'tempreature'; did you mean 'temperature'?"),
    (lambda: program.run("a", max_tokens=1), "did you mean 'max_new_tokens'?"),
    (lambda: program.run(qestion="a"), "has no parameter 'qestion'; did you mean 'question'?"),
    (lambda: program.run(), "missing a required argument: 'question'"),
    (lambda: program.run("a", 1, 2), "too many positional arguments"),
    (lambda: program.run("a", backend="gpt-4"), "no model 'gpt-4': there is no such file or folder"),
    (lambda: program.run("a", backend=4), "backend=4: a backend such as lmc.Engine() or its name, such as 'mock', not int"),
    (lambda: lmc.compile(program, backend="mok"), "no model 'mok': "),
    (lambda: program.run("a", temperature="hot"), "temperature='hot': must be a number"),
    (lambda: program.run("a", stop=[""]), "an empty text would stop at once"),
    (lambda: program.bind(qestion="a"), "did you mean 'question'?"),
    (lambda: program.run_batch([{"question": "a"}, {"qestion": "b"}]), "item 1 of the batch: "),
    (lambda: program.run_batch([{"question": "a", 5: "b"}]), "has no parameter 5"),
    (lambda: program.run_batch({"question": "a"}), "a batch is a list of items, each a dict or a tuple, not one dict"),
    (lambda: program.run_batch(None), "a batch is a list of items, each a dict or a tuple, not"),
    (lambda: program.run_batch(["a"]), "an item must be a dict or a tuple, not 'a'"),
    (lambda: program.run_batch([("a",)], tempreature=1), "run_batch() has no option 'tempreature'; did you mean 'temperature'?"),
    (lambda: program.run_batch([("a",)], errors="ignore"), "errors='ignore': must be 'raise' or 'return'"),
    (lambda: program.run_batch([("a",)], num_threads=0), "num_threads=0: must be 'auto' or a number of threads"),
    (lambda: lmc.compile(program).batch([("a",)], tempreature=1), "batch() has no option 'tempreature'; did you mean 'temperature'?"),
    (lambda: lmc.compile(program).batch([("a",)], num_threads=8), "batch() has no option 'num_threads'; a compiled batch keeps as many items going"),
    (lambda: lmc.compile(program).batch([("a",)], progress_bar=True), "batch() has no option 'progress_bar'; here it is progress=True"),
    (lambda: lmc.compile(program).batch({"question": "a"}), "a batch is a list of items, each a dict or a tuple, not one dict"),
    (lambda: lmc.compile(program).batch([("a",)], errors="ignore"), "errors='ignore': must be 'raise' or 'return'"),
    (lambda: lmc.compile(program)("a", tempreature=1), "did you mean 'temperature'?"),
    (lambda: lmc.compile(program.func), "takes a function decorated with @lmc.function"),
    (lambda: lmc.compile(program.run("a", backend=Mock())), ": compile(fn), not compile(fn(…))"),
    (lambda: program.run("a", backend=Mock), "backend=Mock: that is the class, not a backend; call it, as in lmc.Mock(…)"),
    (lambda: program.run(s="a", backend=Mock()), "'s', its first parameter, is the state, which lmc supplies: arguments come after it"),
    (lambda: "Answer: " + program.run("a", backend=Mock()), "a state is no text"),
    (lambda: lmc.compile(program, opt=3), "opt=3: must be 0 or 1"),
    (lambda: lmc.compile(program, outputs="answer"), "must be a list of variable names, such as ['answer']"),
    (lambda: program.run("a", backend=Mock())["anwser"], "did you mean 'answer'?"),
    (lambda: lmc.function(lambda: None), "needs a first parameter for the state"),
]


@pytest.mark.parametrize(("call", "says"), CALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_wrong_call_is_answered_at_its_line(call, says):
    with pytest.raises((lmc.LmcError, KeyError)) as caught:
        call()
    assert f"{__file__}:{call.__code__.co_firstlineno}: " in str(caught.value)
    assert says in str(caught.value)


def test_a_class_is_no_program():
    with pytest.raises(lmc.ArgumentError, match=r"test_surface.py:\d+: lmc.function decorates a Python function, not <class 'int'>"):
        lmc.function(int)


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match=r"a compiled program has no 'run_batch'; write program.batch\(items\)"):
        lmc.compile(program).run_batch([])
    with pytest.raises(AttributeError, match=r"a compiled program has no 'bacth'; did you mean 'batch'\?"):
        lmc.compile(program).bacth([])
    with pytest.raises(AttributeError, match=r"a program has no 'dump_it'; write lmc.compile\(fn\).dump_ir\(…\)"):
        program.dump_it()
    with pytest.raises(AttributeError, match=r"a compiled program has no 'foo'(\n|$)"):
        lmc.compile(program).foo  # noqa: B018
    with pytest.raises(AttributeError, match=r"a program has no 'compile'; write lmc.compile\(fn\)(\n|$)"):
        program.compile()
    with pytest.raises(AttributeError, match=r"a program has no 'foo'(\n|$)"):
        program.foo  # noqa: B018
    with pytest.raises(AttributeError, match="no backend takes sound; append a transcript as text"):
        lmc.audio  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'openai'; did you mean 'OpenAI'\?"):
        lmc.openai  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'selekt'; did you mean 'select'\?"):
        lmc.selekt  # noqa: B018
    with pytest.raises(lmc.ProgramError, match=r"no chat template 'chatlm'; there are .*chatml"):
        lmc.get_chat_template("chatlm")
    with pytest.raises(lmc.ArgumentError, match="takes a template such as"):
        lmc.register_chat_template("chatml")
    with pytest.raises(lmc.ParameterError, match="no model 'gpt-4'"):
        lmc.set_default_backend("gpt-4")
    with pytest.raises(lmc.ArgumentError, match="backend=4: a backend such as"):
        lmc.set_default_backend(4)


def test_what_programs_do_wrong_in_python_is_python_s_own_error_and_not_called_a_fault(recwarn):
    @lmc.function
    def program(s, x):
        s += x
        s.apend("y")

    for call in both(program):
        with pytest.raises(AttributeError, match="'State' object has no attribute 'apend'"):
            call(x="text", backend=Mock())
    assert not [w for w in recwarn if "internal error" in str(w.message)]


def test_a_batch_may_come_from_a_generator():
    (interpreted, compiled) = (run(({"question": q} for q in "ab"), backend=Mock(), seed=1) for run in (program.run_batch, lmc.compile(program).batch))
    assert [s.text() for s in interpreted] == [s.text() for s in compiled] and len(compiled) == 2


def test_a_batch_may_be_what_only_has_places():
    class Rows:  # as data sets of torch are
        def __getitem__(self, at: int) -> tuple[str]:
            return [("a",), ("b",)][at]

    states = program.run_batch(Rows(), backend=lmc.Mock(), seed=1)
    assert [s["answer"] for s in states] == [s["answer"] for s in program.run_batch([("a",), ("b",)], backend=lmc.Mock(), seed=1)]
    assert len(lmc.compile(program).batch(Rows(), backend=lmc.Mock())) == 2


def test_how_a_schema_is_read_goes_with_it():
    _, call = answered(json_schema=City, json_whitespace="compact", strict=True)
    assert json.loads(call.constraint.source) == {**City.model_json_schema(), "x-lmc": {"whitespace": "compact", "strict": True}}
    with pytest.raises(lmc.ParameterError, match='one of "model", "compact", "any"'):
        lmc.gen("a", json_schema=City, json_whitespace="tight")  # pyright: ignore[reportArgumentType]
    with pytest.raises(lmc.ParameterError, match="constraint is a regex"):
        lmc.gen("a", regex="a", strict=True)
    with pytest.raises(lmc.ParameterError, match="say how a json_schema= or dtype= is read"):
        lmc.gen("a", strict=True)
