"""`lmc chat` and `lmc check` as a user meets them."""

import io
import json
import re
import sys

import pytest
import typer

import lmc
from lmc.named import _SERVICES
from lmc.pricelist import listed
from tests.cli.harness import COMMAND, ROOT

CHECKED = '''
import lmc


@lmc.function
def suspicious(s, persona, question):
    s += lmc.system("You are " + persona) + lmc.user(question)
    f = s.fork(1)[0]
    f += lmc.assistant(lmc.gen("unread", max_tokens=20))
    s += lmc.assistant(lmc.gen("n", regex="[0-9]+", stop="END", max_tokens=5) + lmc.select("c", choices=["yes", "yes please", "no"]))
    if s["c"] == "no":
        s += lmc.user("x") + lmc.assistant(lmc.gen("y", max_tokens=900))
    return s["n"]


@lmc.function
def fine(s, question):
    s += lmc.system("You are brief.") + lmc.user(question)
    s += lmc.assistant(lmc.gen("n", regex="[0-9]+E?", stop="E", max_tokens=5) + lmc.select("c", choices=["yes", "no"]))
    return s["n"]
'''
TOOLS = '''
from os.path import join


def temperature(city: str) -> str:
    """The temperature in a city."""
    return f"21 in {city}"


def _own(): ...
'''


@pytest.fixture
def lmc_cli(tmp_path, monkeypatch, capsys):
    """Runs a command with an input; gives exit code, output and what was said beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checked.py").write_text(CHECKED)
    (tmp_path / "tools.py").write_text(TOOLS)

    def call(*args, said="", terminal=False):
        stdin = io.StringIO(said)
        stdin.isatty = lambda: terminal
        monkeypatch.setattr("sys.stdin", stdin)
        try:
            code = COMMAND.main(list(args), standalone_mode=False)
        except Exception as error:
            return error, *capsys.readouterr()
        return code or 0, *capsys.readouterr()

    monkeypatch.setattr(sys, "path", list(sys.path))
    yield call
    for name in ("checked", "tools", "wrong_program"):
        sys.modules.pop(name, None)


# -- chat


def test_a_terminal_does_not_obey_what_a_model_writes(lmc_cli, monkeypatch):
    """The title of its window, the clipboard and what is on the screen are its user's."""
    monkeypatch.setattr("lmc.cli.chat.open_backend", lambda name: lmc.Mock(answers={"answer": "\x1b]52;c;eA==\x07\x9b2J\ta\rb\x7f\r\nc"}))
    said = "one\n/history\n"
    piped = lmc_cli("chat", "-b", "mock", said=said)[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = lmc_cli("chat", "-b", "mock", said=said)[1]
    assert piped.count("\x1b]52;c;eA==\x07\x9b2J\ta\rb\x7f\r\nc\n") == 2
    assert shown == piped.replace("\x1b", r"\x1b").replace("\x07", r"\x07").replace("\x9b", r"\x9b").replace("\rb", r"\rb").replace("\x7f", r"\x7f")


def test_a_conversation_has_a_history(lmc_cli):
    said = 'Hello,\\\nyou\n"""\nsecond\n\nmessage\n"""\n/history\n'
    code, out, err = lmc_cli("chat", "-b", "mock", "--system", "Be brief.", "--max-tokens", "12", said=said)
    assert code == 0 and err == ""
    said = re.search(r"^system: Be brief\.\nuser: Hello,\nyou\nassistant: (.+)\nuser: second\n\nmessage\nassistant: (.+)$", out, re.M)
    assert said is not None and all(out.count(answer.strip()) == 2 for answer in said.groups())


def test_commands_change_the_conversation(lmc_cli):
    _, out, err = lmc_cli("chat", "-b", "mock", "--max-tokens", "8", said="one\n/reset\n/system New.\ntwo\n/retry\n/history\n/what\n/quit\nnever")
    talk = [line.partition(": ")[::2] for line in out.splitlines()[-3:]]
    assert talk[:2] == [("system", "New."), ("user", "two")] and talk[2][0] == "assistant"
    assert "/what: no such command" in err and err.count("/help lists the commands") == 1


def test_tools_of_a_file_are_called(lmc_cli, monkeypatch):
    import lmc

    wants = lambda prompt, ask: "Warm." if "21 in" in prompt else '{"name": "temperature", "arguments": {"city": "Rome"}}'
    monkeypatch.setattr("lmc.cli.chat.open_backend", lambda name: lmc.Mock(answers=wants))
    code, out, err = lmc_cli("chat", "-b", "mock", "--tools", "tools.py", said="How warm is it?\n/history\n")
    assert code == 0 and out.startswith("Warm.\n") and "[temperature(city='Rome')]" in err
    assert re.findall(r"^(\w+): ", out, re.M) == ["user", "assistant", "tool", "assistant"]


def test_a_file_of_tools_that_is_not_there(lmc_cli):
    error, _, _ = lmc_cli("chat", "-b", "mock", "--tools", "nope.py", said="")
    assert str(error).startswith("no such file: nope.py") and "FUNCTION" not in str(error), "it is no program that is missing"


def test_a_failed_tool_is_told_to_the_model_and_a_failed_request_to_the_user(lmc_cli, monkeypatch):
    import lmc

    wants = lambda prompt, ask: "Sorry." if "error: ToolError" in prompt else '{"name": "temprature", "arguments": {}}'
    monkeypatch.setattr("lmc.cli.chat.open_backend", lambda name: lmc.Mock(answers=wants))
    assert lmc_cli("chat", "-b", "mock", "--tools", "tools.py", said="How warm is it?\n")[1] == "Sorry.\n"
    monkeypatch.setattr("lmc.cli.chat.open_backend", lambda name: lmc.Mock(answers=["one"]))
    code, out, err = lmc_cli("chat", "-b", "mock", said="a\nb\n")
    assert code == 1 and out == "one\n" and "error: " in err and "used up" in err


def test_a_failed_request_of_a_person_is_no_failure_of_the_command(lmc_cli, monkeypatch):
    import lmc

    monkeypatch.setattr("lmc.cli.chat.open_backend", lambda name: lmc.Mock(answers=["one"]))
    code, _, err = lmc_cli("chat", "-b", "mock", said="a\nb\n", terminal=True)
    assert code == 0 and "used up" in err


def test_a_file_without_functions_is_refused(lmc_cli):
    error, *_ = lmc_cli("chat", "-b", "mock", "--tools", "checked.py")
    assert "checked.py: it defines no function" in str(error)


# -- check


def test_check_names_what_is_likely_wrong(lmc_cli):
    code, out, _ = lmc_cli("check", "checked.py", "--context", "1000")
    lines = out.splitlines()
    assert code == 1
    assert [line.split(":")[1] for line in lines[:5]] == ["7", "9", "10", "10", "12"]
    for line, what in zip(lines, ("system message contains the argument 'persona'", "the gen 'unread' is never read", "stop='END' of the gen 'n' cannot occur",
                                  "'yes please' begins with 'yes'", "its answer up to 900; the context has 1000")):  # fmt: skip
        assert what in line and line.startswith("checked.py:")
    assert lines[5].startswith("suspicious: 5 findings; a run: about 2 to 4 calls; about ")
    assert lines[6].startswith("fine: no findings; a run: about 2 calls; about ")


@pytest.mark.parametrize(("program", "said"), [
    ('def words(s):\n    s += lmc.gen("w", lark="start: NAME | WORD\\nNAME: /[a-z_]+/\\nWORD: /[a-z]{2,}/")\n    return s["w"]\n',
        "5: terminals NAME and WORD of the gen 'w' both match 'aa'"),
    ('def quoted(s, q):\n    s += q + lmc.gen("a")\n    s += f"So far: {s}" + lmc.gen("b")\n    return s["b"]\n',
        "6: a state is made text here, which gives its repr: write s.text(), or s['name'] for an answer"),
    ('def asks(s, q):\n    s += lmc.user_begin() + q\n    s += lmc.gen("a")\n    return s["a"]\n',
        "6: the gen 'a' is in a user message: the model writes that message on; close it, and ask in an assistant message"),
    ('def capital(s):\n    s += lmc.gen("What is the capital of France?")\n    return s\n',
        "5: the gen 'What is the capital of France?' has no prompt: nothing is appended before it, and its first argument is a variable's name"),
    ('def capital(s, q):\n    lmc.user(q) + "?"\n    s += lmc.assistant(lmc.gen("a"))\n    s.user("thanks")\n    return s["a"]\n',
        "5: the result of lmc.user(…) is lost: an expression does nothing until it is appended, s += …"),
], ids=["terminals that match one text", "a state in an f-string", "a request in a user's message", "a request without a prompt",
        "an expression that is not appended"])  # fmt: skip
def test_check_names(lmc_cli, tmp_path, program, said):
    (tmp_path / "wrong_program.py").write_text(f"import lmc\n\n@lmc.function\n{program}")
    code, out, _ = lmc_cli("check", "wrong_program.py")
    assert code == 1 and out.splitlines()[0].startswith(f"wrong_program.py:{said}")


def test_check_names_a_program_that_asks_nothing(lmc_cli, tmp_path):
    (tmp_path / "lost.py").write_text(
        'import lmc\n\n@lmc.function\ndef lost(s, q="a"):\n    if q != "a":\n        return lmc.user(q) + lmc.assistant(lmc.gen("a"))\n\n'
        '@lmc.function\ndef given(s, ask: lmc.Expr):\n    s += "Q: " + ask\n\n'
        '@lmc.function\ndef helped(s, tool):\n    tool(s)\n'
    )
    code, out, _ = lmc_cli("check", "lost.py")
    assert code == 1
    assert out.splitlines()[0] == "lost.py:3: lost asks the model nothing: a gen or a select is a request only once it is appended, s += …"
    assert [line.split(";")[0] for line in out.splitlines()[2:]] == ["given: no findings", "helped: no findings"]


def test_check_of_one_program_that_is_fine(lmc_cli):
    code, out, _ = lmc_cli("check", "checked.py:fine")
    assert code == 0 and out.count("\n") == 1


def test_check_takes_no_saved_program(lmc_cli):
    error, *_ = lmc_cli("check", "k.lmcp")
    assert str(error) == "k.lmcp is a saved program; lmc check takes the source: FILE.py, or FILE.py:FUNCTION"


@pytest.mark.api
def test_check_says_that_tokens_are_bytes_where_no_model_is_named(lmc_cli):
    pytest.importorskip("openai")
    assert "note: tokens are counted as bytes; name a model with -b for its tokens and context\n" in lmc_cli("check", "checked.py:fine")[2]
    assert "name a model with -b for its tokens\n" in lmc_cli("check", "checked.py:fine", "--context", "4000")[2]
    assert "bytes" not in lmc_cli("check", "checked.py:fine", "-b", "openai:gpt-x", "--prices", "1,2")[2]


@pytest.mark.api
def test_check_says_what_a_run_costs_without_a_key(lmc_cli, monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for backend in ("openai:gpt-x", "anthropic:claude-x"):
        pytest.importorskip(backend.partition(":")[0])
        code, said, _ = lmc_cli("check", "checked.py:fine", "-b", backend, "--prices", "1,2")
        certain, expected, most = map(float, re.findall(r"\$(\d\.\d+)", said)[:3])
        assert code == 0 and 0 < certain < expected < most < 0.01 and "certain" in said and "with answers at their limits" in said


@pytest.fixture
def litellms_list(tmp_path, monkeypatch):
    """LiteLLM as far as its list of prices goes; importing it fails."""
    package = tmp_path / "site" / "litellm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('read its list, it takes seconds to import')")
    (tmp_path / "site" / "litellm-1.2.3.dist-info").mkdir()
    (tmp_path / "site" / "litellm-1.2.3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: litellm\nVersion: 1.2.3\n")
    of = lambda provider, *prices: (
        dict(zip(("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"), prices)) | {"litellm_provider": provider}
    )
    known = {
        "gpt-x": of("openai", 4e-07, 1.6e-06, 1e-07),
        "claude-x": of("anthropic", 3e-06, 1.5e-05),
        "gemini/g": of("gemini", 1e-06, 2e-06),
        "free": of("openai"),
        "sample_spec": 3,
        "gemini-y": of("vertex_ai-language-models", 2e-06, 4e-06),
        "vertex_ai/claude-y@1": of("vertex_ai-anthropic_models", 5e-06, 6e-06),
    }
    (package / "model_prices_and_context_window_backup.json").write_text(json.dumps(known))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "litellm", raising=False)


@pytest.mark.api
def test_check_takes_prices_from_the_list_that_is_installed(lmc_cli, litellms_list):
    pytest.importorskip("openai")
    code, said, note = lmc_cli("check", "checked.py:fine", "-b", "openai:gpt-x")
    assert code == 0 and note == "note: prices are those of LiteLLM 1.2.3 for openai:gpt-x: --prices 0.4,1.6,0.1\n"
    assert said == lmc_cli("check", "checked.py:fine", "-b", "openai:gpt-x", "--prices", "0.4,1.6,0.1")[1] and "with answers at their limits" in said
    known = {
        name: listed(name)
        for name in (
            "anthropic:claude-x",
            "litellm:gemini/g",
            "litellm:openai/gpt-x",
            "openai:claude-x",
            "openai:gpt-x@http://127.0.0.1:1",
            "openai:free",
            "vllm:http://127.0.0.1:1",
        )
    }
    assert [found and (found[0].prompt, found[0].completion) for found in known.values()] == [(3, 15), (1, 2), (0.4, 1.6), None, None, None, None]
    vertex = [listed(name) for name in ("vertexai:gemini-y", "litellm:vertex_ai/gemini-y", "vertexai:claude-y@1", "vertexai:gpt-x")]
    assert [found and (found[0].prompt, found[0].completion) for found in vertex] == [(2, 4), (2, 4), (5, 6), None]


@pytest.mark.api
def test_check_says_how_to_get_a_price(lmc_cli, monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.setattr("lmc.pricelist.find_spec", lambda name: None)
    code, said, note = lmc_cli("check", "checked.py:fine", "-b", "openai:gpt-x@http://ann:word@127.0.0.1:1/v1")
    assert code == 0 and "$" not in said and note == "note: no price of openai:gpt-x is known; give --prices IN,OUT[,CACHED] (dollars for a million tokens)\n"
    assert "note: for a price, name an API: --backend openai:MODEL --prices IN,OUT[,CACHED]" in lmc_cli("check", "checked.py:fine")[2]


def test_prices_are_numbers_of_something_that_charges(lmc_cli):
    for wrong in ("1", "a,b", "1,2,3,4", "-1,2", "nan,1", "inf,1"):
        error, *_ = lmc_cli("check", "checked.py:fine", "-b", "openai:x", f"--prices={wrong}")
        assert f"--prices {wrong}: expected two or three numbers" in str(error)
    error, *_ = lmc_cli("check", "checked.py:fine", "--prices", "1,2")
    assert "mock runs in this process and charges nothing" in str(error)


LOOP = '''
import lmc

STYLES = {"brief": "Be brief.", "long": "Be thorough."}


@lmc.function
def agent(s, task, steps: int = 3, style: str = "brief"):
    s += lmc.system(f"{STYLES[style]} At most {steps} steps.") + lmc.user(task)
    for _ in range(steps):
        s += lmc.assistant(lmc.gen("thought", max_tokens=10))
        if "done" in s["thought"]:
            break
        s += lmc.user("Go on.")
    s += lmc.assistant(lmc.gen("answer", max_tokens=10))
    return s["answer"]


HELPERS = {"look": lambda s, word: look(s, word)}


@lmc.function
def dispatched(s, word, helper):
    HELPERS[helper](s, word)
    s += lmc.assistant(lmc.gen("a", max_tokens=10))
    return s["a"]


def look(s, word):
    s += lmc.assistant(lmc.gen("seen", max_tokens=10))
    if s["seen"] == word:
        return
    s += lmc.assistant(lmc.gen("again", max_tokens=10))


@lmc.function
def helped(s, word, lang="French"):
    s += lmc.system("Answer in " + lang)
    look(s, word)
    if s["seen"] == "a":
        s += lmc.assistant(lmc.gen("b", max_tokens=10) + lmc.gen("c", max_tokens=10))
    else:
        s += lmc.assistant(lmc.gen("d", max_tokens=10))
    return s["seen"]
'''


def test_check_counts_what_a_break_or_a_return_may_leave_out(lmc_cli, tmp_path):
    """Arms exclude each other; behind what may leave a loop or a helper no call is certain."""
    (tmp_path / "loops_of_agents.py").write_text(LOOP)
    out = lmc_cli("check", "loops_of_agents.py")[1]
    assert re.search(r"^agent: no findings; a run: about 1 to 4 calls; about \d+ prompt tokens, and 40 of answers at their limits$", out, re.M), out
    assert re.search(r"^helped: 1 finding; a run: about 1 to 4 calls; about \d+ prompt tokens, and 40 of answers at their limits$", out, re.M), out
    assert re.search(r"^dispatched: .* about 1 call, and those of code that the graph does not show \(from loops_of_agents\.py:24 on\); about ", out, re.M), out


def test_check_says_from_where_on_it_does_not_count(lmc_cli, tmp_path):
    """A state in an object of a class with a `__getattr__`, in a helper of another file."""
    agent = "import lmc\nclass Agent:\n    def __init__(self, s): self.s = s\n"
    agent += "    def __getattr__(self, name): return lambda q: self.s.__iadd__(q + lmc.gen(name))\n"
    help = "def help(s, q):\n    s += q + lmc.gen('a', max_tokens=10)\n    Agent(s).tea(q)\n"
    (tmp_path / "hidden.py").write_text(agent + help)
    (tmp_path / "asking.py").write_text("import lmc\nfrom hidden import help\n@lmc.function\ndef asks(s, q):\n    help(s, q)\n    return s['a']\n")
    out = lmc_cli("check", "asking.py")[1]
    assert re.search(r"^asks: .*; a run: about 1 call, and those of code that the graph does not show \(from hidden\.py:7 on\); about ", out, re.M), out


def test_a_default_is_data_of_users_and_a_key_of_a_table_is_not(lmc_cli, tmp_path):
    (tmp_path / "loops_of_agents.py").write_text(LOOP)
    (found,) = [line for line in lmc_cli("check", "loops_of_agents.py")[1].splitlines() if "system message" in line]
    assert "loops_of_agents.py:38: a system message contains the argument 'lang'" in found


def test_the_examples_have_nothing_to_look_at(lmc_cli):
    for name in ("judge", "react", "extraction", "tools", "chat"):
        assert lmc_cli("check", str(ROOT / "examples" / f"{name}.py"))[0] == 0


def test_shells_can_complete_commands():
    assert {"install_completion", "show_completion"} <= {p.name for p in COMMAND.params}


@pytest.mark.parametrize("command", ["run", "chat", "check", "bench", "trace", "serve", "dump-ir"])
def test_shells_can_complete_backends(command):
    (option,) = [p for p in COMMAND.commands[command].params if p.name == "backend"]
    context = typer.Context(COMMAND.commands[command])
    assert {item.value for item in option.shell_complete(context, "")} == {"mock", "smollm2", *(f"{kind}:" for kind in _SERVICES)}
    assert [item.value for item in option.shell_complete(context, "an")] == ["anthropic:"]
