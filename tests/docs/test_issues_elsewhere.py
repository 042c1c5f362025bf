"""The programs of docs/issues-elsewhere.md, each by itself."""

import re
import types
from importlib.util import find_spec

import pytest

from tests.docs.test_docs import ROOT
from tests.searching import apart, some

PAGE = (ROOT / "docs" / "issues-elsewhere.md").read_text("utf-8")
SECTION = re.compile(r"^### (\d+)\. (\S+) #(\d+): [^\n]*\n(?:(?!#|```)[^\n]*\n)*```python ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = [(int(number), f"{project}#{issue}", kind, code) for number, project, issue, kind, code in SECTION.findall(PAGE)]
LIMIT = 20
"""Lines of a program that are not blank."""


def of(kind):
    return [pytest.param(number, code, id=f"{number} {issue}") for number, issue, its, code in PROGRAMS if its == kind]


def run(number, code, tmp_path, **names):
    path = tmp_path / f"program_{number}.py"  # a real file: lmc.function reads its source
    path.write_text(code)
    module = types.ModuleType(path.stem)
    module.__dict__.update(names, __file__=str(path))
    exec(compile(code, str(path), "exec"), module.__dict__)


def test_thirty_issues_have_a_program_each():
    assert [number for number, *_ in PROGRAMS] == list(range(1, 31))
    assert len({issue for _, issue, *_ in PROGRAMS}) == 30


@pytest.mark.parametrize("number, issue, kind, code", PROGRAMS, ids=[f"{number}" for number, *_ in PROGRAMS])
def test_programs_are_short(number, issue, kind, code):
    assert len([line for line in code.splitlines() if line.strip()]) <= LIMIT


@some("number, code", of(""), 3)
def test_a_program_holds(number, code, tmp_path):
    run(number, code, tmp_path)


@apart
@pytest.mark.model
@pytest.mark.parametrize("number, code", of("slow"))
def test_a_program_that_takes_longer_holds(number, code, tmp_path):
    run(number, code, tmp_path)


def openai():
    from tests.api import batch_servers
    from tests.api.text_model import TextModel

    return batch_servers.serve_openai(TextModel(), stand_in={"name": "*"})[1]


def batches():
    from tests.api import batch_servers
    from tests.api.text_model import TextModel

    return batch_servers.serve_anthropic(TextModel())[1]


def cache():
    from tests.api.cache_billing import CachingModel
    from tests.api.http import Server
    from tests.api.text_model import TextModel

    model = CachingModel(TextModel(lambda prompt: "Done."), delay=0.02)
    return Server(model.handle, plant=model.arrives)


@pytest.mark.api
@pytest.mark.parametrize(
    "number, serve, code",
    [pytest.param(n, serve, code, id=f"{n} {issue}") for n, issue, kind, code in PROGRAMS for serve in (openai, batches, cache) if serve.__name__ == kind],
)
def test_a_program_holds_against_a_stand_in(number, serve, code, tmp_path, monkeypatch):
    from lmc.backend.api import batches
    from tests.api.test_batches import FakeClock

    monkeypatch.setattr(batches, "clock", FakeClock())  # nobody waits for batches
    with serve() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        run(number, code, tmp_path, ANTHROPIC=server.url)


@pytest.mark.api
@pytest.mark.skipif(find_spec("dspy") is None, reason="needs dspy: make clients")
@pytest.mark.parametrize("number, code", of("dspy"))
def test_a_program_holds_with_dspy(number, code, tmp_path):
    import dspy

    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    run(number, code, tmp_path)
    dspy.configure(lm=None, adapter=None, callbacks=[])
