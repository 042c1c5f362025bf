"""Hooks of mkdocs (mkdocs.yml): pages of files outside docs/. Links stay as they are in the repository and on its host; here they are
rewritten to the page that a file has in the site. The README is the first page; a source file that a page links to is a page of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "experiments/README.md": "experiments/index.md",
}
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)")
CODE_SPAN = re.compile(r"`[^`]*`")
FENCE = re.compile(r"^(```[a-z]+) [\w-]+$", re.MULTILINE)
"""The beginning of a block with a word for the tests behind its language, which the renderer does not take for a beginning."""


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each file outside docs/ that a page links to."""
    pages = {path: path.removeprefix("docs/") for path in (f"docs/{f.src_uri}" for f in files.documentation_pages())}
    texts = {path: (ROOT / path).read_text("utf-8") for path in [*PAGES, *pages]}
    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=rewritten(texts[path], path)))
    linked = {target for path, text in texts.items() for target in targets(text, path)}
    for path in sorted(linked):
        if path.endswith((".py", ".ipynb")):
            files.append(File.generated(config, place(path), content=source_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page, unless it was generated above."""
    return markdown if page.file.generated_by else rewritten(markdown, f"docs/{page.file.src_uri}")


def rewritten(text: str, path: str) -> str:
    """The text of a file with links to the pages of the site, blocks without words for the tests, and bars in code of tables without
    the escape that other renderers need."""
    here = str(PurePosixPath(place(path)).parent)
    text = LINK.sub(lambda m: m[1] + relpath(place(absolute(m[2], path)), here), text)
    text = FENCE.sub(r"\1", text)
    lines = (CODE_SPAN.sub(lambda m: m[0].replace(r"\|", "|"), line) if line.startswith("|") else line for line in text.split("\n"))
    return "\n".join(lines)


def targets(text: str, path: str) -> set[str]:
    """The files that a page links to, from the root of the repository."""
    return {absolute(m[2], path) for m in LINK.finditer(text)}


def absolute(target: str, path: str) -> str:
    return normpath(str(PurePosixPath(path).parent / target))


def place(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in PAGES:
        return PAGES[path]
    return f"source/{path}.md" if path.endswith((".py", ".ipynb")) else path.removeprefix("docs/")


def source_page(path: str) -> str:
    """A page that shows a source file, or the cells of a notebook."""
    text = (ROOT / path).read_text("utf-8")
    body = "\n\n".join(map(cell, json.loads(text)["cells"])) if path.endswith(".ipynb") else fenced("python", text)
    return f"---\ntitle: {PurePosixPath(path).name}\n---\n\n# `{path}`\n\n{body}\n"


def cell(found: dict[str, Any]) -> str:
    text = "".join(found["source"])
    if found["cell_type"] == "markdown":
        return re.sub(r"^#+ ", "## ", text, flags=re.MULTILINE)
    printed = "".join("".join(out.get("text", out.get("data", {}).get("text/plain", ""))) for out in found.get("outputs", ()))
    return "\n\n".join([fenced("python", text), *([fenced("text", printed)] if printed else [])])


def fenced(language: str, text: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"
