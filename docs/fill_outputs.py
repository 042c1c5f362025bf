"""Run a page's Python blocks, on the small model where they name no other, and write what they print into the `text` block that follows each.

    python docs/fill_outputs.py docs/tutorial.md docs/cookbook/*.md

Run it when a page's code changes, and read what it wrote. What the small model prints differs a little between machines; the pages of the
cookbook run on the mock, and a test compares what they show with what they print.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
import types
from pathlib import Path

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?P<gap>\n*)(?:^```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def filled(page: str, name: str) -> str:
    """The page with the outputs of today. In them `name` is the file into which a reader has copied its blocks, one below another."""
    module = sys.modules["page"] = types.ModuleType("page")  # where types that name others look for them
    names = vars(module)
    folder = Path(tempfile.mkdtemp())
    lines = 0

    def run(match: re.Match[str]) -> str:
        nonlocal lines
        file = folder / str(match.start()) / name  # a real file: lmc.function reads its source
        file.parent.mkdir()
        code = "\n" * lines + match["code"]
        lines += match["code"].count("\n")
        file.write_text(code)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(file), "exec"), names)
        if match["shown"] is None:
            return match[0]
        shown = printed.getvalue().replace(f"{file.parent}/", "")
        return f"```python\n{match['code']}```\n{match['gap']}```text\n{shown}```\n"

    return BLOCK.sub(run, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(filled(path.read_text(), f"{path.stem}.py"))
