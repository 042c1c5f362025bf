"""Writes notebook.ipynb from the cells below: `python -m examples.make_notebook`. tests/test_notebook.py runs it."""

import json
from pathlib import Path

CELLS = [
    "# lmc in a notebook\n\nEach cell runs as it stands. The model is a mock, which answers at once and always the same; for the small real one, leave `set_default_backend` out.",
    "import lmc\n\nlmc.set_default_backend(lmc.Mock())\n\n@lmc.function\ndef city(s, country: str) -> str:\n    s += lmc.user(f\"What is the capital of {country}?\")\n    s += lmc.assistant(lmc.gen(\"answer\", max_tokens=16))\n    return s[\"answer\"]\n\ncity(\"Peru\")",
    "A state shows its conversation: answers coloured, and under each what it cost. A compiled program is a line that opens to its plan.",
    "program = lmc.compile(city)\nprogram",
    "A stream grows in its cell:",
    "program.stream(\"Chile\")",
    "A batch shows its progress:",
    "states = program.batch([{\"country\": c} for c in (\"Peru\", \"Chile\", \"Cuba\")], progress=True)\n[state.ret_value for state in states]",
    "Define the function again, and compile it again: the new one runs.",
    "@lmc.function\ndef city(s, country: str) -> str:\n    s += lmc.user(f\"Name a river in {country}.\")\n    s += lmc.assistant(lmc.gen(\"answer\", max_tokens=16))\n    return s[\"answer\"]\n\nassert \"river\" in lmc.compile(city)(\"Peru\").text()\nassert \"Name a river\" in lmc.compile(city).dump_ir()",
    "Async programs are awaited in a cell:",
    "@lmc.function\nasync def facts(s, country: str) -> str:\n    s += f\"About {country}: \" + lmc.gen(\"fact\", max_tokens=16)\n    return s[\"fact\"]\n\n(await lmc.compile(facts).acall(\"Peru\")).ret_value",
    "Typed answers are objects:",
    "from typing import Literal\n\n@lmc.function\ndef label(s, text: str):\n    s += f\"{text}\\nSentiment: \" + lmc.gen(\"label\", dtype=Literal[\"good\", \"bad\"])\n    return s.parsed(\"label\")\n\nassert label(\"Lovely.\").ret_value in (\"good\", \"bad\")",
    "A module that was edited is loaded again:",
    "import importlib\nimport sys\nimport tempfile\nfrom pathlib import Path\n\nfolder = Path(tempfile.mkdtemp())\nsys.path.insert(0, str(folder))\nsource = 'import lmc\\n\\n@lmc.function\\ndef ask(s):\\n    s += \"{}\" + lmc.gen(\"x\", max_tokens=4)\\n'\n(folder / \"edited_program.py\").write_text(source.format(\"one\"))\nimport edited_program\n\nassert '\"one\"' in lmc.compile(edited_program.ask).dump_ir()\n(folder / \"edited_program.py\").write_text(source.format(\"another\"))\nimportlib.reload(edited_program)\nassert '\"another\"' in lmc.compile(edited_program.ask).dump_ir()\nlmc.compile(edited_program.ask)().text()[:7]",
]


def notebook() -> str:
    """Its text. A cell that begins with prose is markdown."""
    cells = [_cell(number, text) for number, text in enumerate(CELLS)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps({"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _cell(number: int, text: str) -> dict[str, object]:
    found: dict[str, object] = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": text}
    try:
        compile(text, "cell", "exec", 0x2000)  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    except SyntaxError:
        return found
    return found if text.startswith("# ") else {**found, "cell_type": "code", "execution_count": None, "outputs": []}


if __name__ == "__main__":
    Path(__file__).with_name("notebook.ipynb").write_text(notebook(), encoding="utf-8")
