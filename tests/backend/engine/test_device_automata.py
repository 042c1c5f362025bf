"""Answers that the device follows through their automata: kernels against the references, these against the host's automata.

Compiled on a GPU, else under Triton's interpreter (conftest.py).
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from lmc.backend.engine.answer import Answer
from lmc.backend.engine.automaton import AutomatonMatcher
from lmc.backend.engine.request import Request, RequestKind
from lmc.backend.engine.runner import PassOutput
from lmc.backend.engine.token_ids import BROKEN, PENDING, STUCK
from lmc.fsm.minimise import DEAD
from lmc.fsm.sources import automaton_of
from lmc.fsm.tokens import TokenAutomaton
from lmc.segments import Constraint, Gen, SamplingParams, Text
from tests.backend.engine_fakes import FakeWords
from tests.fsm.patterns import ASCII
from tests.fsm.small_vocabulary import EOS, small, trained

pytestmark = pytest.mark.model  # needs torch
torch: Any = None  # imported when the first test runs: collecting this file must not need it
VOCABULARY, _ = small()
PADDED = VOCABULARY.size + 8  # a model's logits may be more
REGEXES = [*ASCII[:12], r"(世界|世大战|é|😀|[а-я]{2}){1,3}", r"a{0,40}b?", r"", r"(ab){500}"]


@pytest.fixture(scope="module")
def k():
    """The kernels and their references; imported late, because Triton itself is slow to import."""
    global torch
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from lmc.backend.engine.device_automata import Kernels, on_device, spelling
    from lmc.backend.engine.kernels import automata, mask

    device = "cuda" if torch.cuda.is_available() else "cpu"
    like = torch.zeros(1, device=device)
    return SimpleNamespace(
        **{n: getattr(automata, n) for n in dir(automata) if n[0] != "_"},
        fast=Kernels(automata.close, automata.fill, automata.advance, mask.close),
        slow=Kernels(automata.close_reference, automata.fill_reference, automata.advance_reference, mask.close_reference),
        on_device=lambda automaton: on_device(automaton, like),
        spelling=spelling(VOCABULARY, like),
        before=lambda states: torch.tensor(states, dtype=torch.int32, device=device),
        device=device,
    )


def automaton(regex: str) -> TokenAutomaton:
    dfa = automaton_of("regex", regex)
    assert dfa is not None
    return TokenAutomaton(dfa, VOCABULARY)


def random_state(a: TokenAutomaton, rng) -> int:
    """Some tokens behind the start."""
    state = a.start
    for _ in range(int(rng.integers(0, 9))):
        behind = np.unique(a.targets(state))
        state = int(rng.choice(behind[behind != DEAD])) if (behind != DEAD).any() else state
    return state


def test_a_warm_up_compiles_what_the_first_constrained_answer_needs(k):
    """Each kernel, for arguments of the same kinds: Triton compiles another one for other types, and for sizes that 16 divides."""
    from lmc.backend.engine.device_automata import Kernels
    from lmc.backend.engine.sampler import Sampler

    called: dict[str, list[Any]] = {name: [] for name in Kernels._fields}

    def kinds(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.dtype, x.ndim, x.shape[-1] if x.ndim == 2 else None
        return tuple(map(kinds, x)) if isinstance(x, tuple | list) else type(x)

    def told(name: str) -> Any:
        def call(*given: Any) -> Any:
            called[name].append(kinds(given))
            return getattr(k.fast, name)(*given)

        return call

    sampler = Sampler(VOCABULARY.size, Kernels(*map(told, Kernels._fields)))
    logits = torch.randn(1, PADDED, device=k.device)
    sampler.warm_up(logits)
    assert (logits == -torch.inf).all() and all(len(calls) == 1 for calls in called.values())
    sampler.sample_ahead(torch.randn(1, PADDED, device=k.device), [0], [request(automaton("[a-z]{9}"), 1)])
    assert [len(called[name]) for name in ("close", "fill", "advance")] == [2, 2, 2]
    assert all(again == calls[0] for calls in called.values() for again in calls)


@pytest.mark.parametrize("regex", REGEXES)
def test_the_reference_steps_as_the_hosts_automaton(k, regex):
    rng, a = np.random.default_rng(0), automaton(regex)
    arrays = k.on_device(a)
    for state in {random_state(a, rng) for _ in range(6)}:
        assert k.behind_reference(state, arrays, k.spelling).tolist() == a.targets(state).tolist()


@pytest.mark.parametrize("seed", range(2))
def test_kernels_equal_their_references(k, seed):
    """Over several automata at once, from states of the host and of the device, DEAD ones and rows of bits among them."""
    rng, automata = np.random.default_rng(seed), [automaton(regex) for regex in REGEXES]
    chosen = rng.integers(0, len(automata), 9)
    states = [random_state(automata[i], rng) for i in chosen]
    arrays = [k.on_device(a) for a in automata]
    before = k.before([DEAD if n % 4 == 3 else state for n, state in enumerate(states)][::-1])
    told = [-1 - (len(states) - 1 - n) if n % 2 else state for n, state in enumerate(states)]
    rows = rng.permutation(12)[: len(states)].tolist()
    answers = k.AnswerStates.of(rows, told, [arrays[i] for i in chosen], before)

    logits = torch.randn(12, PADDED, generator=torch.Generator().manual_seed(seed)).to(k.device)
    expected = logits.clone()
    k.close_reference(expected, answers, k.spelling)
    found = logits.clone()
    k.close(found, answers, k.spelling)
    assert torch.equal(found, expected)
    closed = (expected == -torch.inf).all(1)
    assert closed[rows].tolist() == [n % 4 == 3 or automata[chosen[n]].targets(s).max() < 0 for n, s in enumerate(states)]

    tokens = torch.where(closed, STUCK, expected.argmax(1))
    tokens[rows[0]], tokens[rows[1]] = EOS, -2
    behind = k.advance(answers, tokens, k.spelling)
    assert torch.equal(behind, k.advance_reference(answers, tokens, k.spelling))
    for n, (i, state) in enumerate(zip(chosen, states, strict=True)):
        token = int(tokens[rows[n]])
        assert int(behind[n]) == (DEAD if n % 4 == 3 or token < 0 else automata[i].next(state, token))

    seen = sorted({(int(i), state) for i, state in zip(chosen, states, strict=True)})
    asked = k.AnswerStates.of(range(len(seen)), [s for _, s in seen], [arrays[i] for i, _ in seen], before)
    shape = len(seen), VOCABULARY.words
    bits, same = (torch.empty(shape, dtype=torch.int32, device=k.device) for _ in range(2))
    k.fill_reference(same, asked, k.spelling)
    k.fill(bits, asked, k.spelling)
    assert torch.equal(bits, same)
    for row, (i, state) in zip(bits.cpu().numpy(), seen, strict=True):
        expected_row = automata[i].mask(state) if automata[i].targets(state).max() >= 0 else np.zeros(VOCABULARY.words)
        assert (row.view(np.uint32) == expected_row).all()
        assert int(arrays[i].masks[state]) != 0
    found = logits.clone()
    k.close(found, answers, k.spelling)
    assert torch.equal(found, expected), "rows of bits say the same"


def request(a: TokenAutomaton | None, seed: int, **params) -> Request:
    made = SamplingParams(**{"temperature": 0.0, "max_new_tokens": 200} | params)
    matcher = None if a is None else AutomatonMatcher(a)
    answer = Answer(FakeWords(), made, frozenset({EOS}), matcher=matcher)
    return Request(RequestKind.GENERATE, np.array([1, 2], np.int32), lambda _: None, params=made, seed=seed, answer=answer)


PARAMS = [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 5}, {"logit_bias": ((300, 2.0),)}, {"min_new_tokens": 2}]


@pytest.mark.parametrize(("kernels", "room"), [("fast", 60_000), ("slow", 64 << 20), ("slow", 0)])
def test_answers_drawn_a_step_ahead_are_those_of_a_sampler_that_waits(k, kernels, room, monkeypatch):
    """Random logits, answers that come and end, automata that come and go, tokens that only the device knows."""
    from lmc.backend.engine.sampler import Sampler

    monkeypatch.setattr("lmc.backend.engine.device_automata._MOST_BYTES", room)
    rng, automata = np.random.default_rng(1), [automaton(regex) for regex in REGEXES if regex]
    torch.manual_seed(1)
    sampler, judge = Sampler(VOCABULARY.size, getattr(k, kernels)), Sampler(VOCABULARY.size)
    running: list[Request] = []
    landed, flying = 0, None

    def land(flight) -> None:
        nonlocal landed
        requests, places, logits, tokens = flight
        expected, _ = judge.sample(logits, range(len(requests)), requests_at(requests, places))
        for req, place, token, right in zip(requests, places, tokens.tolist(), expected, strict=True):
            if req.done:
                continue
            assert token == right
            landed += 1
            req.learn(place, token)
            req.done = token in (EOS, STUCK) or req.length >= 60
            if not req.done and req.answer.matcher is not None:
                req.answer.matcher.accept(token)
                req.done = req.answer.matcher.done

    for _ in range(25):
        while len(running) < 5:
            a = None if rng.random() < 0.2 else automata[rng.integers(len(automata))]
            running.append(request(a, int(rng.integers(1 << 60)), **PARAMS[rng.integers(len(PARAMS))]))
        some = [req for req in running if (req.runs_free or not req.awaited) and rng.random() < 0.9]
        logits = torch.randn(len(some), PADDED) * 3
        tokens = sampler.sample_ahead(logits.to(k.device, copy=True), range(len(some)), some).tokens
        launched = some, [req.expect() for req in some], logits, tokens
        if flying is not None:
            land(flying)
        flying = launched
        running = [req for req in running if not req.done]
    held = list(sampler._following._held.values())
    assert landed > 80
    assert any(one.filled for one in held) == (room > 0)
    assert len(held) <= 6 or room > 1 << 20, "automata that are not needed go"


@pytest.mark.parametrize("kernels", ["fast", "slow"])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}])
def test_behind_logits_that_are_no_numbers_nothing_is_legal(k, kernels, params):
    """A row launched before the host knew is drawn from nothing, and says so."""
    from lmc.backend.engine.sampler import Sampler

    sampler, req = Sampler(VOCABULARY.size, getattr(k, kernels)), request(automaton("[a-z]{9}"), 1, **params)
    tokens = []
    for logits in (torch.full((1, PADDED), torch.nan), torch.zeros(1, PADDED), torch.zeros(1, PADDED)):
        tokens += sampler.sample_ahead(logits.to(k.device), [0], [req]).tokens.tolist()
        req.expect()
    assert tokens == [BROKEN, STUCK, STUCK]


def requests_at(requests, places) -> list[Request]:
    """The requests as if nothing behind `places` were known yet."""
    found = []
    for req, place in zip(requests, places, strict=True):
        one = Request(RequestKind.GENERATE, req.prompt, lambda _: None, params=req.params, seed=req.seed, answer=req.answer)
        one.extend(req.ids[req.prompt_len : place].tolist())
        found.append(one)
    return found


CONSTRAINTS = [
    None,
    r'\{"name": "[\w ]{1,16}", "order": (orders|order|Harry), "length": [0-9]{1,2}\.[0-9]{0,2}\}',
    r"[a-z ]{1,12}",
    r"(世界|和平|é)+ the (end|order)",
]


@pytest.fixture
def folder(tmp_path):
    """A model of random weights over the small vocabulary."""
    trained().save(str(tmp_path / "tokenizer.json"))
    shape = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96,
        "num_hidden_layers": 2, "max_position_embeddings": 512, "vocab_size": trained().get_vocab_size(), "eos_token_id": EOS,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    return str(tmp_path)


def answers_of(engine) -> list[str]:
    handles = []
    for i in range(24):
        source = CONSTRAINTS[i % len(CONSTRAINTS)]
        bound = Constraint("regex", source) if source else None
        params = SamplingParams(max_new_tokens=40, temperature=0.0 if i % 3 else 1.0, top_k=8 if i % 2 else -1)
        handles.append(engine.submit(None, [Text((f"the order {i}",)), Gen(params, bound, seed=i)]))
    texts = [handle.results[0].output().text for handle in handles]
    engine.check()
    return texts


def ahead_runner(waits, kernels):
    """A runner with the model of another one, on a CPU as if that worked by itself."""
    from lmc.backend.engine.model_runner import ModelRunner, index_of, read, wanted_rows
    from lmc.backend.engine.sampler import Sampler

    class Flight:
        over, seconds = True, 0.0

        def __init__(self, drawn, scores) -> None:
            self.drawn, self.scores = drawn, scores

        def result(self):
            tokens, told = ([], []) if self.drawn is None else self.drawn.read()
            return PassOutput(tokens, told, *read(self.scores))

    class Ahead(ModelRunner):
        """Takes tokens that are not known yet from the pass before."""

        places: ClassVar[dict[Request, int]] = {}
        sampled: Any = None
        launched = together = 0

        @torch.inference_mode()
        def launch(self, work):
            self.launched += 1
            work.spans = [span._replace(ids=self.known(span)) for span in work.spans]
            wanted = wanted_rows(work)
            logits, index = self.logits(work, wanted), index_of(wanted)
            scores = self._scores(logits, work, index)
            drawn = None
            if work.samples:
                drawn = self._sampler.sample_ahead(logits, [index[row] for row, _ in work.draws], [req for _, req in work.draws])
                self.sampled = drawn.tokens
            self.places = {req: i for i, (_, req) in enumerate(work.samples)}
            return Flight(drawn, scores)

        def known(self, span):
            if span.ids[-1] != PENDING:
                return span.ids
            self.together += span.request.answer.matcher is not None
            return np.append(span.ids[:-1], max(0, int(self.sampled[self.places[span.request]])))

    return Ahead(waits._model, waits._kv, Sampler(waits._sampler._vocab_size, kernels))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_engine_a_step_ahead_gives_the_same_answers(k, folder, share, monkeypatch):
    """The model on a CPU as if it worked by itself, with the references for kernels."""
    import lmc

    monkeypatch.setattr("lmc.backend.engine.engine._MOST_FORCED", share)
    with lmc.Engine(folder, load_format="dummy", device="cpu", max_tokens=2048, canonical=False) as engine:
        expected = answers_of(engine)
        engine._core._runner = ahead = ahead_runner(engine._core._runner, k.slow)
        assert answers_of(engine) == expected
        assert ahead.launched > 10 and ahead.together > 50
        assert all(re.fullmatch(CONSTRAINTS[2], text) for text in expected[2::4])


@pytest.mark.gpu
def test_a_step_is_captured_and_waits_for_nothing(k):
    """Closing, drawing and stepping as one graph, replayed with other answers."""
    rng, a = np.random.default_rng(3), automaton(CONSTRAINTS[1])
    arrays, rows = k.on_device(a), range(8)
    logits = torch.randn(8, PADDED, device="cuda")
    drawn, tokens = logits.clone(), torch.zeros(8, dtype=torch.int64, device="cuda")
    answers = k.AnswerStates.of(rows, [0] * 8, [arrays] * 8, k.before([0] * 8))

    def step():
        drawn.copy_(logits)
        k.close(drawn, answers, k.spelling)
        tokens.copy_(drawn.argmax(1))
        return k.advance(answers, tokens, k.spelling)

    step()  # compiled outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        behind = step()
    for _ in range(5):
        states = [random_state(a, rng) for _ in rows]
        told = [-1 - n if n % 2 else state for n, state in enumerate(states)]
        now = k.AnswerStates.of(rows, told, [arrays] * 8, k.before(states))
        answers.table.copy_(now.table)
        answers.before.copy_(now.before)
        graph.replay()
        expected = logits.clone()
        k.close_reference(expected, now, k.spelling)
        assert torch.equal(drawn, expected)
        assert torch.equal(behind, k.advance_reference(now, tokens, k.spelling))


@pytest.mark.gpu
def test_drawing_ahead_under_automata_waits_for_nothing(k):
    """Whoever waits for the device is told so by torch."""
    from lmc.backend.engine.sampler import Sampler

    automata = [automaton(regex) for regex in CONSTRAINTS[1:]]
    sampler, running = Sampler(VOCABULARY.size, k.fast), [request(automata[i % 3], i) for i in range(32)]
    logits = torch.randn(32, PADDED, device="cuda")
    for waits in (True, False, False):  # kernels are compiled, pinned memory is set up
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("default" if waits else "error")
        try:
            drawn = sampler.sample_ahead(logits.clone(), range(32), running).leave()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if waits:
            torch.cuda.synchronize()
            for req, token in zip(running, drawn.read()[0], strict=True):
                req.append(token)
                req.answer.matcher.accept(token)
        else:
            for req in running:
                if req.awaited:
                    req.learn(req.length - 1, 300)
                req.expect()
