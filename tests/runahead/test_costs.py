"""When work ahead begins: after waits that pay for it, when no other program is ready, and never before the first request;
and what a compiled run adds where nothing is asked ahead."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import pytest

import lmc
from lmc import waiting
from lmc.backend import mock
from lmc.backend.mock import CAPABILITIES, Mock
from lmc.frontend import flights
from lmc.frontend.capture import closures, scan
from lmc.frontend.capture.code import Outcome
from lmc.frontend.capture.evaluation import Evaluation
from lmc.frontend.fibers import Fibers
from lmc.frontend.flights import Flights
from lmc.runahead import ledger
from lmc.runahead.evaluating import ProgramSource
from lmc.runahead.profile import FIRST_COST, SHARE, SHORTEST, USUAL, Profile
from lmc.waiting import Signal, idle
from tests.backend.gated import Gated
from tests.conformance.harness import eager
from tests.searching import some


@lmc.function
def two(s, q):
    s += q + lmc.gen("a", max_tokens=4)
    first = s["a"]
    s += "!" + lmc.gen("b", max_tokens=4)
    return first + s["b"]


class Clock:
    """A clock that goes on while a program waits, and by `evaluation` seconds with each evaluation. Timers and waits go by it."""

    pausing = False

    def __init__(self, monkeypatch: pytest.MonkeyPatch, evaluation: float) -> None:
        self.now, self.evaluation = 0.0, evaluation
        self.due = list[tuple[float, int, Callable[[], object]]]()
        self._spent, self._order = itertools.count(), itertools.count()
        monkeypatch.setattr(mock, "timer", self)
        monkeypatch.setattr(ledger, "perf_counter", lambda: self.now)
        monkeypatch.setattr(ledger, "thread_time", self.spent)
        monkeypatch.setattr(closures, "thread_time", lambda: 0.0)
        monkeypatch.setattr(waiting._here, "waiter", self, raising=False)

    def spent(self) -> float:
        """Asked before and after each evaluation, in which nothing waits."""
        after = next(self._spent) % 2
        self.now += after * self.evaluation
        return self.now

    def monotonic(self) -> float:
        return self.now

    def at(self, when: float, call: Callable[[], object]) -> None:
        heappush(self.due, (when, next(self._order), call))

    def wait(self, signal: Signal, timeout: float | None) -> None:
        until = float("inf") if timeout is None else self.now + max(timeout, 0.0)
        while not signal.is_set() and self.due and self.due[0][0] <= until:
            when, _, call = heappop(self.due)
            self.now = max(self.now, when)
            call()
        if not signal.is_set():
            self.now = until

    def idle(self) -> bool:
        return True


def test_what_was_due_before_comes_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's timer went by the clock of a test, and then waited for hours."""
    came = threading.Event()
    mock.timer.at(mock.timer.monotonic() + 0.1, came.set)
    Clock(monkeypatch, evaluation=0.0)
    assert came.wait(60)


class BusyClock(Clock):
    """Other programs are never done, though none of them is ready."""

    waits = 0

    def wait(self, signal: Signal, timeout: float | None) -> None:
        self.waits += 1
        assert self.waits < 100, "it polls"
        super().wait(signal, timeout)

    def idle(self) -> bool:
        return False


def test_a_program_that_nothing_else_goes_before_is_evaluated_and_does_not_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one in a batch that may begin more programs, when the process has no room for their threads."""
    evaluations = list[int]()

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        assert not stops()
        evaluations.append(ledger.evaluations)
        return ()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    BusyClock(monkeypatch, evaluation=0.0)
    lmc.compile(two)("x", backend=Mock(latency=1.0))
    assert evaluations == [1, 2]


@lmc.function
def notes(s, q):
    for k in range(6):
        (f,) = s.fork(1)
        f += f"{q} {k}" + lmc.gen(f"note{k}", max_tokens=2)
        len(f[f"note{k}"])


def test_answers_that_no_evaluation_waits_for_wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = BusyClock(monkeypatch, evaluation=0.0)
    usage = lmc.compile(notes)("x", backend=Mock(latency=lambda ask: 9.0 if ask.name == "note0" else 1.0 + len(ask.name + "x"))).usage
    assert (usage.calls, usage.ahead_used) == (6, 5)
    assert clock.waits == 2  # until it is evaluated, and until the first note is there


@lmc.function
def asks(s, name, text):
    s += text + lmc.gen(name, max_tokens=2)


@lmc.function
def chained(s):
    first, second = asks("x", "one")["x"], asks("y", "two")["y"]
    return first + asks("z", second)["z"]


def test_sub_programs_whose_requests_are_made_ahead_are_not_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, evaluation=0.0)
    guess, followed = ledger.Ledger.guess, Counter[str]()
    monkeypatch.setattr(ledger.Ledger, "guess", lambda self, address, *rest, **more: (followed.update([address[2]]), guess(self, address, *rest, **more))[1])
    usage = lmc.compile(chained)(backend=Mock(latency=lambda ask: 9.0 if ask.name == "x" else 1.0)).usage
    assert (usage.ahead_asked, usage.ahead_used) == (2, 2)
    assert followed == {"/c1": 1, "/c2": 1}  # in two evaluations


@lmc.function
def chatting(s, q):
    for _ in range(200):
        s += f"{q if id(s) else ''}" + lmc.gen("x", max_tokens=2)  # which only Python knows
        len(s["x"])


@some(("latency", "evaluation"), itertools.product([0.001, 0.005, 0.02, 0.05, 0.2], [0.002, 0.012, 0.04]), 4)
def test_work_in_vain_takes_at_most_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch, latency: float, evaluation: float) -> None:
    clock = Clock(monkeypatch, evaluation)
    usage = lmc.compile(chatting)("x", backend=Mock(latency=latency)).usage
    assert (usage.calls, usage.ahead_asked) == (200, 0)
    assert 200 * latency <= clock.now <= 200 * latency * 1.05


def test_short_waits_say_nothing_of_the_next_one() -> None:
    """The first answers may come from a cache."""
    profile = Profile()
    profile.has_waited(0.0, 0.1 * profile.patience)
    assert profile.worth(("a line",))


def test_after_many_short_waits_a_long_one_is_only_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, evaluation=0.002)
    program = lmc.compile(two)
    asked = lambda latency: program("x", backend=Mock(latency=latency)).usage.ahead_asked
    assert sum(asked(0.002) for _ in range(USUAL // 2)) == 0  # two waits each
    assert asked(1.0) == 0
    assert asked(1.0) == 1


def test_what_is_usual_fades() -> None:
    profile = Profile()
    profile.has_waited(0.0, 1.0)
    for k in range(1, 10 * USUAL):
        profile.has_waited(k, k + 0.001)
        assert profile.is_patient or k > USUAL
    assert not profile.is_patient
    profile.has_waited(1000.0, 1001.0)
    assert profile.is_patient


def test_a_wait_lasts_twice_what_an_evaluation_costs() -> None:
    profile = Profile()
    assert profile.patience == 2 * FIRST_COST
    profile.evaluated(("line",), 0.2, 1, 0.2 - 0.003)
    assert profile.patience == pytest.approx(0.006)


def test_compiling_counts_once_and_never_below_nothing() -> None:
    profile = Profile()
    profile.evaluated(("line",), 0.001, 0, 0.5)  # another thread compiled meanwhile
    assert profile.cost == 0.0 and profile.patience == 0.0


@lmc.function
def after_much_work(s, q):
    s += q + lmc.gen("a", max_tokens=4)
    first, n = s["a"], 0
    for k in range(200):
        n += k
    s += f"{n}" + lmc.gen("b", max_tokens=4)
    return first + s["b"]


def test_what_others_compile_while_they_go_first_is_none_of_its_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[float]()
    evaluate = ProgramSource.evaluate

    def beside(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        def compiling() -> bool:
            monkeypatch.setattr(scan, "spent", scan.spent + 100.0)
            return stops()

        return evaluate(self, ledger, run, compiling)

    monkeypatch.setattr(ProgramSource, "evaluate", beside)
    program, backend = eager(lmc.compile(after_much_work)), Gated()
    program.profile.evaluated = lambda *of: found.append(of[-1]) or backend.answer()  # type: ignore[func-returns-value, method-assign]
    program("x", backend=backend)
    assert found and max(found) < 100.0


@lmc.function
def answer_to(s, q):
    s += q + lmc.gen("a", max_tokens=4)


@lmc.function
def questions(s, q):
    def numbered(k):
        for _ in range(100):
            pass
        return f"{q}{k}"

    return [answer_to(each)["a"] for each in map(numbered, range(3))]


def test_an_evaluation_that_has_to_stop_is_continued_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below native code, too. Every other time it is told to stop at once."""
    honest, run, told, begun = ProgramSource.evaluate, Evaluation.run, list[Any](), list[Evaluation]()

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        told.append(honest(self, ledger, run, stops if len(told) % 2 else lambda: True))
        return told[-1]

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    monkeypatch.setattr(Evaluation, "run", lambda self: begun.append(self) or run(self))
    backend = Gated(together=3)
    state = eager(lmc.compile(questions))("x", backend=backend)
    assert told[0] is None and len(begun) == 1 < len(told)
    assert (state.usage.ahead_used, len(backend.call_log)) == (2, 3)
    assert state.ret_value == questions.run("x", backend=backend).ret_value


def test_nothing_of_an_evaluation_is_kept_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of programs that wait would hold one each."""
    honest, run, begun, kept = ProgramSource.evaluate, Evaluation.run, list[Any](), list[int]()
    monkeypatch.setattr(ProgramSource, "evaluate", lambda self, ledger, run, _: honest(self, ledger, run, lambda: False))
    monkeypatch.setattr(Evaluation, "run", lambda self: begun.append(weakref.ref(self)) or run(self))

    def look() -> None:
        gc.collect()
        kept.append(sum(evaluation() is not None for evaluation in begun))

    @lmc.function
    def fn(s, q):
        s += q + lmc.gen("a", max_tokens=4)
        s["a"]
        look()

    backend = Gated()
    eager(lmc.compile(fn), evaluated=backend.answer)("x", backend=backend)
    assert begun and kept == [0]


@lmc.function
def piece(s, q):
    s += q + lmc.gen("a", max_tokens=4)


@pytest.mark.parametrize("ahead", ["off", "certain", "likely"])
def test_a_run_keeps_no_prompt_that_the_program_has_dropped(ahead: Any) -> None:
    """The garbage collector would go through all of them as long as the run lasts."""
    kept: list[bool] = []

    @lmc.function
    def fn(s, q):
        one = piece(q)
        prompt = weakref.ref(one.ctx)
        assert one["a"]
        del one
        kept.append(prompt() is not None)

    lmc.compile(fn, ahead=ahead)("x", backend=Mock(latency=0.001))
    assert kept == [False]


def test_an_evaluation_that_is_not_continued_is_ended_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, outcomes, run = ProgramSource.evaluate, list[Outcome](), Evaluation.run
    monkeypatch.setattr(ProgramSource, "evaluate", lambda self, ledger, run, _: honest(self, ledger, run, lambda: True) or ())
    monkeypatch.setattr(Evaluation, "run", lambda self: outcomes.append(found := run(self)) or found)
    backend = Gated()
    states = eager(lmc.compile(questions), evaluated=backend.answer).batch([{"q": "x"}, {"q": "y"}], backend=backend)
    assert [state.usage.ahead_asked for state in states] == [0, 0] and outcomes and all(outcome.paused for outcome in outcomes)


def test_an_evaluation_is_not_continued_by_a_thread_with_the_number_of_one_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, numbers, faults = ProgramSource.evaluate, list[int](), list[BaseException]()

    def evaluate(self: Any, ledger: Any, run: Any, _: Any) -> Any:
        def begin() -> None:
            numbers.append(threading.get_ident())
            try:
                assert honest(self, ledger, run, lambda: True) is None
            except BaseException as fault:
                faults.append(fault)

        for _ in range(100):
            (thread := threading.Thread(target=begin)).start()
            thread.join()
            if len(numbers) > len(set(numbers)) + 3:
                break
        return ()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    backend = Gated()
    eager(lmc.compile(after_much_work), evaluated=backend.answer)("x", backend=backend)
    assert len(numbers) > len(set(numbers)) and not faults


def test_an_answer_that_lets_no_request_be_made_begins_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its text decides is no request: the report needs all answers, and is the only one."""

    @lmc.function
    def reported(s, q):
        found, empty = [], 0
        for k in range(6):
            answer = answer_to(f"{q}{k}")["a"]
            if not answer:
                empty += 1
            found.append(answer)
        s += f"{found} {empty}" + lmc.gen("report", max_tokens=4)

    run, begun = Evaluation.run, list[Evaluation]()
    monkeypatch.setattr(Evaluation, "run", lambda self: begun.append(self) or run(self))
    latencies = iter([1.0, 0.2, 0.4, 0.6, 0.8, 1.2, 1.0])
    clock = Clock(monkeypatch, evaluation=0.0)
    usage = eager(lmc.compile(reported))("x", backend=Mock(latency=lambda _: next(latencies)))
    assert (usage.usage.ahead_asked, len(begun)) == (5, 1) and clock.now > 0


@lmc.function
def chains(s, q):
    for k in range(3):
        first = answer_to(f"{q}{k}")["a"]
        answer_to("again " + first)


def test_answers_that_arrive_one_after_another_are_evaluated_together(monkeypatch: pytest.MonkeyPatch) -> None:
    run, begun = Evaluation.run, list[Evaluation]()
    monkeypatch.setattr(Evaluation, "run", lambda self: begun.append(self) or run(self))
    latencies = itertools.chain([2.0, 0.5, 0.501], itertools.repeat(0.1))
    Clock(monkeypatch, evaluation=0.01)
    usage = lmc.compile(chains)("x", backend=Mock(latency=lambda _: next(latencies))).usage
    assert (usage.ahead_asked, usage.ahead_used, len(begun)) == (4, 4, 2)


def test_short_waits_pay_for_an_evaluation_together() -> None:
    profile = Profile()
    profile.has_waited(0.0, FIRST_COST / SHARE)
    assert profile.affords(FIRST_COST) and profile.patience == SHORTEST
    profile.evaluated(("line",), FIRST_COST, 0)
    assert not profile.affords(FIRST_COST) and profile.patience == 2 * FIRST_COST


def test_waits_of_many_runs_at_once_count_once() -> None:
    profile = Profile()
    for began, ended in ((0.0, 1.0), (0.0, 1.5), (0.5, 1.0), (2.0, 3.0)):
        profile.has_waited(began, ended)
    assert profile.waited == 2.5


def test_the_first_run_on_a_slow_backend_is_not_held_up_by_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, evaluation=0.0)
    program, planned = lmc.compile(two), list[Any]()
    annotations = program.planner.annotations
    monkeypatch.setattr(program.planner, "annotations", lambda *given: planned.append(given) or annotations(*given))
    monkeypatch.setattr(Profile, "patience", 0.0)
    slow = Mock(latency=0.3)
    with monkeypatch.context() as poor:
        poor.setattr(program.profile, "affords", lambda *_: False)
        program("x", backend=slow)
    assert planned == []
    program.profile.has_waited(0.0, 1e9)  # from now on there is time for everything
    program("x", backend=slow)
    assert len(planned) == 1
    program("x", backend=slow)
    assert len(planned) == 1
    slow.close()


@lmc.function
def until_yes(s, q):
    for f in s.fork(5):
        f += q + lmc.select("answer", ["yes", "no"])
        if f["answer"] == "yes":
            return True


def test_a_line_where_nothing_certain_follows_is_tried_again_for_what_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, evaluation=0.0)
    monkeypatch.setattr(Profile, "patience", 0.0)
    program, slow = lmc.compile(until_yes), Mock({"answer": "no"}, latency=0.3)
    assert program("x", backend=slow, ahead="certain").usage.ahead_asked == 0  # five waits at the line
    assert program("x", backend=slow, ahead="likely").usage.ahead_asked == 4
    slow.close()


@pytest.mark.parametrize("options", [{"outputs": ["a"]}, {"aggressive": True}])
def test_what_the_user_asks_of_a_plan_holds_for_the_first_run(options: dict[str, Any]) -> None:
    slow: Any = Mock(latency=1e-3)
    assert lmc.compile(two, **options).planner.known(slow, False) is not None
    assert lmc.compile(two).planner.known(slow, False) is None


def test_a_backend_that_a_plan_saves_requests_or_memory_has_it_from_the_first_run_on() -> None:
    backends: list[Any] = [Mock(), Mock(latency=1e-3, capabilities=replace(CAPABILITIES, lookahead=True))]
    assert [lmc.compile(two).planner.known(backend, False) is None for backend in backends] == [False, False]


def fibers(work: Callable[[int], None], count: int, *, limit: int) -> Fibers[None]:
    return Fibers(work, count, limit=limit, name="test", here=True)


def threads(work: Callable[[int], None], count: int, *, limit: int) -> Flights[None]:
    return Flights(work, count, limit=limit, name="test")


def test_whoever_has_its_answer_goes_before_whoever_has_waited_long_enough() -> None:
    """Item 0 waits for a while, item 1 for an answer that comes meanwhile; item 2 has the turn, and ends when both could go on."""
    answer, over, order = Signal(), threading.Event(), list[int]()
    flights: Flights[None]

    def work(i: int) -> None:
        if i == 0:
            Signal().wait(0.0)
        elif i == 1:
            answer.wait()
        else:
            while not flights._spare:
                over.wait(1e-4)
            answer.set()
            assert not idle()
        order.append(i)

    flights = threads(work, 3, limit=3)
    flights.watched = True  # nobody takes turns away
    list(flights.results(lambda: None))
    assert order == [2, 1, 0]


def test_a_fiber_that_has_waited_long_enough_goes_last() -> None:
    answer, order = Signal(), list[int]()

    def work(i: int) -> None:
        if i == 0:
            Signal().wait(0.0)
        elif i == 1:
            answer.wait()
        else:
            answer.set()
            assert not idle()
        order.append(i)

    list(fibers(work, 3, limit=3).results(lambda: None))
    assert order == [2, 1, 0]


@pytest.mark.parametrize("kind", [fibers, threads])
def test_what_waits_for_spare_time_goes_on_in_turn_once_its_answer_is_there(kind: Callable[..., Any]) -> None:
    first, second, order, later = Signal(), Signal(), list[int](), threading.Event()
    items: Any = None

    def work(i: int) -> None:
        if i == 0:
            first.wait(0.0)
        elif i == 1:
            second.wait()
        else:
            while not items._spare:
                later.wait(1e-4)
            first.set()
            second.set()
        order.append(i)

    items = kind(work, 3, limit=3)
    items.watched = True  # nobody takes turns away
    list(items.results(lambda: None))
    assert order == [2, 0, 1]


def test_the_fiber_that_began_to_wait_last_has_spare_time_first() -> None:
    order = list[int]()

    def work(i: int) -> None:
        Signal().wait(0.0)
        order.append(i)

    list(fibers(work, 3, limit=3).results(lambda: None))
    assert order == [2, 1, 0]


@lmc.function
def two_with_a_tool(s, q):
    s += q + lmc.gen("a", max_tokens=4)
    first = s["a"]
    no_tool(first)
    s += "!" + lmc.gen("b", max_tokens=4)
    return first + s["b"]


@pytest.mark.parametrize("fn", [two, two_with_a_tool])
def test_an_evaluation_lets_the_other_programs_of_its_batch_go_first(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """While item 1 is evaluated, item 0 has its answer, and makes its next request."""
    backend, requests, later = Gated(), list[int](), threading.Event()

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        if run.item == 1 and not requests:
            backend._held.pop(0)()  # item 0's request: it came first
            while idle():
                later.wait(1e-4)
            stops()
            requests.append(len(backend.call_log))
            backend.open()
        return ()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    states = eager(lmc.compile(fn)).batch([{"q": "x"}, {"q": "y"}], backend=backend)
    assert requests == [3] and len(states) == 2
    backend.close()


HERE = threading.local()


@lmc.function
def two_bodies(s, q):
    def body(f: Any, k: int) -> str:
        HERE.body = k
        f += q + lmc.gen("a", max_tokens=4)
        first = f["a"]
        f += lmc.gen("b", max_tokens=4)
        return first + f["b"]

    return s.fork(2).each(body, range(2))


def guess_something(ledger: ledger.Ledger, run: Any) -> None:
    asked = next(iter(ledger.asked.values()))
    assert ledger.guess((run.seed, run.item, "elsewhere", 0), ledger.after(asked).parent, replace(asked.ask, name="other"), run, certain=True) is not None


def test_an_evaluation_lets_other_bodies_of_its_program_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take answers from the ledger, which it uses, too; only one is evaluated at a time."""
    backend, went, evaluating, later = Gated(), list[tuple[bool, int]](), list[int](), threading.Event()

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        evaluating.append(HERE.body)
        if not went:
            guess_something(ledger, run)
            backend._held.pop(1 - HERE.body)()
            while idle():
                later.wait(1e-4)
            went.append((stops(), len(backend.call_log)))
            assert len(evaluating) == 1
            backend.open()
        return ()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    monkeypatch.setattr(flights._watch, "over", lambda _: None)  # nobody takes turns away
    eager(lmc.compile(two_bodies))("x", backend=backend)
    assert went == [(False, 4)]  # a request of each body, the guess, and the other body's second one
    backend.close()


def test_what_another_thread_requests_during_an_evaluation_is_requested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        address, asked = next(iter(ledger.asked.items()))
        prompt, ask = ledger.after(asked).parent, asked.ask
        if not threads:
            place = (*address[:3], 7)
            threads.append(threading.Thread(target=ledger.ask, args=(place, prompt, ask, run)))
            threads[0].start()
            threads[0].join(0.2)  # it has asked, or waits for the evaluation
            ledger.guess(place, prompt, ask, run, certain=True)
        return ()

    @lmc.function
    def fn(s, q):
        s += q + lmc.gen("a", max_tokens=4)
        s["a"]
        threads[0].join()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    backend = Gated()
    state = eager(lmc.compile(fn), evaluated=backend.answer)("x", backend=backend)
    assert len(backend.call_log) == 2 and (state.usage.ahead_used, state.usage.ahead_wasted) == (1, 0)


def test_an_evaluation_that_lets_others_go_first_leaves_the_ledger_to_threads_of_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that item 1 has started makes its request while item 0 goes first."""
    backend, later, free, asked, seen = Gated(), threading.Event(), threading.Event(), threading.Event(), list[bool]()

    @lmc.function
    def with_a_thread(s, i):
        def asks() -> None:
            nonlocal f
            free.wait(60)
            f += "x" + lmc.gen("b", max_tokens=4)
            asked.set()

        (f,) = s.fork(1)
        thread = threading.Thread(target=asks)
        if i == 1:
            thread.start()
        s += "y" + lmc.gen("a", max_tokens=4)
        first = s["a"]
        if i == 0:
            free.set()
            seen.append(asked.wait(60))
            backend.open()
        else:
            thread.join()
        return first

    def evaluate(self: Any, ledger: Any, run: Any, stops: Callable[[], bool]) -> Any:
        if run.item == 1 and not seen:
            guess_something(ledger, run)
            backend._held.pop(0)()  # item 0's request: it came first
            while idle():
                later.wait(1e-4)
            stops()
        return ()

    monkeypatch.setattr(ProgramSource, "evaluate", evaluate)
    monkeypatch.setattr(flights._watch, "over", lambda _: None)  # nobody takes turns away
    states = eager(lmc.compile(with_a_thread)).batch([{"i": 0}, {"i": 1}], backend=backend)
    assert seen == [True] and [state.failure for state in states] == [None, None]
    backend.close()


@pytest.mark.parametrize("kind", [fibers, threads])
def test_nothing_is_idle_while_items_may_begin(kind: Callable[..., Any]) -> None:
    found: list[bool] = []
    items = kind(lambda i: found.append(idle()), 3, limit=2)
    items.watched = True  # nobody takes the turn of one that is slow
    list(items.results(lambda: None))
    assert found == [False, False, True]


@lmc.function
def chats(s: Any, q: str) -> str:
    while True:
        (f,) = s.fork(1)
        f += q + lmc.gen("a", max_tokens=8)
        if f["a"] == "stop":
            return f["a"]
        s += "observed " + f["a"]


@pytest.mark.parametrize("ahead", ["certain", "likely"])
def test_a_loop_without_a_known_end_is_not_followed_for_ever(ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, run, outcomes = Gated(answers={"a": "stop"}), Evaluation.run, list[Outcome]()

    def opens(self: Evaluation) -> Outcome:
        outcomes.append(run(self))
        backend.open()
        return outcomes[-1]

    monkeypatch.setattr(Evaluation, "run", opens)
    eager(lmc.compile(chats, ahead=ahead))("q", backend=backend)
    assert outcomes and "not made ahead" in outcomes[0].reason and outcomes[0].steps < 5000


def no_tool(query: str) -> str:
    """Look something up."""
    return f"nothing about {query}"


@lmc.function
def agent(s, q):
    s += lmc.user(q)
    while True:
        s += lmc.assistant(lmc.gen("answer", tools=[no_tool], max_tokens=8))
        calls = s.get_meta_info("answer")["tool_calls"]
        if not calls:
            return s["answer"]
        for call in calls:
            s += lmc.tool_result(call, lmc.call_tool(call, [no_tool]))


@lmc.function
def bounded(s, q):
    s += lmc.user(q)
    for _ in range(5000):
        s += lmc.assistant(lmc.gen("answer", max_tokens=8))
        if no_tool(s["answer"]):
            return s["answer"]


@pytest.mark.parametrize("ahead", ["certain", "likely"])
@pytest.mark.parametrize("fn", [agent, bounded])
def test_a_loop_is_left_once_its_turns_only_repeat_what_cannot_be_requested(fn: Any, ahead: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, evaluation=0.0)
    run, outcomes = Evaluation.run, list[Outcome]()
    monkeypatch.setattr(Profile, "patience", 0.0)
    monkeypatch.setattr(Evaluation, "run", lambda self: outcomes.append(found := run(self)) or found)
    lmc.compile(fn, ahead=ahead)("x", backend=Mock(latency=0.3))
    assert outcomes and max(outcome.steps for outcome in outcomes) < 1000 and not any(outcome.paused for outcome in outcomes)


@lmc.function
def asks_each(s: Any, n: int) -> None:
    for i in range(n):
        s += f"{i}" + lmc.gen("x", max_tokens=4)
        s["x"]


def calls_of(run: Callable[..., Any], n: int) -> int:
    """The calls of Python functions in a run of `n` requests, after one that makes what is made once."""
    backend, found = lmc.Mock(), 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call"

    run(n, backend=backend, seed=1)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run(n, backend=backend, seed=1)
    finally:
        sys.setprofile(before)
    return found


def test_a_request_and_a_run_add_few_calls() -> None:
    program = lmc.compile(asks_each)
    program.planner.annotations(lmc.Mock(), False)
    few, many = [calls_of(program, n) - calls_of(asks_each.run, n) for n in (10, 50)]
    each = (many - few) / 40
    assert each <= 14, "for a request"
    assert few - 10 * each <= 60, "for a run"
