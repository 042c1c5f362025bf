"""A smaller model guesses drafts: the same tokens whatever it guesses, and many in a pass where it is right."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

import lmc
from lmc.backend.base import Hints
from lmc.backend.engine.draft_costs import Costs
from lmc.backend.engine.drafts import Drafts
from lmc.errors import BackendError, ModelLoadError, ParameterError
from lmc.segments import Gen, SamplingParams, Text
from tests.backend.engine.test_ahead import WORDS, Traffic
from tests.backend.engine_fakes import LETTERS, Copies, CopiesAhead, drain, gen, next_token, stepped
from tests.searching import size

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from lmc.backend.engine.draft_model import DraftModel  # noqa: E402
from lmc.backend.engine.sampler import Sampler  # noqa: E402
from tests.backend.engine.test_device_automata import EOS, ahead_runner, k, trained  # noqa: E402
from tests.backend.engine.test_drafts_model import said, same  # noqa: E402

__all__ = ["k"]  # a fixture


# -- with a model without numbers ------------------------------------------------------------------------------------------


class Small:
    """Says what Copies says (but where `wrong` is drawn), by what its slots hold: wrong KV makes wrong guesses."""

    def __init__(self, slots: int, wrong: float = 0.0) -> None:
        self.kv, self.rng, self.wrong = np.full(slots, -1), Random(0), wrong
        self.fail: BaseException | None = None
        self.seen: Any = lambda context: None

    def logits(self, work, wanted):
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        rows = []
        for span in work.spans:
            assert len(span.slots) == span.position + len(span.ids) and len(set(span.slots.tolist())) == len(span.slots)
            self.kv[span.slots[span.position :]] = span.ids
            rows += [self.kv[span.slots[: span.position + i + 1]] for i in range(len(span.ids))]
        found = torch.full((len(wanted), WORDS.vocab_size), -30.0)
        for i, row in enumerate(wanted):
            context = rows[row].astype(np.int32)
            assert (context >= 0).all()
            self.seen(context)
            found[i, self.next(context)] = 30.0
        return found

    def next(self, context) -> int:
        if self.rng.random() < self.wrong:
            return LETTERS[5]
        whole = zlib.crc32(context.tobytes()) % 8 == 0
        return next_token(context if whole else context[-2:], 0, LETTERS[:3])


def small_of(slots: int = 400, wrong: float = 0.0, max_context: int = 1000, chunk: int = 64) -> DraftModel:
    return DraftModel(Small(slots, wrong), Sampler(WORDS.vocab_size), slots, max_context, chunk)


@pytest.mark.parametrize("runs", [Copies, CopiesAhead])
def test_what_it_guesses_right_takes_few_passes(runs):
    found = {}
    for model in (None, small_of()):
        engine, core = stepped(1024, runs=runs, drafts="off" if model is None else 7, draft_model=model)
        handles = [engine.submit(None, [Text((f"{text} go ",)), gen(40)]) for text in ("ab", "ab cat", "the dog")]
        drain(core)
        engine.check()
        found[model is None] = [h.results[0].output() for h in handles]
    assert [o.ids for o in found[True]] == [o.ids for o in found[False]]
    assert max(o.usage.passes for o in found[False]) <= 40 // 8 + 4
    assert all(o.usage.accepted_tokens == o.usage.drafted_tokens > 20 for o in found[False]), "greedy, and it says the same"


@pytest.mark.parametrize("runs", [Copies, CopiesAhead])
def test_behind_a_wrong_guess_it_goes_on_from_what_was_said(runs):
    model = small_of(wrong=0.4)
    engine, core = stepped(1024, runs=runs, drafts=5, draft_model=model)

    def seen(context) -> None:
        (req,) = core.scheduler.running
        assert len(context) >= req.length and (context[: req.length] == req.ids[: req.length]).all()

    model._runner.seen = seen
    handle = engine.submit(None, [Text(("ab go ",)), gen(60)])
    drain(core)
    engine.check()
    usage = handle.results[0].output().usage
    assert 20 < usage.accepted_tokens < usage.drafted_tokens - 20


@pytest.mark.search
def test_random_answers_are_those_without_it():
    """In pools that are too small, its own too; by a model that is often wrong."""
    preempted = accepted = 0
    for seed in range(size(8, 300)):
        traffic = Traffic(seed)
        expected, rng = traffic.said(Copies), traffic.rng
        most = rng.choice([1, 2, 5, 16, "auto"])
        for runs in (Copies, CopiesAhead):
            model = small_of(rng.choice([30, 90, 150, 1000]), rng.choice([0.0, 0.2, 1.0]), rng.choice([20, 1000]), rng.choice([1, 5, 64]))
            assert traffic.said(runs, drafts=most, draft_model=model) == expected, (seed, runs, most)
            assert model._pool.free_count == model._slots and not model._known, "nothing is kept of what has ended"
        preempted, accepted = preempted + traffic.preempted, accepted + traffic.accepted
    assert preempted > 0 and accepted > 100


def test_what_it_has_computed_is_used_again_within_a_namespace():
    model = small_of(1000)
    engine, core = stepped(1024, runs=Copies, drafts=4, draft_model=model)

    def rows_of(text: str, parent=None, **hints: Any) -> tuple[int, Any]:
        before = model.rows
        handle = engine.submit(parent, [Text((text,)), gen(10)], Hints(**hints))
        drain(core)
        engine.check()
        return model.rows - before, handle

    long = "the dog " * 20
    first, handle = rows_of(long)
    assert first > 100
    assert rows_of(long)[0] < 30, "the same prompt"
    assert rows_of("and more ", handle)[0] < 40, "an answer that is gone on from"
    assert rows_of(long, namespace="other")[0] > 100
    engine.flush_cache()
    assert rows_of(long)[0] > 100


def test_its_room_and_its_context_bound_what_it_guesses():
    for model in (small_of(slots=60), small_of(max_context=60)):
        engine, core = stepped(1024, runs=Copies, drafts=4, draft_model=model)
        asked = []
        for text in ("ab go ", "0123456789QRSTUVWXYZ" * 4):
            before = model.passes
            handle = engine.submit(None, [Text((text,)), gen(30)])
            drain(core)
            engine.check()
            assert handle.results[0].done
            asked.append(model.passes - before)
        assert asked[0] > 0 == asked[1]


def test_a_failed_guess_fails_what_runs_and_nothing_after():
    model = small_of()
    engine, core = stepped(1024, runs=Copies, drafts=4, draft_model=model)
    handle = engine.submit(None, [Text(("ab go ",)), gen(20)])
    core.turn()
    model._runner.fail = RuntimeError("no room on the device")
    with pytest.raises(RuntimeError):
        drain(core)
    core._fail_all(RuntimeError("no room on the device"))
    with pytest.raises(BackendError, match="no room on the device"):
        handle.results[0].output()
    engine.check()
    again = engine.submit(None, [Text(("ab go ",)), gen(20)])
    drain(core)
    engine.check()
    assert again.results[0].output().usage.accepted_tokens > 10


class Unlearning(Costs):
    """Costs that stay as given, however busy the machine is."""

    def learn(self, rows: int, drafted: int, seconds: float, host: float, gap: float) -> None: ...

    def learn_step(self, answers: int, steps: int, seconds: float) -> None: ...


def test_one_that_is_never_right_is_hardly_asked_where_that_does_not_pay():
    model = small_of(4000, wrong=1.0)
    engine, core = stepped(4096, runs=Copies, drafts="auto", draft_model=model)
    core.scheduler.drafts.costs = Unlearning(ahead=False, row=0.05)
    handles = [engine.submit(None, [Text((f"{i} ab go ",)), gen(60)]) for i in range(6)]
    drain(core)
    asked = model.passes
    assert 0 < asked < core.counters().generated_tokens / 4
    handles += [engine.submit(None, [Text((f"{i} the dog ",)), gen(60)]) for i in range(6)]
    drain(core)
    assert all(handle.results[0].done for handle in handles)
    assert model.passes - asked < 60 / 4, "and less and less"


def test_what_a_guess_costs_is_weighed():
    costs = Costs(ahead=False, row=0.01, host=0.0)
    right, wrong = np.cumprod(np.full(8, 0.9)), np.cumprod(np.full(8, 0.05))
    costs.step = 0.1
    assert costs.worth(1, [right], [True])[0] >= 4 and costs.worth(1, [wrong], [True]) == [0]
    costs.step = 1.5
    assert costs.worth(1, [right], [True]) == [0] and costs.worth(1, [right], [False])[0] >= 4
    costs.step = 0.5
    assert sum(costs.worth(8, [right] * 8, [True] * 8)) >= 8, "a step is shared"


# -- real models -----------------------------------------------------------------------------------------------------------


def folder_of(path: Path, words: Any = None, **shape: int) -> str:
    """A model of random weights over the small vocabulary."""
    path.mkdir(parents=True, exist_ok=True)
    words = trained() if words is None else words
    words.save(str(path / "tokenizer.json"))
    said = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 96,
        "num_hidden_layers": 2, "max_position_embeddings": 512, "vocab_size": words.get_vocab_size(), "eos_token_id": EOS, **shape,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(said))
    return str(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    base = tmp_path_factory.mktemp("pair")
    return folder_of(base / "large"), folder_of(base / "small", hidden_size=32, num_hidden_layers=1, vocab_size=trained().get_vocab_size() + 9)


OPTIONS: dict[str, Any] = {"load_format": "dummy", "device": "cpu", "canonical": False}


@pytest.fixture(scope="module")
def expected(pair):
    with lmc.Engine(pair[0], max_tokens=4096, **OPTIONS) as engine:
        return said(engine)


@pytest.mark.parametrize(
    ("model", "ahead", "drafts"),
    [("small", True, 6), ("small", False, "auto"), ("same", False, 6), ("same", True, "auto"), ("none", True, 3), ("none", False, 12)],
)
def test_answers_are_the_same(k, pair, expected, model, ahead, drafts):
    """Sampled, penalised, constrained, scored, stopped; waited for, and as a device does it, with the references for kernels; by a model that knows
    nothing, by one that knows all, and by none."""
    with lmc.Engine(pair[0], max_tokens=4096, drafts=drafts, draft_model={"small": pair[1], "same": pair[0], "none": None}[model], **OPTIONS) as engine:
        if ahead:
            engine._core._runner = ahead_runner(engine._core._runner, k.slow)
        same(said(engine), expected)
        counters = engine.counters()
        if drafts != "auto":
            assert counters.accepted_tokens > 100
            if model == "same":
                assert counters.accepted_tokens > 0.85 * counters.drafted_tokens, "it draws as the answer does, at every temperature"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_is_as_good_is_right_at_every_temperature(pair, temperature):
    params = SamplingParams(max_new_tokens=60, temperature=temperature, ignore_eos=True, presence_penalty=0.3)
    with lmc.Engine(pair[0], max_tokens=4096, drafts=6, draft_model=pair[0], **OPTIONS) as engine:
        engine.drafts = 6
        outputs = [engine.submit(None, [Text((f"{i} of that",)), Gen(params, seed=i)]).results[0].output() for i in range(4)]
    assert all(o.usage.accepted_tokens > 45 and o.usage.passes < 18 for o in outputs)


def test_recorded_answers_are_not_guessed_from_the_record(pair):
    with lmc.Engine(pair[0], max_tokens=1024, drafts=4, draft_model=pair[1], **OPTIONS) as engine:
        engine.replay(lambda prompt: "the quick order of a brown thing, once and for all; no more")
        output = engine.submit(None, [Text(("say: ",)), Gen(SamplingParams(max_new_tokens=90, temperature=0.0))]).results[0].output()
        assert output.text.startswith("the quick order")
        assert output.usage.drafted_tokens > 20 and output.usage.accepted_tokens < output.usage.drafted_tokens / 2


def test_with_adapters(tmp_path):
    from tests.backend.engine.test_lora import NAMES, PROMPTS, ask, engine_of, make_base

    base = make_base("llama", tmp_path)
    found = []
    for options in ({}, {"draft_model": base.path, "drafts": 5}):
        with engine_of(base, **options) as engine:
            handles = [engine.submit(None, [Text((p,)), ask(n, 40)]) for p in PROMPTS[:2] for n in NAMES]
            found.append([h.results[0].output().ids for h in handles])
            engine.check()
    assert found[0] == found[1]


def test_over_ranks(tmp_path):
    """It runs where the sampler does."""
    from tests.backend.engine.test_lora import make_base

    path, found = make_base("llama", tmp_path).path, []
    for options in ({}, {"draft_model": path, "drafts": 5, "tp": 2}):
        with lmc.Engine(path, dtype="float32", device="cpu", max_tokens=512, **options) as engine:
            gen = Gen(SamplingParams(max_new_tokens=40, temperature=0.0, ignore_eos=True))
            found.append(engine.submit(None, [Text(("the order ",)), gen]).results[0].output())
    assert found[0].ids == found[1].ids and found[1].usage.accepted_tokens > 0


def test_a_model_says_the_same(tiny_smollm2, tmp_path):
    """With drafts of a smaller one of its vocabulary."""
    transformers = pytest.importorskip("transformers")
    gens = [Gen(SamplingParams(max_new_tokens=16, temperature=t), seed=3) for t in (0.0, 0.8)]
    prompt = "The capital of France is"
    with lmc.Engine(tiny_smollm2, max_tokens=512) as engine:
        expected = [engine.submit(None, [Text((prompt,)), gen]).results[0].output() for gen in gens]
        tokenizer = engine.tokenizer.raw.to_str()
        size = engine.tokenizer.vocab_size
    config = transformers.LlamaConfig(
        vocab_size=size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, eos_token_id=2,
        bos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(tokenizer)
    with lmc.Engine(tiny_smollm2, max_tokens=512, drafts=5, draft_model=str(tmp_path)) as engine:
        found = [engine.submit(None, [Text((prompt,)), gen]).results[0].output() for gen in gens]
        engine.check()
    assert [o.ids for o in found] == [o.ids for o in expected]
    assert all(o.usage.drafted_tokens > 20 for o in found)


# -- what cannot be ----------------------------------------------------------------------------------------------------------


def test_without_drafts_it_drafts_as_many_as_pay(pair):
    for given, setting in ((None, "auto"), ("off", "off"), (3, 3)):
        with lmc.Engine(pair[0], max_tokens=64, drafts=given, draft_model=pair[1], **OPTIONS) as engine:
            assert engine.drafts == setting
    with lmc.Engine(pair[0], max_tokens=64, **OPTIONS) as engine:
        assert engine.drafts == "off"


@pytest.mark.parametrize("given", [3, "", ["x"]])
def test_it_is_named_like_a_model(given):
    with pytest.raises(ParameterError, match=r"draft_model is .*; it names a model"):
        lmc.Engine("nowhere", draft_model=given)


@pytest.mark.parametrize("given", [3, None, b"x", "a\0b"])
def test_a_model_is_named_by_what_can_be_a_path(given):
    with pytest.raises(lmc.LmcError, match="model="):
        lmc.Engine(given)


def test_another_vocabulary_is_refused(pair, tmp_path):
    from tokenizers import AddedToken

    words = trained()
    vocabulary = json.loads(words.to_str())
    first, second = list(vocabulary["model"]["vocab"])[40:42]
    table = vocabulary["model"]["vocab"]
    table[first], table[second] = table[second], table[first]
    other = type(words).from_str(json.dumps(vocabulary))
    more = trained()
    more.add_special_tokens([AddedToken("<|more|>", special=True)])
    cases = {
        "swapped": (folder_of(tmp_path / "swapped", other), r"its token 4\d is not that of large"),
        "fewer": (folder_of(tmp_path / "fewer", vocab_size=300), r"300|vocabulary"),
        "missing": (folder_of(tmp_path / "nothing") + "/nowhere", r"nowhere: no such file"),
    }
    for path, message in cases.values():
        with pytest.raises(ModelLoadError, match=message):
            lmc.Engine(pair[0], max_tokens=64, draft_model=path, **OPTIONS)
    larger = folder_of(tmp_path / "larger", more)
    with lmc.Engine(pair[0], max_tokens=64, draft_model=larger, **OPTIONS):
        pass
    with pytest.raises(ModelLoadError, match=r"draft_model large.*: it knows \d+ tokens|token \d+ is another"):
        lmc.Engine(larger, max_tokens=64, draft_model=pair[0], **OPTIONS)


def test_it_guesses_nothing_for_an_answer_that_has_all_it_may():
    """Its last token is known, and stands behind the last slot that it has: there is room for less than none."""
    drafts = Drafts("auto", Costs(ahead=False, row=0.0), small_of())
    over = Mock(pictures=(), length=9, followed=9, awaited=0, kv_max=8, near=None, match=None, nearby=None, gen=None)
    assert drafts.propose([over], 8) == {}
    assert not drafts.is_promising([over])
