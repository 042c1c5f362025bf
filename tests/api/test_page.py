"""The code of the page on APIs runs, against a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api import openai_server
from tests.api.text_model import TextModel
from tests.docs.test_docs import ROOT, run_page

pytestmark = pytest.mark.api


def test_the_page_on_apis_runs(monkeypatch, tmp_path: Path, capsys):
    record = "Name: Ada Lovelace\nBorn: 1815\nField: mathematics"

    def script(prompt: str) -> str | None:
        begun = max((i for i in range(len(record) + 1) if prompt.endswith(record[:i])), default=0)
        return record[begun:] if "Ada" in prompt else "7." if prompt.endswith("digit?") else None

    with openai_server.serve(TextModel(script), name="*") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        run_page(ROOT / "docs" / "apis.md", monkeypatch, tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert "{'enforced': 'verified', 'attempts': 1}" in said and " Ada Lovelace 1 2 0" in said
