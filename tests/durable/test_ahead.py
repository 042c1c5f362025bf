"""Journaled runs that are asked ahead: what the journal knows is not asked again."""

import lmc


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
