"""Notebooks: what they show of states and programs, and the example notebook, executed."""

import ast
import importlib
import json
import linecache
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import lmc
from examples.make_notebook import executed, notebook, text_of
from lmc.errors import Loc
from lmc.frontend import notebook as views
from lmc.segments import Image
from tests.pictures import png

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@lmc.function
def talk(s, question):
    s += lmc.system("You are <b>brief</b>.") + lmc.user(question)
    s += lmc.assistant(lmc.gen("answer", max_tokens=8) + " and " + lmc.gen("grade", regex="grade: [AB]"))
    return {"value": 1}


def test_a_state_shows_roles_answers_and_what_they_cost():
    state = talk("Why?", backend=lmc.Mock(answers={"answer": "Be <cause>", "grade": "grade: A"}))
    html = state._repr_html_()
    assert all(f'<div class="r">{role}</div>' in html for role in ("system", "user", "assistant", "returned"))
    assert '<span class="a">Be &lt;caus</span>' in html and '<span class="a">grade: A</span>' in html
    assert "&lt;b&gt;brief" in html and "<b>brief" not in html
    assert '<span class="n">answer</span>' in html and "prompt tokens cached" in html and "{&#x27;value&#x27;: 1}" in html


def test_one_token_is_singular():
    @lmc.function
    def ask(s):
        s += "a" + lmc.gen("x", max_tokens=1)

    assert "0 of 1 prompt token cached · 1 token<" in ask(backend=lmc.Mock())._repr_html_()


def test_images_are_shown():
    @lmc.function
    def look(s, picture):
        s += lmc.user(lmc.image(picture) + "What is it?") + lmc.assistant(lmc.gen("x", max_tokens=2))

    assert '<img alt="image" src="data:image/png;base64,' in look(png(), backend=lmc.Mock())._repr_html_()
    assert "[image]" in views._image(Image(b"no picture"))


def test_showing_waits_for_nothing_and_never_raises():
    @lmc.function
    def program(s):
        s += lmc.gen("x", max_tokens=4)
        html.append(s._repr_html_())
        s["x"]

    def boom(prompt, ask):
        raise ValueError("<boom>")

    html = []
    with pytest.raises(ValueError):
        program(backend=lmc.Mock(answers={"x": boom}))
    assert html and "lmc-state" in html[0]
    (failed,) = talk.run_batch([("x",)], backend=lmc.Mock(answers={"answer": boom}), errors="return")
    assert "&lt;boom&gt;" in failed._repr_html_() or "raised" in failed._repr_html_()
    failed.ctx = type("Broken", (), {"nodes": None})()
    assert failed._repr_html_()
    assert "cannot be shown, KeyError" in views.never_raising(3, lambda: {}["x"])


def test_a_program_is_a_line_that_opens():
    html = lmc.compile(talk)._repr_html_()
    assert "<details><summary><b>talk</b>: 2 gens, 0 selects" in html and "<svg" in html and html.endswith("</details></div>")

    @lmc.function
    def odd(s):
        s += "x" * undefined_name  # noqa: F821

    assert lmc.compile(odd)._repr_html_()


@pytest.mark.parametrize("last", ["ask", "await ask.arun(backend=lmc.Mock())"], ids=["a program and its import", "a cell that awaits"])
def test_a_cell_is_compiled_statement_by_statement_and_its_program_is_read(last):
    """CPython compiles calls of what an import in the same unit names in another way, and refuses to compile a module that awaits."""
    text = f"import lmc\n\n@lmc.function\ndef ask(s):\n    s += lmc.user('Q') + lmc.assistant(lmc.gen('x', max_tokens=4))\n\n{last}\n"
    file, namespace = f"/tmp/ipykernel_1/{len(last)}.py", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    for node in ast.parse(text).body[:-1]:
        exec(compile(ast.Module([node], []), file, "exec"), namespace)
    program = lmc.compile(namespace["ask"])
    assert "gen(" in program.dump_ir() and "unknown" not in program.dump_ir()
    assert "1 gen," in program._repr_html_()


def test_a_module_that_was_loaded_again_warns_of_the_program_imported_before(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    path = tmp_path / "edited_prompts.py"
    text = "import lmc\n\n@lmc.function\ndef ask(s, x):\n    s += x + '{}'\n    return s.text()\n\n@lmc.function\ndef both(s):\n    return ask('b').ret_value\n"
    path.write_text(text.format("?"))
    module = importlib.import_module("edited_prompts")
    ask, fixed, compiled = module.ask, module.ask.bind(x="a"), lmc.compile(module.ask)
    mock = lmc.Mock()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fixed(backend=mock).ret_value == compiled("a", backend=mock).ret_value == "a?"
    path.write_text(text.format("!!"))
    importlib.reload(module)
    with pytest.warns(UserWarning, match=r"program ask\(x\) at .*:3 was defined again \(at .*:3\), and this is the old one") as caught:
        assert compiled("a", backend=mock).ret_value == "a?"
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask("a", backend=mock).ret_value == "a?"  # said once
        assert module.ask("a", backend=mock).ret_value == lmc.compile(module.ask)("a", backend=mock).ret_value == "a!!"
        assert module.both(backend=mock).ret_value == "b!!"
    with pytest.warns(UserWarning, match="defined again"):
        fixed(backend=mock)


def test_places_in_cells_are_named_as_ipython_names_them(monkeypatch):
    file = "/tmp/ipykernel_1/2.py"
    assert str(Loc(file, 3)) == f"{file}:3"
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name={file: ("Cell", "In[7]")}.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert (str(Loc(file, 3)), Loc(file, 3).short) == ("Cell In[7]:3", "Cell In[7]:3")
    assert (str(Loc("/a/b.py", 3)), Loc("/a/b.py", 3).short) == ("/a/b.py:3", "b.py:3")


def test_ipython_has_the_names_of_cells():
    """What `lmc.errors` reads of it."""
    interactive = pytest.importorskip("IPython.core.compilerop")
    compiler = interactive.CachingCompiler()
    file = compiler.cache("x = 1", 7, raw_code="x = 1")
    assert compiler.format_code_name(file) == ("Cell", "In[7]") and compiler.format_code_name("/a/b.py") is None


def test_the_example_notebook_has_its_cells_and_what_they_show():
    stored = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    bare = [{**cell, "outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell for cell in stored["cells"]]
    assert {**stored, "cells": bare} == notebook(), "python -m examples.make_notebook writes it anew"
    assert sum(bool(cell["outputs"]) for cell in stored["cells"] if cell["cell_type"] == "code") >= 5


@pytest.mark.api
def test_the_example_notebook_runs_and_shows_what_is_stored():
    """Definition, compilation, another definition, a cell that awaits, `import lmc` and program in one cell, a module that is loaded again."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    shown = executed()
    cells = [cell for cell in shown["cells"] if cell["cell_type"] == "code"]
    state, program, stream, batch = (cell["outputs"] for cell in cells[:4])
    assert "lmc-state" in state[0]["data"]["text/html"] and "1 gen," in program[0]["data"]["text/html"]
    assert len(stream) == 1 and "Chile" in stream[0]["data"]["text/html"]
    assert batch[0]["text"] == "100%|██████████| 3/3\n"
    assert styleless(shown) == styleless(json.loads(EXAMPLE.read_text(encoding="utf-8"))), "python -m examples.make_notebook writes it anew"
    assert not re.search(r"Warning|Traceback|/tmp|/home|\bit/s", text_of(styleless(shown)).replace("tempfile", ""))


def styleless(notebook):
    """Without the style sheets, which say nothing of what a cell shows."""
    return json.loads(re.sub(r"<style>.*?</style>", "", json.dumps(notebook)))
