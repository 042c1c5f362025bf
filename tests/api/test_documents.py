"""`lmc.document(pdf)`: how each API is given a PDF, beside thinking and tools; what is refused, and where."""

from __future__ import annotations

import base64

import pytest

import lmc
from tests.api.test_tools import TOOLS, script
from tests.api.text_model import TextModel

pytestmark = pytest.mark.api

PDF = b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF\n"
DATA = base64.b64encode(PDF).decode()


@lmc.function
def read(s, source):
    s += lmc.user(lmc.document(source) + "What does it say?") + lmc.assistant(lmc.gen("a", max_tokens=9))
    return s["a"]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.pdf").write_bytes(PDF)
    return tmp_path / "a.pdf"


@pytest.mark.parametrize("call", (read.run, lmc.compile(read)), ids=("interpreted", "compiled"))
def test_openai(openai, path, call):
    backend, server = openai(TextModel(), server="openai")
    assert call(source=path, backend=backend).ret_value
    assert server.seen[0].body["messages"][0]["content"][0] == {
        "type": "file",
        "file": {"filename": "document.pdf", "file_data": f"data:application/pdf;base64,{DATA}"},
    }
    backend, server = openai(TextModel(), server="openai", api="responses")
    call(source=PDF, backend=backend)
    assert server.seen[-1].body["input"][0]["content"][0] == {
        "type": "input_file",
        "filename": "document.pdf",
        "file_data": f"data:application/pdf;base64,{DATA}",
    }
    call(source="https://example.com/a.pdf", backend=backend)
    assert server.seen[-1].body["input"][0]["content"][0] == {"type": "input_file", "file_url": "https://example.com/a.pdf"}


def test_anthropic_thinks_about_it_beside_tools(anthropic, path):
    @lmc.function
    def agent(s):
        s += lmc.user(lmc.document(path) + lmc.document("https://example.com/b.pdf") + "tea")
        s += lmc.assistant(lmc.gen("first", tools=TOOLS, max_tokens=200))
        for call in s.get_meta_info("first")["tool_calls"]:
            s += lmc.tool_result(call, lmc.call_tool(call, TOOLS))
        s += lmc.assistant(lmc.gen("second", max_tokens=100))
        return s.get_meta_info("first")["reasoning"]

    backend, server = anthropic(TextModel(script), extra_body={"thinking": {"type": "enabled", "budget_tokens": 50}})
    state = agent.run(backend=backend)
    assert "to think about" in state.ret_value and state["second"]
    first, url, _ = server.seen[-1].body["messages"][0]["content"]
    first.pop("cache_control", None)
    assert first == {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}}
    assert url == {"type": "document", "source": {"type": "url", "url": "https://example.com/b.pdf"}}
    assert next(b["type"] for b in server.seen[-1].body["messages"][1]["content"]) == "thinking"


def test_what_is_refused(openai, path, tmp_path):
    (tmp_path / "no.pdf").write_bytes(b"words")
    backend, server = openai(TextModel(), server="openai")
    for source, match in (
        (tmp_path / "no.pdf", "no PDF"),
        (b"", "empty"),
        (tmp_path / "nowhere.pdf", r"document\(.*nowhere\.pdf"),
        (PDF + b"x" * (33 << 20), "32"),
    ):
        with pytest.raises(lmc.LmcError, match=match) as caught:
            read.run(source=source, backend=backend).sync()
        assert caught.value.loc is not None and caught.value.loc.file.endswith("test_documents.py")
    compatible, other = openai(TextModel())
    with pytest.raises(lmc.UnsupportedOpError, match="document input"):
        read.run(source=path, backend=compatible).sync()

    @lmc.function
    def picture(s):
        s += lmc.user(lmc.image(PDF))

    with pytest.raises(lmc.ParameterError, match=r"lmc\.document"):
        picture.run(backend=backend)
    assert not server.seen and not other.seen


def test_it_is_in_journals_and_on_the_mock(openai, path, tmp_path):
    backend, server = openai(TextModel(), server="openai")
    value = read.run(source=str(path), backend=backend, temperature=0, journal=tmp_path / "j").ret_value
    assert read.run(source=str(path), backend=backend, temperature=0, journal=tmp_path / "j").ret_value == value and len(server.seen) == 1
    assert read.run(source=path, backend=lmc.Mock()).ret_value is not None
