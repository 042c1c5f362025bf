"""Backends by name: each form makes its backend; what is none says what there is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import lmc
from lmc import named
from lmc.errors import ModelLoadError, ParameterError


class Made:
    """A module whose classes are makers of these names; what it does not have is an error."""

    def __init__(self, module: str, maker: Any) -> None:
        self._module, self._maker = import_module(module), maker

    def __getattr__(self, name: str) -> Any:
        assert isinstance(getattr(self._module, name), type)
        return self._maker(name)


@pytest.fixture
def made(monkeypatch) -> list[tuple[Any, ...]]:
    """The calls that names make, instead of clients and models."""
    found: list[tuple[Any, ...]] = []

    def maker(name: str) -> Any:
        return lambda *args, **options: found.append((name, *args, options) if options else (name, *args))

    monkeypatch.setattr(named, "import_module", lambda module: Made(module, maker))
    monkeypatch.setattr(named, "hide_in_constructor", lambda found: None)
    monkeypatch.setattr(named, "_engine", maker("_engine"))
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mock", ("Mock",)),
        ("smollm2", ("_engine", "smollm2")),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", ("_engine", "HuggingFaceTB/SmolLM2-135M-Instruct")),
        ("openai:gpt-x", ("OpenAI", "gpt-x")),
        ("openai:org/model@http://127.0.0.1:8000/v1", ("OpenAI", "org/model", {"base_url": "http://127.0.0.1:8000/v1"})),
        ("openai:ft:gpt@team", ("OpenAI", "ft:gpt@team")),
        ("anthropic:claude-x", ("Anthropic", "claude-x")),
        ("litellm:azure/x", ("LiteLLM", "azure/x")),
        ("vertexai:claude@2024", ("VertexAI", "claude@2024")),
        ("vertexai:gemini-x", ("VertexAI", "gemini-x")),
        ("vllm:http://127.0.0.1:8000", ("VLLM", "http://127.0.0.1:8000")),
        ("sglang:http://a:1,http://b:2", ("SGLang", ["http://a:1", "http://b:2"])),
    ],
)
def test_each_form_makes_its_backend(made, name, expected):
    named.open_backend(name)
    assert made == [expected]
    assert named.is_model(name) == (expected[0] == "_engine")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mok", "did you mean mock?"),
        ("gpt-4.1-mini", "did you mean openai:gpt-4.1-mini?"),
        ("nope", "); expected one of"),
        ("opneai:gpt-x", "did you mean openai:…?"),
        ("openai:", "names no model"),
        ("vllm:", "names no URL"),
        ("missing.gguf", "there is no such file or folder"),
        ("x" * 300, "there is no such file or folder"),
        ("~nobody-here/model", "there is no such file or folder"),
    ],
)
def test_what_names_no_backend_says_what_there_is(made, name, says):
    with pytest.raises(ParameterError, match=r"openai:MODEL\[@URL\]") as caught:
        named.open_backend(name)
    assert says in str(caught.value) and made == []


def test_a_hub_id_that_looks_like_a_model_of_an_api_says_how_that_is_written(monkeypatch):
    def missing(name: str) -> Any:
        raise ModelLoadError(f"{name}: not loadable as a hub id")

    monkeypatch.setattr(named, "_engine", missing)
    for name, hint in (("openai/gpt-4", r"\na model behind an API is written openai:gpt-4"), ("someone/model", ""), ("vllm/model", "")):
        with pytest.raises(ModelLoadError, match=f"^{name}: not loadable as a hub id{hint}$"):
            named.open_backend(name)


@pytest.mark.parametrize(
    "name", ["openai:x@localhost:8000/v1", "openai:x@localhost", "openai:x@10.0.0.1/v1", "openai:x@", "anthropic:x@host:3", "openai:a@b@host:1"]
)
def test_a_url_without_its_scheme_is_not_asked_of_the_apis_own_servers(made, name):
    with pytest.raises(ParameterError, match="is no URL, which begins with http:// or https://"):
        named.open_backend(name)
    assert made == []


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"has no config\.json"):
        named.open_backend(str(tmp_path))


def test_the_real_ones_are_there():
    assert isinstance(named.open_backend("mock"), lmc.Mock)


@pytest.mark.parametrize("name, shown", [
    ("openai:m@http://user:pw@host/v1", "openai:m"), ("anthropic:claude", "anthropic:claude"), ("vllm:http://user:pw@host:1", "vllm:http://host:1"),
    ("mock", "mock"), ("a/b@http://x", "a/b@http://x"),
])  # fmt: skip
def test_the_name_for_clients_has_no_password(name, shown):
    assert named.public(name) == shown


def test_a_mistaken_name_is_said_without_its_password():
    with pytest.raises(ParameterError) as raised:
        named.open_backend("opneai:m@http://user:pw1234@host/v1")
    assert "pw1234" not in str(raised.value) and "did you mean openai:…?" in str(raised.value)


def test_a_models_folder_is_nobodys_business(tmp_path, monkeypatch):
    """`lmc serve` named it by its path, to everybody."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.gguf").touch()
    monkeypatch.chdir(tmp_path / "mine")
    assert [named.public(name) for name in (str(tmp_path / "mine"), f"{tmp_path}/mine.gguf", "../mine/", ".", "owner/name")] == [
        "mine",
        "mine.gguf",
        "mine",
        "mine",
        "owner/name",
    ]
