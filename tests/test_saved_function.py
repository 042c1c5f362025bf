"""Saved programs whose function cannot be found, or that have options of calls, say so."""

import hashlib
import json

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


def test_a_file_that_holds_something_else_is_refused_however_sound_its_checksum(tmp_path):
    path = tmp_path / "kept.lmcp"
    lmc.compile(kept).save(path)
    saved = json.loads(path.read_text().partition("\n")[2])
    for part, name, value in [("measured", "cost", "much"), ("measured", "asked", None), ("measured", "evaluations", 1e999), ("program", "source", 5)]:
        _write(path, {**saved, part: {**saved[part], name: value}})
        with pytest.raises(lmc.ProgramError, match="does not hold a program"):
            lmc.load(path)
        _write(path, {**saved, part: {key: x for key, x in saved[part].items() if key != name}})
        with pytest.raises(lmc.ProgramError, match=f"does not hold a program: KeyError: '{name}'"):
            lmc.load(path)
    _write(path, {**saved, "program": {**saved["program"], "async": True}})
    with pytest.raises(lmc.ProgramError, match=r"was saved when .*:kept had another source"):
        lmc.load(path, backend=lmc.Mock())()


def _write(path, saved):
    body = json.dumps(saved).encode()
    path.write_bytes(f"lmc-program 2 {hashlib.blake2b(body, digest_size=12).hexdigest()}\n".encode() + body)
