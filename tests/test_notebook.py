"""Notebooks: what they show of states and programs, and the example notebook, executed."""

import importlib
import os
import struct
import zlib
from pathlib import Path

import pytest

import lmc
from examples.make_notebook import notebook
from lmc.frontend import notebook as views
from lmc.prompt import Image

EXAMPLE = Path(__file__).parent.parent / "examples" / "notebook.ipynb"


def png():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"\0\0\0\0")) + chunk(b"IEND", b"")


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
    assert html.startswith("<details><summary><b>talk</b>: 2 gens, 0 selects") and "<svg" in html and html.endswith("</details>")

    @lmc.function
    def odd(s):
        s += "x" * undefined_name  # noqa: F821

    assert lmc.compile(odd)._repr_html_()


def test_a_module_that_was_edited_and_loaded_again_is_read_again(tmp_path, monkeypatch):
    source = 'import lmc\n\n@lmc.function\ndef ask(s):\n    s += "{}" + lmc.gen("x", max_tokens=4)\n'
    (tmp_path / "edited_again.py").write_text(source.format("one"))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("edited_again")
    assert '"one"' in lmc.compile(module.ask).dump_ir()
    (tmp_path / "edited_again.py").write_text(source.format("another"))
    importlib.reload(module)
    assert '"another"' in lmc.compile(module.ask).dump_ir()


def test_the_example_notebook_is_what_its_cells_say():
    assert EXAMPLE.read_text(encoding="utf-8") == notebook()


@pytest.mark.api
def test_the_example_notebook_runs(monkeypatch, tmp_path):
    """Definition, compilation, another definition, a cell that awaits, `import lmc` and program in one cell, a module that is loaded again."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    root = str(EXAMPLE.parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    read = nbformat.read(EXAMPLE, as_version=4)
    nbclient.NotebookClient(read, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in read.cells if cell.cell_type == "code" for output in cell.outputs]
    html = ["".join(output.data["text/html"]) for output in shown if "text/html" in output.get("data", {})]
    assert any("lmc-state" in text for text in html) and any(text.startswith("<details>") for text in html)
    streamed = read.cells[5].outputs
    assert len(streamed) == 1 and "Chile" in streamed[0].data["text/html"]
