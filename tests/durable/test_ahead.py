"""Journaled runs that are asked ahead: what the journal knows is not asked again."""

import lmc
from tests.backend.gated import Gated
from tests.conformance.harness import eager


class Killed(BaseException):
    pass


def test_what_the_journal_has_is_not_asked_ahead_when_the_run_is_resumed(tmp_path):
    broken = [True]

    @lmc.host(idempotent=True)
    def tool(i):
        if i == 2 and broken[0]:
            raise Killed

    @lmc.function
    def notes(s, documents):
        found = []
        for i, document in enumerate(documents):
            tool(i)
            f = s.fork(1)[0]
            f += document + lmc.gen("note", max_tokens=4)
            found.append(f["note"])
        return found

    documents = ["one", "two", "three", "four"]
    program = lmc.compile(notes)
    try:
        program(documents, seed=1, journal=tmp_path / "j", backend=lmc.Mock())  # answers at once: nothing is asked ahead
    except Killed:
        broken[0] = False
    mock = lmc.Mock(latency=0.05)
    state = program(documents, seed=1, journal=tmp_path / "j", backend=mock)
    assert sorted(call.prompt_text for call in mock.call_log) == ["four", "three"]
    assert state.usage.ahead_wasted == 0
    assert state.ret_value == notes.run(documents, seed=1, backend=lmc.Mock()).ret_value


@lmc.host
def outline(goal):
    return f"first {goal}\nsecond {goal}\nthird {goal}"


@lmc.function
def note(s, step):
    s += step + lmc.gen("note", max_tokens=4)
    return s["note"]


@lmc.function
def follows_an_outline(s, goal):
    plan = outline(goal)
    s += plan + lmc.gen("ok", max_tokens=4)
    said = [s["ok"]]
    for step in plan.splitlines():
        said.append(note(step).ret_value)
    return said


def test_what_a_tool_gave_is_read_from_the_frame_of_a_journaled_run(tmp_path):
    """Its code is another than the function's: hooks stand around its calls."""
    program = eager(lmc.compile(follows_an_outline))
    for journal in (None, tmp_path / "j"):
        options = {} if journal is None else {"journal": journal}
        usage = program("tea", seed=1, backend=Gated(4, lambda prompt, ask: "yes"), **options).usage
        assert (usage.ahead_asked, usage.ahead_used) == (3, 3)
