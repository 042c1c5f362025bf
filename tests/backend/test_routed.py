"""Several backends as one: who answers what, and that each is sent the whole prompt."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
import weakref
from dataclasses import replace

import pytest

import lmc
from lmc import checking
from lmc.backend.base import Hints
from lmc.backend.mock import CAPABILITIES
from lmc.backend.routed import Routed, Site
from lmc.backend.usage import Usage
from lmc.errors import BackendError, CancelledError, ParameterError, ProgramError
from lmc.segments import Gen, SamplingParams, Text
from tests.backend.engine_fakes import drain, stepped
from tests.backend.gated import Gated
from tests.waiting import until


@lmc.function
def talk(s, q):
    s += lmc.system("Be brief.") + lmc.user(q) + lmc.assistant(lmc.gen("a", max_tokens=9))
    forks = s.fork(3)
    for i, f in enumerate(forks):
        f += lmc.user(f"Part {i}") + lmc.assistant(lmc.gen("b", max_tokens=9) + " and " + lmc.gen("c", max_tokens=9))
        f += lmc.select("d", choices=["yes", "no"])
    s += lmc.user(f"{forks[0]['b']} {forks[2]['c']} {forks[1]['d']}")
    s += lmc.assistant(lmc.gen("a", max_tokens=9))
    if "a" in s["a"]:
        s += lmc.user("And?") + lmc.assistant(lmc.gen("b", max_tokens=5))


PLACES = [{}, {"a": 1}, {"b": 1}, {"c": 1, "d": 2}, {"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}]


def routed(backends, names):
    return Routed(backends[0], {name: backends[i] for name, i in names.items()})


@pytest.mark.parametrize("names", PLACES, ids=str)
@pytest.mark.parametrize("program", [talk, lmc.compile(talk, ahead="likely")], ids=["interpreted", "compiled"])
def test_texts_are_those_of_one_backend(program, names):
    """A mock's answer depends on its whole prompt and seed."""
    run = program.run if isinstance(program, lmc.Function) else program
    whole = [run(f"Q{i}", backend=lmc.Mock(), temperature=1, seed=i).text() for i in range(4)]
    backends = [lmc.Mock() for _ in range(3)]
    assert [run(f"Q{i}", backend=routed(backends, names), temperature=1, seed=i).text() for i in range(4)] == whole
    asked = [backend.counters().calls > 0 for backend in backends]
    assert asked == [set(names) != set("abcd"), 1 in names.values(), 2 in names.values()]


@lmc.function
def two(s):
    s += "A" + lmc.gen("x", max_tokens=2) + "B" + lmc.gen("y", max_tokens=3)


@pytest.mark.parametrize("compiled", [False, True])
def test_reports_say_what_each_backend_did_and_what_it_cost(compiled):
    """Of the dear one: four tokens of a prompt, and three of an answer at twice the price."""
    free, dear = lmc.Mock(), lmc.Mock(capabilities=replace(CAPABILITIES, name="dear", prices=lmc.Prices(1e6, 2e6)))
    backend = Routed(free, {"y": dear})
    program = lmc.compile(two, backend=backend) if compiled else None
    state = two.run(backend=backend) if program is None else program()
    state.sync()
    shown = [state.explain(), re.sub("<[^>]*>", "", state.explain("html"))]
    shown += [] if program is None else [program.explain(), json.dumps(json.loads(program.explain("json"))["facts"])]
    for text in shown:
        assert "mock (x): 1 request, 1 prompt token (0 shared), 2 tokens of answers" in text
        assert "dear (y): 1 request, 4 prompt tokens (3 shared), 3 tokens of answers, $10" in text
    assert "It cost $10" in shown[0] and (program is None or "the last run cost $10.000000" in shown[2])
    assert backend.spent().usage == free.spent().usage + dear.spent().usage and backend.spent().attempts == 2


@pytest.mark.parametrize("by", ("name", "site"))
def test_the_cost_of_a_run_is_estimated_before_it_by_the_prices_of_each_backend(by):
    """The dear one reads A, the answer x, B and answers in up to three tokens; the cheap one reads A and answers in up to two."""
    free, cheap, dear = lmc.Mock(), *[lmc.Mock(capabilities=replace(CAPABILITIES, name=n, prices=p)) for n, p in (("cheap", CHEAP), ("dear", DEAR))]
    key = "y" if by == "name" else next(iter(lmc.certify(two, [{}], free, lmc.Mock(lambda prompt, ask: {"y": "?"}.get(ask.name))).sites))
    assert "a run costs $5.000000 certain, $7.000000 expected, $10.000000 with" in lmc.compile(two, backend=cheap).explain()
    both = lmc.compile(two, backend=Routed(cheap, {key: dear})).explain()
    assert "a run costs $32.000000 certain, $52.000000 expected, $73.000000 with answers at their limits\n" in both + "\n"
    half = lmc.compile(two, backend=Routed(free, {key: dear})).explain()
    assert "at their limits, beside the requests to mock, which are not priced" in half
    assert "a run costs" not in lmc.compile(two, backend=Routed(free, {key: lmc.Mock()})).explain()
    routed = Routed(cheap, {key: dear})
    assert "$32.000000 certain, $52.000000 expected" in str(checking.check(lmc.compile(two, backend=routed), None, routed)[1])


CHEAP, DEAR = lmc.Prices(1e6, 1e6), lmc.Prices(1e7, 1e7)


def test_each_backend_is_sent_the_whole_prompt():
    prompts = []

    def says(who):
        def say(prompt, ask):
            prompts.append((who, ask.name, prompt))
            return f"<{ask.name}>"

        return lmc.Mock(say)

    @lmc.function
    def three(s):
        s += "A" + lmc.gen("x", max_tokens=9) + "B" + lmc.gen("y", max_tokens=9) + "C" + lmc.gen("z", max_tokens=9) + "D"

    assert three.run(backend=Routed(says("fast"), {"y": says("exact")})).text() == "A<x>B<y>C<z>D"
    assert prompts == [("fast", "x", "A"), ("exact", "y", "A<x>B"), ("fast", "z", "A<x>B<y>C")]


def test_a_site_is_a_gen_at_its_place():
    @lmc.function
    def twice(s):
        s += lmc.gen("x", max_tokens=2)
        s += lmc.gen("x", max_tokens=2)
        s += lmc.gen(max_tokens=2)

    def say(x):
        return lmc.Mock(lambda prompt, ask: x)

    sites = list(lmc.certify(twice, [{}], say("a"), say("b")).sites)
    assert [site.name for site in sites] == ["x"] and sites[0].loc is not None
    unnamed = Site("gen", lmc.errors.Loc(sites[0].loc.file, sites[0].loc.line + 2, sites[0].loc.col))
    assert twice.run(backend=Routed(say("b"), dict.fromkeys(sites, say("a")))).text() == "abb"
    assert twice.run(backend=Routed(say("b"), {unnamed: say("a")})).text() == "bba"


GEN = Gen(SamplingParams(max_new_tokens=4), name="x")
OTHER = Gen(SamplingParams(max_new_tokens=4), name="y")


def chain(first, second):
    """A request to `second` that waits for `first`'s answer."""
    backend = Routed(first, {"y": second})
    before = backend.submit(None, (Text(("A",)), GEN))
    return backend, before, backend.submit(before, (Text(("B",)), OTHER, Text(("C",))))


def test_a_request_that_nobody_wants_any_more_is_not_made():
    first, second = Gated(), lmc.Mock()
    backend, before, after = chain(first, second)
    del after
    gc.collect()
    first.open()
    before.results[0].output()
    backend._pool.submit(int).result()  # what waited has been looked at
    assert second.counters().calls == 0


@pytest.mark.parametrize("begun", [False, True])
def test_cancelling_fails_what_depends_on_it(begun):
    first, second = Gated(), Gated()
    backend, before, after = chain(first, second)
    if begun:
        first.open()
        before.results[0].output()
        backend._pool.submit(int).result()
        assert second.waiting == 1
    last = backend.submit(after, (GEN,))
    after.cancel()
    first.open()
    for result in (*after.results, *last.results):
        with pytest.raises(CancelledError):
            result.output()


def test_an_error_fails_what_depends_on_it():
    def fails(prompt, ask):
        raise BackendError("no")

    backend, before, after = chain(lmc.Mock(fails), lmc.Mock())
    last = backend.submit(after, (GEN,))
    for handle in (before, after, last):
        with pytest.raises(BackendError, match="no"):
            handle.results[0].output()


def test_what_a_backend_refuses_late_is_raised_where_it_is_read():
    class Refusing(lmc.Mock):
        def submit(self, parent, segments, hints=None):
            raise ParameterError("never")

    _, _, after = chain(first := Gated(), Refusing())
    first.open()
    with pytest.raises(ParameterError, match="never"):
        after.results[0].output()


def test_what_waits_when_it_is_closed_fails():
    """Its backends go on, and the answer that it waits for comes."""
    first = Gated()
    backend, before, after = chain(first, lmc.Mock())
    last = backend.submit(after, (GEN,))
    backend.close()
    first.open()
    assert before.results[0].output().text
    for handle in (after, last, backend.submit(last, (OTHER,))):
        with pytest.raises(BackendError, match="was closed"):
            handle.results[0].output()


def test_a_pin_that_ended_while_it_waited_is_never_made():
    class Pinning(lmc.Mock):
        prefills = 0

        def prefill(self, parent, segments, hints=None):
            self.prefills += 1
            return super().prefill(parent, segments, hints)

    for released in (False, True):
        first, second = Gated(), Pinning()
        backend, _, after = chain(first, second)
        pinned = backend.prefill(after, (Text(("D",)),), Hints(pin=True))
        if released:
            backend.release(pinned)
        last = backend.submit(pinned, (OTHER,))
        first.open()
        last.results[0].output()
        assert second.prefills == (not released)


def test_what_a_failed_answer_has_cost_is_told():
    cost = (Usage(prompt_tokens=7), 1)

    class Failing(lmc.Mock):
        def submit(self, parent, segments, hints=None):
            handle = super().submit(parent, segments, hints)
            handle.results[0].in_vain = cost
            handle.results[0].fail(BackendError("no"))
            return handle

    first = Gated()
    _, _, after = chain(first, Failing(latency=60))
    first.open()
    after.results[0].wait()
    assert after.results[0].in_vain == cost


def test_it_is_as_well_as_its_backends():
    other = lmc.Mock()
    backend = Routed(lmc.Mock(), {"x": other})
    assert backend.health().ready and copy.deepcopy(backend) is backend
    other.close()
    assert backend.health().state == "closed"
    with pytest.raises(ProgramError, match=r"pickled \(Routed\)"):
        pickle.dumps(backend)


def test_a_dropped_one_holds_no_backend():
    """An engine's memory comes back at once, and not with the next garbage collection."""
    gc.collect()
    gc.disable()
    try:
        engine, text = lmc.Mock(latency=0.001), (Text(("A",)), GEN)
        backend, dropped = Routed(engine, {"y": lmc.Mock(latency=0.001)}), weakref.ref(engine)
        handle = backend.submit(None, (*text, replace(GEN, name="y"), GEN))
        assert all(result.output().text for result in handle.results)
        del engine, backend, handle
        until(lambda: dropped() is None, seconds=10)  # once the threads that have delivered the answers have let go
    finally:
        gc.enable()


def test_a_handle_of_another_backend_is_refused():
    for other in (lmc.Mock(), Routed(lmc.Mock(), {})):
        with pytest.raises(BackendError, match="a handle of another backend"):
            Routed(lmc.Mock(), {}).submit(other.submit(None, (Text(("A",)),)), (GEN,))


def test_an_answer_that_waited_is_streamed():
    first, second = Gated(), lmc.Mock(lambda prompt, ask: "abcd", latency=1e-3)
    _, _, after = chain(first, second)
    text = after.results[0].stream()
    first.open()
    pieces = list(text)
    assert "".join(pieces) == "abcd" and len(pieces) > 1


@pytest.mark.parametrize("when", ["never", "while it waits", "when it has begun"])
def test_an_answer_is_only_made_in_pieces_for_who_reads_it_so(when):
    first, (second, core) = Gated(), stepped()
    backend, _, after = chain(first, second)
    if when == "while it waits":
        after.results[0].watch()
    first.open()
    while not after.parts[0].handle:
        backend._pool.submit(int).result()
    if when == "when it has begun":
        after.results[0].watch()
    drain(core)
    assert after.results[0].output().text
    assert len(after.results[0].deltas) == (0 if when == "never" else 4)


def test_another_template_is_refused():
    other = lmc.Mock()
    other.chat_template = lmc.get_chat_template("llama-3-instruct")
    with pytest.raises(ParameterError, match="chat template"):
        Routed(lmc.Mock(), {"x": other})


@pytest.mark.model
def test_tokens_and_pins_are_those_of_engines(tiny_smollm2):
    """A random model says what no tokenizer would encode so: answers pass as their tokens."""
    options = {"dtype": "float32", "max_tokens": 4096}
    with lmc.Engine(tiny_smollm2, **options) as one, lmc.Engine(tiny_smollm2, **options) as other:
        whole = [state.text() for state in talk.run_batch([{"q": f"Q{i}"} for i in range(3)], backend=one, temperature=0)]
        for names in PLACES[1:5]:
            states = talk.run_batch([{"q": f"Q{i}"} for i in range(3)], backend=routed([one, other, one], names), temperature=0)
            assert [state.text() for state in states] == whole
        backend = Routed(one, {"b": other})
        assert backend.same_tokens(one, other) and not backend.same_tokens(one, lmc.Mock())
        pinned = backend.prefill(None, (Text(("A" * 99,)),))
        assert backend.holds(pinned)
        backend.release(pinned)
        one.flush_cache()
        assert not backend.holds(pinned)
