"""Errors show the user's frames alone, the item of a batch, and that answers are text."""

from __future__ import annotations

import asyncio
import fractions
import inspect
import json
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, cast

import pytest

import lmc
from lmc.durable.reaches import from_library
from lmc.errors import Loc
from lmc.tracebacks import users_line

HERE = lmc.__file__.removesuffix("__init__.py")


@lmc.function
def fails(s: Any, x: int) -> None:
    s += "Q" + lmc.gen("n", max_tokens=4)
    if x == 2:
        fail(s["n"])


def fail(answer: str) -> None:
    raise ValueError(f"not {answer}")


def raise_again(error: BaseException | None) -> None:
    assert error is not None
    raise error


@lmc.function
def misspells(s: Any) -> str:
    s += "Q" + lmc.gen("n", max_tokens=4) + lmc.gen(max_tokens=2)
    return s["m"]


@lmc.function
def wrong_ask(s: Any) -> None:
    s += "Q" + lmc.gen("n", max_tokens=-4)


@lmc.function
async def fails_later(s: Any, x: int) -> None:
    s += "Q" + lmc.gen("n", max_tokens=4)
    fail(s["n"])


MOCK = lmc.Mock()
ITEMS = [{"x": i} for i in range(4)]
CALLS = {
    "run": (lambda: fails.run(x=2, backend=MOCK), ["fails", "fail"]),
    "compiled": (lambda: lmc.compile(fails, backend=MOCK)(x=2), ["fails", "fail"]),
    "run_batch": (lambda: fails.run_batch(ITEMS, backend=MOCK), ["fails", "fail"]),
    "generator_style": (lambda: list(fails.run_batch(ITEMS, backend=MOCK, generator_style=True)), ["fails", "fail"]),
    "batch": (lambda: lmc.compile(fails, backend=MOCK).batch(ITEMS), ["fails", "fail"]),
    "returned": (lambda: raise_again(lmc.compile(fails, backend=MOCK).batch(ITEMS, errors="return")[2].error()), ["raise_again", "fails", "fail"]),
    "acall": (lambda: asyncio.run(lmc.compile(fails, backend=MOCK).acall(x=2)), ["fails", "fail"]),
    "arun": (lambda: asyncio.run(fails_later.arun(x=2, backend=MOCK)), ["fails_later", "fail"]),
    "stream": (lambda: fails.run(x=2, backend=MOCK, stream=True).ret_value, ["fails", "fail"]),
    "misspelt": (lambda: misspells.run(backend=MOCK), ["misspells"]),
    "read outside": (lambda: fails.run(x=1, backend=MOCK)["m"], []),
    "wrong ask": (lambda: wrong_ask.run(backend=MOCK), ["wrong_ask"]),
    "wrong argument": (lambda: fails.run(y=1, backend=MOCK), []),
    "wrong option": (lambda: lmc.compile(fails, backend="mok"), []),
}


def frames(call: Any) -> tuple[BaseException, list[traceback.FrameSummary]]:
    """Return the exception of a call, and the frames of its traceback below this one."""
    with pytest.raises(Exception) as caught:
        call()
    return caught.value, [f for f in traceback.extract_tb(caught.value.__traceback__)[1:] if f.name != "<lambda>"]


@pytest.mark.parametrize("name", CALLS)
def test_the_frames_are_the_users(name):
    call, expected = CALLS[name]
    error, found = frames(call)
    assert [f.name for f in found if f.filename == __file__] == expected
    assert HERE not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("name", ["run", "batch", "misspelt"])
def test_lmc_debug_shows_all_of_them(name):
    lmc.config(debug=1)
    try:
        _, found = frames(CALLS[name][0])
        assert any(f.filename.startswith(HERE) for f in found)
    finally:
        lmc.config(debug=0)


def test_an_interrupted_wait_shows_where_the_user_was():
    @lmc.function
    def interrupts(s):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        s += lmc.gen("x", max_tokens=4)
        return s["x"]

    for call in (
        lambda: lmc.compile(interrupts).batch([{}], backend=lmc.Mock(latency=30)),
        lambda: interrupts.run_batch([{}], backend=lmc.Mock(latency=30)),
        lambda: list(lmc.compile(interrupts).stream(backend=lmc.Mock(latency=30)).text_iter("x")),
        lambda: list(lmc.compile(interrupts).as_completed([{}], backend=lmc.Mock(latency=30))),
    ):
        with pytest.raises(KeyboardInterrupt) as caught:
            call()
        assert HERE not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("read", [lambda s: s["x"], lambda s: s.error(), lambda s: s.usage])
def test_an_interrupted_read_of_a_stream_shows_where_the_user_was(read):
    main = threading.main_thread().ident

    @lmc.function
    def interrupts(s):
        while not sys._current_frames()[main].f_code.co_filename.endswith("/lmc/waiting.py"):
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)
        s += lmc.gen("x", max_tokens=4)
        return s["x"]

    state = interrupts.run(backend=lmc.Mock(latency=30), stream=True)
    with pytest.raises(KeyboardInterrupt) as caught:
        read(state)
    assert HERE not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("call", [lambda p: p.acall(backend=lmc.Mock(latency=30)), lambda p: p.abatch([{}], backend=lmc.Mock(latency=30))])
def test_a_cancelled_await_shows_where_the_user_was(call):
    """As a cell of a notebook is interrupted."""
    began = threading.Event()

    @lmc.function
    def waits(s):
        began.set()
        s += lmc.gen("x", max_tokens=4)
        return s["x"]

    async def main():
        task = asyncio.ensure_future(call(lmc.compile(waits)))
        await asyncio.to_thread(began.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        return traceback.format_exception(caught.value)

    assert HERE not in "".join(asyncio.run(main()))


def test_a_fault_of_lmc_keeps_its_frames(monkeypatch):
    monkeypatch.setattr("lmc.frontend.beginning.LiveEmitter", None)
    error, found = frames(lambda: fails.run(x=1, backend=MOCK))
    assert isinstance(error, TypeError) and any(f.filename.startswith(HERE) for f in found)


@pytest.mark.parametrize("name", ["run_batch", "generator_style", "batch"])
def test_an_error_of_a_batch_says_which_item_it_is_of(name):
    error, _ = frames(CALLS[name][0])
    assert error.__notes__ == ["(item 2 of the batch: x=2)"]


def test_unnamed_answers_are_not_listed():
    assert str(frames(CALLS["misspelt"][0])[0]).endswith("no variable 'm'; there are: 'n'")
    state = lmc.function(lambda s: s.__iadd__("Q" + lmc.gen(max_tokens=2))).run(backend=MOCK)
    assert repr(state).endswith("variables: none>")
    assert str(frames(lambda: state["m"])[0]).endswith("there is none that has a name; s += lmc.gen('m', …) makes one")


@lmc.function
def adds(s: Any) -> Any:
    s += "Q" + lmc.gen("n", regex="[1-9]")
    return s["n"] + 1


@lmc.function
def compares(s: Any) -> Any:
    s += "Q" + lmc.gen("n", max_tokens=3) + lmc.gen("k", max_tokens=3)
    return max(
        1,
        2) < s["n"]


@lmc.function
def other_mistake(s: Any) -> Any:
    s += "Q" + lmc.gen("n", max_tokens=3)
    return [s["n"]] and len(3)


@lmc.function
def misnames(s: Any) -> Any:
    s += "Q" + lmc.gen("n", max_tokens=3)
    return fail(s["n"], loudly=True)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


@lmc.function
def parses(s: Any) -> Any:
    s += "Q" + lmc.gen("n", max_tokens=3)
    return json.loads(s["n"])


@lmc.function
async def awaits(s: Any) -> Any:
    s += "Q" + lmc.gen("n", max_tokens=3)
    return await s["n"]


@pytest.mark.parametrize("compiled", [False, True])
def test_arithmetic_on_an_answer_explains_itself(compiled):
    def raised(program: Any, n: str = "7") -> list[str]:
        mock = lmc.Mock(answers={"n": n, "k": "8"})
        call = lmc.compile(program, backend=mock) if compiled else lambda: program.run(backend=mock)
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        return getattr(caught.value, "__notes__", [])

    assert raised(adds) == ["(s['n'] is text, like everything a model writes: here '7'; write int(s['n']))"]
    assert raised(compares) == ["(s['n'] is text, like everything a model writes: here '7'; write int(s['n']))"]
    assert raised(compares, "two") == ["(s['n'] is text, like everything a model writes: here 'two'; ask with gen('n', dtype=int), and read s.parsed('n'))"]
    assert raised(other_mistake) == raised(misnames) == []
    assert raised(parses, "yes") == ["(s['n'] is 'yes'; a type makes it parse: gen('n', dtype=…), then s.parsed('n'))"]
    cut = "(s['n'] is '{\"a', cut by max_tokens; a type makes it parse: gen('n', dtype=…), then s.parsed('n'))"
    assert raised(parses, '{"a": 1}') == [cut]
    assert raised(awaits) == ["(s['n'] is the answer already: reading waits for it, without an await)"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lmc.compile(fails, output=["n"]), "compile() has no parameter 'output'; did you mean 'outputs'?"),
        (lambda: lmc.user("a", "b"), "user() takes from 0 to 1 positional arguments but 2 were given: it takes expr"),
        (lambda: lmc.Mock(latncy=1), "Mock() has no parameter 'latncy'; did you mean 'latency'?"),
        (lambda: lmc.Budget(token=3), "Budget() has no parameter 'token'; did you mean 'tokens'?"),
    ],
)
def test_arguments_that_a_public_function_does_not_take_are_named(call, says):
    error, found = frames(call)
    assert isinstance(error, TypeError) and str(error).endswith(says)
    assert not any(frame.filename.startswith(HERE) for frame in found)


def unpacked(state: Any) -> None:
    _, _ = state


@lmc.function
def gentle(s: lmc.State) -> None:
    s += "x"


WRONG: list[tuple[Callable[[Any], Any], Any, str]] = [
    (lambda x: lmc.compile(gentle, outputs=x), 3, "compile(outputs=3): must be Sequence[str] | None"),
    (lambda x: lmc.compile(gentle).dump_ir(format=x), [], "Program.dump_ir(format=[]): must be str"),
    (lmc.get_chat_template, {}, "get_chat_template(name={}): must be str"),
    (lambda x: lmc.Journal("j", keep=x), "1d", "Journal(keep='1d'): must be float | timedelta | None"),
    (lambda x: lmc.Retry(wait=x), None, "Retry(wait=None): must be float"),
    (lambda x: lmc.Mock(capabilities=x), 1, "Mock(capabilities=1): must be Capabilities"),
    (lambda x: lmc.Routed(lmc.Mock(), x), "x", "Routed(sites='x'): must be Mapping[Any, Backend | str]"),
    (lambda x: lmc.Routed(x, {}), 1, "backend=1: a backend such as lmc.Engine() or its name, such as 'mock', not int"),
    (lambda x: lmc.Routed(x, {}), lmc.Mock, "backend=Mock: that is the class, not a backend; call it, as in lmc.Mock(…)"),
    (lmc.SGLang, None, "SGLang(base_url=None): must be str | Sequence[str]"),
    (lmc.VLLM, [1], "url=1: must be the URL of a server, as text"),
    (lambda x: lmc.certify(gentle, x, lmc.Mock(), lmc.Mock()), 3, "certify(items=3): must be Iterable[Mapping[str, Any] | Sequence[Any]]"),
    (lambda x: lmc.certify(gentle, [{}], lmc.Mock(), x), None, "certify: b is None; it must be a backend or its name"),
    (lmc.flush_cache, 3, "backend=3: a backend such as lmc.Engine() or its name, such as 'mock', not int"),
]


@pytest.mark.parametrize(("call", "value", "says"), WRONG)
def test_an_argument_of_a_wrong_type_is_named_and_what_it_must_be(call: Callable[[Any], Any], value: Any, says: str) -> None:
    with pytest.raises(lmc.ArgumentError, match=re.escape(says)) as caught:
        call(value)
    assert all("/lmc/" not in entry.filename for entry in traceback.extract_tb(caught.value.__traceback__)[1:]) or call is lmc.flush_cache


@pytest.mark.parametrize("file", [__file__, "<stdin>", "/lib/site-packages/theirs.py"])
def test_an_error_of_code_of_others_is_not_blamed_on_an_argument(file: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("class Names:\n    def __iter__(self):\n        raise TypeError('mine')", file, "exec"), names)
    with pytest.raises(TypeError, match=r"^mine$"):
        lmc.compile(gentle, outputs=cast("Any", names["Names"]()))


def test_a_number_of_another_class_is_not_blamed_and_the_first_error_is_told() -> None:
    with pytest.raises(lmc.ArgumentError, match=re.escape("Retry(factor=None): must be float")) as caught:
        lmc.Retry(3, cast("Any", fractions.Fraction(1, 2)), cast("Any", None))
    assert caught.value.__notes__ == ["(TypeError: '>=' not supported between instances of 'NoneType' and 'int')"]


@pytest.mark.parametrize("use", [list, unpacked, lambda state: state[0]])
def test_a_state_has_no_items(use: Any):
    with pytest.raises(TypeError, match=r"a state has no items: read an answer with s\['name'\], .* s.ret_value, its text .* s.text_iter"):
        use(fails.run(x=1, backend=MOCK))


def test_a_warning_names_the_users_line():
    @lmc.function
    def misspelt(s: Any) -> None:
        s += "Q" + lmc.gen("n", json_schema={"propertys": {}})

    with pytest.warns(lmc.SchemaWarning, match="did you mean 'properties'") as warned:
        misspelt.run(backend=lmc.Mock())
    line = misspelt.func.__code__.co_firstlineno + 2
    assert {(w.filename, w.lineno) for w in warned} == {(__file__, line)}


@pytest.mark.parametrize(("file", "found"), [
    ("app/prog.py", True), ("lib/python3/dist-packages/package/code.py", False), (f"lib/python{sys.version_info[0]}.{sys.version_info[1]}_app/prog.py", True),
])
def test_code_below_pythons_prefix_may_be_the_users(file: str, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is the system's, /usr is its prefix, and programs may be in /usr/src; its packages are in /usr/lib/python3/dist-packages."""
    try:
        exec(compile("1 / 0", os.path.join(sys.base_prefix, file), "exec"))
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this file's line
        assert (users_line(error) is not None) is found
    module = types.ModuleType("of_this_test")
    module.__file__ = os.path.join(sys.base_prefix, file)
    monkeypatch.setitem(sys.modules, "of_this_test", module)
    exec("def tool(): ...", vars(module))
    assert from_library(vars(module)["tool"]) is not found


@lmc.function
async def awaits_a_state(s: Any) -> None:
    await fails(x=1)


@lmc.function
async def iterates_over_a_state(s: Any) -> None:
    async for _ in fails(x=1):
        pass


@pytest.mark.parametrize(("program", "says"), [(awaits_a_state, r"awaited in async code is program\.arun"), (iterates_over_a_state, "state.text_async_iter")])
def test_a_state_that_is_awaited_says_which_call_is_meant(program: Any, says: str) -> None:
    with pytest.raises(TypeError) as raised:
        asyncio.run(program.arun(backend=MOCK))
    assert re.search(says, raised.value.__notes__[0])


def test_backends_go_by_name():
    one = fails.run(x=1, backend="mock").text()
    assert one == lmc.compile(fails, backend="mock")(x=1).text() == fails.run(x=1, backend=lmc.Mock()).text()
    assert lmc.config.named_backend("mock") is lmc.config.named_backend("mock")
    before = lmc.config.default_backend() if lmc.config.has_default_backend() else None
    try:
        lmc.set_default_backend("mock")
        assert fails.run(x=1).text() == one
    finally:
        lmc.set_default_backend(before)


@pytest.mark.parametrize("wrong", ['lmc.gen("x", regex="[")', 'lmc.gen("x", temprature=1)', 'lmc.select("x", choices=[])', "lmc.user(3)", 'lmc.gen_int(3)'])
def test_expressions_that_are_wrong_outside_of_programs_show_no_frame_of_lmc(wrong: str) -> None:
    with pytest.raises(lmc.LmcError) as raised:
        exec(compile(wrong, "users.py", "exec"))
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert files[-1] == "users.py" and not any(file.startswith(HERE) for file in files)


@pytest.mark.parametrize("wrong", [
    "lmc.compile(fails).run()", "fails.batch([])", "lmc.gen('x').foo", "lmc.gen('x')[0]", "fails.bind(y=1)", "fails.options(sed=1)",
    "lmc.compile(fails).explain('pdf')",
    "lmc.compile(fails).dump_ir(after='x')", "lmc.compile(fails).lower(y=1)", "lmc.compile(fails).as_completed([{'y': 1}])", "lmc.load('nope')",
    "lmc.config(seed='x')",
    "lmc.set_default_backend('nope')", "lmc.get_chat_template('nope')", "lmc.function(3)", "lmc.Mock(answers=3)", "lmc.Mock(parse_special=True)",
    "lmc.Budget(tokens=-1)", "lmc.Prices('a', 1)", "lmc.Prices(1, -1)",
    "lmc.Journal(3)", "lmc.Retry(times=0)", "lmc.VLLM('http://127.0.0.1:1')",
])  # fmt: skip
def test_every_way_into_lmc_shows_the_users_frames(wrong: str) -> None:
    with pytest.raises((lmc.LmcError, AttributeError)) as raised:
        exec(compile(wrong, "users.py", "exec"), {"lmc": lmc, "fails": fails})
    files = [frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert files[-1] in ("users.py", "<string>") and not any(file.startswith(HERE) for file in files)


def test_a_class_whose_constructor_hides_frames_is_the_same_class() -> None:
    from lmc.backend.mock import Mock
    from lmc.limits import Budget

    assert lmc.Mock is Mock and lmc.Budget is Budget and "latency" in inspect.signature(Mock).parameters
    assert list(inspect.signature(lmc.Budget).parameters)[:1] == ["tokens"]


def test_of_a_long_line_the_part_around_the_column_is_shown(tmp_path):
    line = "s += '" + "a" * 1000 + "' + here + '" + "b" * 1000 + "'"
    (tmp_path / "a.py").write_text(line + "\n")
    shown, caret = Loc(str(tmp_path / "a.py"), 1, line.index("here")).excerpt().split("\n")
    assert shown[caret.index("^") :].startswith("here + ") and len(shown) < 200


def _kinds(cls: type[lmc.LmcError]) -> list[type[lmc.LmcError]]:
    return [cls, *(kind for sub in cls.__subclasses__() for kind in _kinds(sub))]


MADE_OF: dict[type[lmc.LmcError], dict[str, Any]] = {
    lmc.MissingPackageError: {"message": "no x", "name": "x"}, lmc.UnsupportedOpError: {"op": "gen", "target": "mock", "hint": "none"},
    lmc.Interrupted: {"question": "yes?", "schema": "{}", "item": 2, "number": 1, "journal": "runs"},
}  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in _kinds(lmc.LmcError) if kind.__module__ == "lmc.errors"])
def test_errors_come_back_from_other_processes_as_they_are(kind):
    error = kind(**MADE_OF.get(kind, {"message": "what, where"}), loc=Loc(__file__, 3))
    error.add_note("item 3")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind and str(again) == str(error) and repr(again) == repr(error)
    assert vars(again) == vars(error) and getattr(again, "name", None) == getattr(error, "name", None)
