"""Executes the cells below and writes notebook.ipynb with what they show: `python -m examples.make_notebook`.

What depends on the machine is left out of the outputs (folders, rates), so that tests/examples/test_notebook.py can compare them.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

CELLS = [
    "# lmc in a notebook\n\nEach cell runs as it stands. The model is a mock: it answers at once, with the same text every time. For the small real one, "
    "leave out `set_default_backend`.",
    'import lmc\n\nlmc.set_default_backend(lmc.Mock())\n\n@lmc.function\ndef city(s, country: str) -> str:\n    s += lmc.user(f"What is the capital of '
    '{country}?")\n    s += lmc.assistant(lmc.gen("answer", max_tokens=16))\n    return s["answer"]\n\ncity("Peru")',
    "A state shows its conversation, with coloured answers and the cost of each below it. A compiled program is a line that opens to show its plan.",
    "program = lmc.compile(city)\nprogram",
    "A stream grows in its cell:",
    'program.stream("Chile")',
    "A batch shows its progress:",
    'states = program.batch([{"country": c} for c in ("Peru", "Chile", "Cuba")], progress=True)\n[state.ret_value for state in states]',
    "Define the function again, and compile it again: the new one runs.",
    '@lmc.function\ndef city(s, country: str) -> str:\n    s += lmc.user(f"Name a river in {country}.")\n    s += lmc.assistant(lmc.gen("answer", '
    'max_tokens=16))\n    return s["answer"]\n\nassert "river" in lmc.compile(city)("Peru").text()\nassert "Name a river" in lmc.compile(city).dump_ir()',
    "Async programs are awaited in a cell:",
    '@lmc.function\nasync def facts(s, country: str) -> str:\n    s += f"About {country}: " + lmc.gen("fact", max_tokens=16)\n    return s["fact"]\n\n(await '
    'lmc.compile(facts).acall("Peru")).ret_value',
    "Typed answers are objects:",
    'from typing import Literal\n\n@lmc.function\ndef label(s, text: str):\n    s += f"{text}\\nSentiment: " + lmc.gen("label", dtype=Literal["good", '
    '"bad"])\n    return s.parsed("label")\n\nassert label("Lovely.").ret_value in ("good", "bad")',
    "A module that was edited is loaded again:",
    'import importlib\nimport sys\nimport tempfile\nfrom pathlib import Path\n\nfolder = Path(tempfile.mkdtemp())\nsys.path.insert(0, str(folder))\nsource = '
    '\'import lmc\\n\\n@lmc.function\\ndef ask(s):\\n    s += "{}" + lmc.gen("x", max_tokens=4)\\n\'\n(folder / '
    '"edited_program.py").write_text(source.format("one"))\nimport edited_program\n\nassert \'"one"\' in lmc.compile(edited_program.ask).dump_ir()\n(folder / '
    '"edited_program.py").write_text(source.format("another"))\nimportlib.reload(edited_program)\nassert \'"another"\' in '
    'lmc.compile(edited_program.ask).dump_ir()\nlmc.compile(edited_program.ask)().text()[:7]',
]


def notebook() -> dict[str, Any]:
    """The notebook before it is executed. A cell that begins with prose is markdown."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [_cell(number, text) for number, text in enumerate(CELLS)],
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(number: int, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text}
    try:
        compile(text, "cell", "exec", 0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    except SyntaxError:
        return found
    return found if text.startswith("# ") else {**found, "cell_type": "code", "execution_count": None, "outputs": []}


def executed() -> dict[str, Any]:
    """The notebook with the outputs of its cells, each executed in a new kernel. Needs nbclient and ipykernel."""
    import nbclient  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]
    import nbformat  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

    read: Any = nbformat.from_dict(notebook())  # pyright: ignore
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        client: Any = nbclient.NotebookClient(read, timeout=120, record_timing=False, resources={"metadata": {"path": folder}})  # pyright: ignore
        client.execute(env={**os.environ, "PYTHONPATH": path})
    found: dict[str, Any] = json.loads(json.dumps(read))
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = list(_anywhere(cell["outputs"]))
    return {**notebook(), "cells": found["cells"]}


def _anywhere(outputs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Outputs as every machine has them: of a progress bar its end, without a rate, and files of cells without their folder."""
    bars = [line for output in outputs if output.get("name") == "stderr" for line in re.split(r"[\r\n]+", output["text"]) if line.startswith("100%")]
    if bars:
        yield {"name": "stderr", "output_type": "stream", "text": re.sub(r"\[.*\]", "", bars[-1]).rstrip() + "\n"}
    for output in outputs:
        if output.get("name") != "stderr":
            yield json.loads(re.sub(r"[^\s\"\\;&(]*ipykernel_\d+[/\\]+", "", json.dumps(output)))


def text_of(notebook: dict[str, Any]) -> str:
    """A notebook as its file has it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("notebook.ipynb").write_text(text_of(executed()), encoding="utf-8")
