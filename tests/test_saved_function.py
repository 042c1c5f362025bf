"""Saved programs whose function cannot be found, or that have options of calls, say so."""

import hashlib
import json
import sys

import pytest

import lmc


@lmc.function
def kept(s):
    s += lmc.gen("x", max_tokens=2)
    return s["x"]


def test_a_function_that_is_gone_is_named_at_the_call(tmp_path, monkeypatch):
    (tmp_path / "gone_program.py").write_text("import lmc\n\n@lmc.function\ndef ask(s):\n    s += lmc.gen('x')\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("gone_program")
    lmc.compile(module.ask, backend=lmc.Mock()).save(tmp_path / "ask.lmcp")
    del module.ask
    program = lmc.load(tmp_path / "ask.lmcp", backend=lmc.Mock())
    try:
        program()
    except lmc.ProgramError as error:
        assert error.loc is not None and error.loc.file == __file__
        assert "gone_program:ask" in error.message and "import it under this name" in error.message
    else:
        raise AssertionError("it ran without its function")


WITH_DEFAULTS = """
import dataclasses, enum
import lmc

@dataclasses.dataclass
class Settings:
    times: int = 3

class Tone(enum.Enum):
    DRY = "dry"

@lmc.function
def ask(s, q, settings=Settings(), tone=Tone.DRY):
    s += q * settings.times + tone.value + lmc.gen("x", max_tokens=2)
    return settings, s["x"]
"""


def test_a_default_of_a_class_of_the_program_is_there_when_its_module_is(tmp_path, monkeypatch):
    (tmp_path / "with_defaults.py").write_text(WITH_DEFAULTS)
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("with_defaults")
    programs = {"ask": module.ask, "bound": module.ask.bind(settings=module.Settings(2))}
    texts = {name: program.run("a", seed=1, backend=lmc.Mock()).text() for name, program in programs.items()}
    for name, program in programs.items():
        lmc.compile(program).save(tmp_path / f"{name}.lmcp")
    for name, text in texts.items():
        monkeypatch.delitem(sys.modules, "with_defaults")
        loaded = lmc.load(tmp_path / f"{name}.lmcp", backend=lmc.Mock())
        assert "with_defaults" not in sys.modules and "gen" in loaded.dump_ir()
        state = loaded("a", seed=1)
        assert state.text() == text and isinstance(state.ret_value[0], sys.modules["with_defaults"].Settings)
        monkeypatch.delitem(sys.modules, "with_defaults")
        (state,) = lmc.load(tmp_path / f"{name}.lmcp", backend=lmc.Mock()).batch([{"q": "a"}], seed=1, journal=tmp_path / f"{name}-runs")
        assert state.text() == text
        monkeypatch.delitem(sys.modules, "with_defaults")
        assert lmc.load(tmp_path / f"{name}.lmcp").options(backend=lmc.Mock())("a", seed=1).text() == text
    monkeypatch.delitem(sys.modules, "with_defaults")
    (tmp_path / "with_defaults.py").write_text(WITH_DEFAULTS.replace("DRY", "WET").replace("tone=Tone.WET", "tone=1"))
    with pytest.raises(lmc.ProgramError, match="another source"):
        lmc.load(tmp_path / "ask.lmcp", backend=lmc.Mock())("a")


def test_options_belong_to_calls_and_not_to_the_file(tmp_path):
    path = tmp_path / "kept.lmcp"
    with pytest.raises(lmc.ProgramError, match=r"cannot be saved with options \(temperature, seed\).*give them to what lmc.load returns") as caught:
        lmc.compile(kept.options(temperature=0, seed=3)).save(path)
    assert caught.value.loc is not None and caught.value.loc.file == __file__ and not path.exists()
    lmc.compile(kept).save(path)
    loaded = lmc.load(path, backend=lmc.Mock()).options(temperature=0, seed=3)
    assert loaded().ret_value == kept.run(temperature=0, seed=3, backend=lmc.Mock()).ret_value


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path):
    with pytest.raises(lmc.ProgramError, match=r"cannot be written: there is no folder \S+otu"):
        lmc.compile(kept).save(tmp_path / "otu" / "kept.lmcp")
    assert not (tmp_path / "otu").exists()


@pytest.mark.parametrize(("path", "says"), [(5, "path=5: must be a path"), (b"x", "must be a path"), ("a\0b", "embedded null"), ("x" * 300, "too long")])
def test_a_path_is_one_that_a_file_can_have(path, says):
    for use in (lmc.compile(kept).save, lmc.load):
        with pytest.raises(lmc.LmcError, match=says):
            use(path)


def test_a_program_is_not_written_over_a_folder(tmp_path):
    with pytest.raises(lmc.ProgramError, match="it is a folder; name a file in it"):
        lmc.compile(kept).save(tmp_path)


def test_a_file_that_holds_something_else_is_refused_however_sound_its_checksum(tmp_path):
    path = tmp_path / "kept.lmcp"
    lmc.compile(kept).save(path)
    saved = json.loads(path.read_text().partition("\n")[2])
    for part, name, value in [
        ("program", "bound", [["x", {"!": ["nothing"]}]]), ("program", "parameters", [["q", 1, None, {"!": []}]]), ("program", "source", 5),
        ("measured", "cost", "much"), ("measured", "asked", None), ("measured", "evaluations", 1e999),
    ]:  # fmt: skip
        _write(path, {**saved, part: {**saved[part], name: value}})
        with pytest.raises(lmc.ProgramError, match="does not hold a program"):
            lmc.load(path)
        _write(path, {**saved, part: {key: x for key, x in saved[part].items() if key != name}})
        with pytest.raises(lmc.ProgramError, match=f"does not hold a program: KeyError: '{name}'"):
            lmc.load(path)
    _write(path, {**saved, "graph": ["graph x"]})
    with pytest.raises(lmc.LmcError) as error:
        lmc.load(path)
    assert f"the graph in {path}:1: found 'x'" in str(error.value) and "lmc-program" not in str(error.value)  # which is line 1 of the file
    _write(path, {**saved, "program": {**saved["program"], "async": True}})
    with pytest.raises(lmc.ProgramError, match=r"was saved when .*:kept had another source"):
        lmc.load(path, backend=lmc.Mock())()


def test_no_more_is_read_of_a_file_than_a_saved_program_can_be(tmp_path, monkeypatch):
    with pytest.raises(lmc.ProgramError, match="is not a saved program"):
        lmc.load("/dev/zero")  # has no end
    lmc.compile(kept).save(tmp_path / "kept.lmcp")
    monkeypatch.setattr("lmc.saved_programs._MOST", 100)
    with pytest.raises(lmc.ProgramError, match="is too large for a saved program"):
        lmc.load(tmp_path / "kept.lmcp")


def _write(path, saved):
    body = json.dumps(saved).encode()
    path.write_bytes(f"lmc-program 2 {hashlib.blake2b(body, digest_size=12).hexdigest()}\n".encode() + body)


def test_a_function_that_its_module_does_not_have_is_refused(tmp_path):
    names = {"lmc": lmc, "__name__": __name__}
    exec("@lmc.function\ndef made(s):\n    s += 'a'\n", names)
    with pytest.raises(lmc.ProgramError, match=r"made\(\).* cannot be saved: no other process could find its function by a name"):
        lmc.compile(names["made"]).save(tmp_path / "made.lmcp")
