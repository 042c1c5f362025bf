"""A saved program whose function cannot be found says so where it is called."""

import lmc


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
