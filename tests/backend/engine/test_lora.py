"""Adapters: the numbers of transformers' models with merged weights and of PEFT, alone and side by side, and files that are refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lmc
from lmc.backend.base import Hints
from lmc.errors import Loc, ModelLoadError, ParameterError, UnsupportedOpError
from lmc.segments import ChoicesMethod, Gen, SamplingParams, Select, Text
from tests.backend.engine import adapters
from tests.backend.engine.adapters import ATTENTION, MLP

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SHAPE = {"hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "max_position_embeddings": 256}
KINDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("Llama", {"intermediate_size": 80}, (*ATTENTION, *MLP)),
    "qwen2": ("Qwen2", {"intermediate_size": 80}, ("q_proj", "v_proj", "up_proj")),
    "qwen3": ("Qwen3", {"intermediate_size": 80, "head_dim": 16, "tie_word_embeddings": True}, (*ATTENTION, *MLP)),
    "mixtral": ("Mixtral", {"intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2}, ATTENTION),
}


@pytest.fixture(scope="module", params=KINDS)
def base(request, tmp_path_factory):
    return make_base(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_base("llama", tmp_path_factory.mktemp("llama"))


def make_base(kind: str, path):
    """A model of random weights that is no repetition, three adapters, and the same three merged into its weights."""
    from tests.backend.engine.test_device_automata import EOS, trained

    name, options, targets = KINDS[kind]
    torch.manual_seed(0)
    words = trained()
    config = getattr(transformers, f"{name}Config")(
        **SHAPE, **options, vocab_size=words.get_vocab_size(), eos_token_id=EOS, bos_token_id=None, initializer_range=0.15
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    model.save_pretrained(path / "model")
    words.save(str(path / "model" / "tokenizer.json"))
    weights = dict(model.named_parameters())
    given = {
        "all": adapters.write(path / "all", weights, (0, 1, 2), targets),
        "some": adapters.write(path / "some", weights, (1,), targets[:2], rank=6, alpha=3, seed=1, size=1.0),
        "rs": adapters.write(path / "rs", weights, (0, 2), targets[1:3], rank=9, alpha=5, seed=2, use_rslora=True),
    }
    return SimpleNamespace(
        model=model, path=str(path / "model"), adapters={n: str(p) for n, p in given.items()}, targets=targets, weights=weights,
        merged={"": model, **{n: adapters.merged(model, p) for n, p in given.items()}},
    )  # fmt: skip


def engine_of(base, **options: Any):
    return lmc.Engine(base.path, adapters=base.adapters, device="cpu", dtype="float32", max_tokens=2048, **options)


PROMPTS = ("the order of the first thing", "a brown thing and another", "x")
NAMES = ("", "all", "some", "rs")


def greedy(model, ids, count: int) -> list[int]:
    """Tokens that a model of transformers has for the likeliest; no two may be alike, or rounding would choose."""
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([ids])).logits[0, -1]
            best = logits.topk(2).values
            assert best[0] - best[1] > 1e-4
            ids.append(int(logits.argmax()))
    return ids


def check(model, ids, begun: int, count: int = 12) -> None:
    """The tokens behind the prompt are the likeliest; the text of the last may be the beginning of a character, and left out."""
    assert begun + count - 3 <= len(ids) <= begun + count
    assert ids == greedy(model, ids[:begun], count)[: len(ids)]


def ask(adapter: str, most: int = 12, **more: Any) -> Gen:
    return Gen(SamplingParams(max_new_tokens=most, temperature=0.0, ignore_eos=True, adapter=adapter, **more))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_rows_of_several_adapters_give_the_merged_models_numbers(base, ranks, tmp_path):
    """In one pass, decoding and prompts, some without an adapter; also spread over ranks, and over more than there are heads of k and v."""
    from lmc.backend.engine.models.loader import load
    from tests.backend.engine.model_fixtures import PlainKV, batch
    from tests.backend.engine.test_distributed import spread

    ids, n = torch.randint(0, 60, (4, 7), generator=torch.Generator().manual_seed(3)).tolist(), 7
    rows = batch(*((ids[i], range(i * n, (i + 1) * n)) for i in range(4)), logits=range(4 * n))
    numbers = torch.tensor([0, 1, 2, 3]).repeat_interleave(n)

    def logits_of(loaded):
        return loaded.model.forward(replace(rows, adapters=numbers), PlainKV(loaded, 4 * n))

    options = {"dtype": "float32", "adapters": base.adapters}
    found = logits_of(load(base.path, **options)) if ranks == 1 else spread(base.path, ranks, tmp_path, logits_of, **options)[0][1]
    for i, name in enumerate(NAMES):
        with torch.inference_mode():
            expected = base.merged[name](torch.tensor([ids[i]])).logits[0]
        torch.testing.assert_close(found.view(4, n, -1)[i], expected, atol=2e-4, rtol=1e-3)
        if name:
            with torch.inference_mode():
                assert float((expected - base.model(torch.tensor([ids[i]])).logits[0]).abs().max()) > 0.05, "an adapter that does nothing shows nothing"


def test_numbers_are_those_of_peft(base):
    peft = pytest.importorskip("peft")
    from lmc.backend.engine.models.loader import load
    from tests.backend.engine.model_fixtures import PlainKV, batch

    loaded = load(base.path, dtype="float32", adapters=base.adapters)
    ids = torch.randint(0, 60, (9,), generator=torch.Generator().manual_seed(5)).tolist()
    for number, name in enumerate(base.adapters, 1):
        theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base.model), base.adapters[name]).eval()
        with torch.inference_mode():
            expected = theirs(torch.tensor([ids])).logits[0]
        rows = replace(batch((ids, range(9)), logits=range(9)), adapters=torch.full((9,), number))
        torch.testing.assert_close(loaded.model.forward(rows, PlainKV(loaded, 9)), expected, atol=2e-4, rtol=1e-3)


def test_what_peft_saves_is_read(llama, tmp_path):
    """With the fields that its own version writes."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.LoraConfig(r=5, lora_alpha=7, target_modules="all-linear", use_rslora=True, init_lora_weights=False, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(copy.deepcopy(llama.model), config).eval()
    theirs.save_pretrained(tmp_path / "saved")
    with lmc.Engine(llama.path, adapters={"x": str(tmp_path / "saved")}, device="cpu", dtype="float32", max_tokens=512) as engine:
        handle = engine.submit(None, [Text((PROMPTS[0],)), ask("x")])
        ids, begun = engine.prompt_ids(handle), handle.results[0].output().usage.prompt_tokens
    check(theirs, ids, begun)


@pytest.mark.parametrize("chunk", [3, 512])
def test_answers_side_by_side_are_the_merged_models(base, chunk):
    with engine_of(base, chunk=chunk) as engine:
        handles = {(p, n): engine.submit(None, [Text((p,)), ask(n)]) for p in PROMPTS for n in NAMES}
        for (_, name), handle in handles.items():
            ids, begun = engine.prompt_ids(handle), handle.results[0].output().usage.prompt_tokens
            check(base.merged[name], ids, begun)
        engine.check()


def test_no_adapter_uses_what_another_has_computed(llama):
    with engine_of(llama) as engine:
        prompt = Text((PROMPTS[0] * 5,))
        cold = {name: engine.submit(None, [prompt, ask(name)]).results[0].output() for name in NAMES}
        assert [out.usage.cached_tokens for out in cold.values()] == [0] * 4
        assert len({out.text for out in cold.values()}) == 4
        for name in NAMES:
            again = engine.submit(None, [prompt, ask(name)]).results[0].output()
            assert again.ids == cold[name].ids and again.usage.cached_tokens == again.usage.prompt_tokens - 1
        engine.check()


def test_an_answer_is_gone_on_from_by_another_adapter(llama):
    """Its text is part of the prompt; its KV is not."""
    with engine_of(llama) as engine:
        handle = None
        for i, name in enumerate(("all", "all", "", "rs", "")):
            handle = engine.submit(handle, [Text((f" and {i} more of that ",)), ask(name)])
            ids, usage = engine.prompt_ids(handle), handle.results[0].output().usage
            check(llama.merged[name], ids, usage.prompt_tokens)
            assert (usage.cached_tokens > 0) == (i in (1, 4)), "what the same adapter has left is used"
        engine.check()


def test_a_pinned_prefix_is_the_adapters_own(llama):
    with engine_of(llama) as engine:
        text = Text((PROMPTS[0] * 6,))
        pin = engine.prefill(None, [text], Hints(pin=True, adapter="all"))
        own, other = (engine.submit(pin, [Text((" end",)), ask(name)]) for name in ("all", "some"))
        outputs = [h.results[0].output() for h in (own, other)]
        assert outputs[0].usage.cached_tokens > 10 and outputs[1].usage.cached_tokens == 0
        engine.release(pin)
        engine.check()
        with pytest.raises(ParameterError, match="no adapter of that name; did you mean 'all'"):
            engine.prefill(None, [text], Hints(adapter="alll"))


def test_a_select_is_scored_by_its_adapter(llama):
    choices = (" first", " another", " brown")
    with engine_of(llama) as engine:
        for name in NAMES:
            wanted = Select(choices, method=ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED, adapter=name)
            meta = engine.submit(None, [Text((PROMPTS[0],)), wanted]).results[0].output().metas[0]
            for choice, scored in zip(choices, meta["input_token_logprobs"], strict=True):
                ids = engine.encode((PROMPTS[0] + choice,))
                assert [token for _, token, _ in scored] == ids[-len(scored) :]
                with torch.inference_mode():
                    logprobs = llama.merged[name](torch.tensor([ids])).logits[0].log_softmax(-1)
                expected = [float(logprobs[at - 1, ids[at]]) for at in range(len(ids) - len(scored), len(ids))]
                assert [lp for lp, *_ in scored] == pytest.approx(expected, abs=1e-3)
        engine.check()


def test_drafts_change_nothing(llama):
    with engine_of(llama, drafts="off") as engine:
        found = []
        for drafts in ("off", 6):
            engine.drafts = drafts
            handles = [engine.submit(None, [Text((PROMPTS[0] * 4,)), ask(name, 60)]) for name in NAMES]
            found.append([h.results[0].output().ids for h in handles])
        assert found[0] == found[1]
        assert engine.counters().accepted_tokens > 0


@pytest.mark.parametrize("cache", ["tree", "table", "off"])
def test_in_a_pool_that_is_too_small(llama, cache):
    with engine_of(llama) as engine:
        handles = {(p, n): engine.submit(None, [Text((p,)), ask(n, 30)]) for p in PROMPTS for n in NAMES}
        expected = {key: handle.results[0].output().ids for key, handle in handles.items()}
    with lmc.Engine(llama.path, adapters=llama.adapters, device="cpu", dtype="float32", max_tokens=200, chunk=24, cache=cache) as engine:
        handles = {(p, n): engine.submit(None, [Text((p,)), ask(n, 30)]) for p, n in expected}
        assert {key: h.results[0].output().ids for key, h in handles.items()} == expected
        engine.check()


def test_matrices_that_are_packed_and_in_half(llama):
    """As they are on a CPU, and in bfloat16: the answers of adapters that do much stay apart."""
    for options in ({}, {"dtype": "bfloat16"}):
        with lmc.Engine(llama.path, adapters=llama.adapters, device="cpu", max_tokens=512, **options) as engine:
            texts = {engine.submit(None, [Text((PROMPTS[0],)), ask(name, 30)]).results[0].output().text for name in NAMES}
            assert len(texts) == 4


def test_matrices_in_four_bits(llama):
    """An adapter adds to them what it adds to the same matrices that are not packed."""
    from lmc.backend.engine.models import linear, lora
    from lmc.backend.engine.models.loader import load
    from tests.backend.engine.model_fixtures import PlainKV, batch

    if not linear.can_pack_half():
        pytest.skip("needs FBGEMM's kernels")
    packed, plain = load(llama.path, quantization="int4"), load(llama.path)
    assert packed.weights.endswith("int4 packed")

    def unpacked(matrix, columns):
        zero = matrix(torch.zeros(1, columns))
        return linear.Dense((matrix(torch.eye(columns)) - zero).T.contiguous(), zero[0])

    c = plain.config
    columns = {"qkv": c.hidden_size, "o": c.q_size, "gate_up": c.hidden_size, "down": c.intermediate_size}
    layers = (replace(layer, **{name: unpacked(getattr(layer, name), n) for name, n in columns.items()}) for layer in packed.model.layers)
    plain.model.layers = tuple(layers)
    ids = torch.randint(0, 60, (9,), generator=torch.Generator().manual_seed(5)).tolist()
    alone = batch((ids, range(9)), logits=range(9))
    before = packed.model.forward(alone, PlainKV(packed, 9))
    for loaded in (packed, plain):
        lora.load(llama.adapters, loaded.name, loaded.model, loaded.config, None)
    for number in (1, 2):
        rows = replace(alone, adapters=torch.full((9,), number))
        a, b = (loaded.model.forward(rows, PlainKV(loaded, 9)) for loaded in (packed, plain))
        assert float((a - b).norm() / b.norm()) < 1e-2 < float((a - before).norm() / before.norm())
    with lmc.Engine(llama.path, adapters=llama.adapters, quantization="int4", device="cpu", max_tokens=512) as engine:
        texts = [engine.submit(None, [Text((PROMPTS[0],)), ask(name)]).results[0].output().text for name in NAMES]
    assert len(set(texts)) > 1


def test_products_of_a_gpu_are_the_grouped_ones(base):
    """For any mixture of rows."""
    pytest.importorskip("triton")
    from lmc.backend.engine.kernels.low_rank import add, group, stack
    from lmc.backend.engine.models import lora
    from lmc.backend.engine.models.adapters import Adapters, RowsByAdapter
    from lmc.backend.engine.models.layout import sizes
    from lmc.backend.engine.models.loader import load

    config, device = load(base.path, dtype="float32").config, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    every = Adapters([lora.read(Path(path), config) for path in base.adapters.values()], torch.float32, device)
    for numbers in ([0, 1, 2, 3, 3, 0, 1], [2] * 7, [0] * 7):
        numbers = torch.tensor(numbers, device=device)
        groups, generator = group(numbers.int(), every.count, torch.float32), torch.Generator().manual_seed(0)
        for (layer, matrix), factors in every.factors.items():
            rows, columns = sizes(config, matrix)
            x, y = (torch.randn(7, n, generator=generator).to(device) for n in (columns, sum(rows)))
            expected = every.add(layer, matrix, x, y.clone(), RowsByAdapter.of(numbers))
            torch.testing.assert_close(add(x, y, stack(factors), groups), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2])
def test_graphs_give_the_merged_models_answers(tmp_path, ranks):
    """In half precision: each token is, but for rounding, the likeliest of the model with its adapter merged in."""
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs")
    base = make_base("qwen3", tmp_path)
    with lmc.Engine(base.path, adapters=base.adapters, device="cuda", dtype="float16", max_tokens=2048, tp=ranks) as engine:
        for _ in range(2):
            handles = [(n, engine.submit(None, [Text((p,)), ask(n)])) for p in PROMPTS for n in NAMES]
            answers = [(n, engine.prompt_ids(h), h.results[0].output().usage.prompt_tokens) for n, h in handles]
            engine.flush_cache()
        engine.check()
    for name, ids, begun in answers:
        with torch.inference_mode():
            logits = base.merged[name](torch.tensor([ids])).logits[0, begun - 1 : -1]
        chosen = logits.gather(1, torch.tensor(ids[begun:])[:, None])[:, 0]
        assert float((logits.max(-1).values - chosen).max()) < 0.02, name
    assert len({tuple(ids) for _, ids, _ in answers}) == len(answers), "an adapter that does nothing shows nothing"


# -- the small model ----------------------------------------------------------------------------------------------------


def test_the_small_model_with_adapters(tmp_path):
    """A GGUF file, whose rows of q and k are kept otherwise: every token of an answer is the likeliest by the merged weights."""
    from tests.backend.engine.model_fixtures import transformers_smollm2

    model = transformers_smollm2()
    weights = dict(model.named_parameters())
    paths = {
        "a": adapters.write(tmp_path / "a", weights, (0, 1), size=1.0),
        "b": adapters.write(tmp_path / "b", weights, (0, 7, 29), ("q_proj", "k_proj"), seed=4, size=3.0),
    }  # fmt: skip
    given = {name: str(path) for name, path in paths.items()}
    with lmc.Engine("smollm2", adapters=given, device="cpu", dtype="float32", max_tokens=512) as engine:
        handles = {name: engine.submit(None, [Text(("The capital of France is",)), ask(name, 10)]) for name in ("", "a", "b")}
        ids = {name: engine.prompt_ids(handle) for name, handle in handles.items()}
        begun = handles[""].results[0].output().usage.prompt_tokens
    assert len({tuple(found) for found in ids.values()}) == 3
    for name, found in ids.items():
        with torch.inference_mode():
            logits = (adapters.merged(model, paths[name]) if name else model)(torch.tensor([found[:-1]])).logits[0, begun - 1 :]
        chosen = logits.gather(1, torch.tensor(found[begun:])[:, None])[:, 0]
        assert float((logits.max(1).values - chosen).max()) < 0.02


@pytest.mark.parametrize("seam", ["token", "text"])
@pytest.mark.parametrize(("names", "rides"), [(("all", "all"), True), (("all", ""), False), (("", "all"), False)])
def test_a_select_is_scored_beside_an_answer_of_its_own_adapter_only(llama, names, rides, seam):
    """The KV before it is that of the answer's adapter."""
    scores = []
    for drafts in (8, "off"):
        with engine_of(llama, seam=seam, drafts=drafts) as engine:
            for _ in range(2):
                asked = replace(ask(names[0]), loc=Loc("a program", 1)), Text((" So ",)), Select(("the", "a brown"), adapter=names[1])
                answer = engine.submit(None, [Text((PROMPTS[0],)), *asked]).results[1].output()
            scores.append(answer.meta["normalized_prompt_logprobs"])
            assert engine.stats()["riders_used"] == (rides and drafts == 8)
            engine.check()
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


# -- the language -------------------------------------------------------------------------------------------------------


def test_programs_name_adapters(llama):
    @lmc.function
    def mixed(s, q):
        s += q + lmc.gen("a", max_tokens=6, adapter="all") + " then " + lmc.gen("b", max_tokens=6)
        s += " or " + lmc.select("c", choices=["first", "brown"], adapter="rs")
        for fork in s.fork(2):
            fork += lmc.gen("d", max_tokens=5, adapter="some")
            s += fork["d"]

    with engine_of(llama) as engine:
        one = mixed.run(PROMPTS[0], backend=engine, temperature=0)
        compiled = lmc.compile(mixed)(PROMPTS[0], backend=engine, temperature=0)
        assert one.text() == compiled.text()
        every = mixed.run(PROMPTS[0], backend=engine, temperature=0, adapter="some")
        assert every["b"] != one["b"] and every["a"] == one["a"]
        batch = lmc.compile(mixed).batch([{"q": p} for p in PROMPTS], backend=engine, temperature=0)
        assert [s.text() for s in batch] == [mixed.run(p, backend=engine, temperature=0).text() for p in PROMPTS]
        engine.check()
        with pytest.raises(ParameterError, match=r"adapter='sql': Engine\(model\) has no adapter of that name; there are all, some, rs") as caught:
            mixed.run("x", backend=engine, adapter="sql").text()
        assert caught.value.loc is not None
    with (
        lmc.Engine(llama.path, device="cpu", max_tokens=256) as engine,
        pytest.raises(UnsupportedOpError, match=r"gen with adapter='all'.*lmc.Engine\(adapters="),
    ):
        mixed.run("x", backend=engine).text()


@pytest.mark.parametrize("spread", [{"dp": 2}, {"tp": 2}], ids=["replicas", "ranks"])
def test_replicas_and_ranks_have_them_all(llama, spread):
    with engine_of(llama) as engine:
        expected = [engine.submit(None, [Text((p,)), ask(n)]).results[0].output().text for p in PROMPTS for n in NAMES]
    several: Any = engine_of(llama, **spread)
    try:
        assert several.capabilities.adapters == tuple(llama.adapters)
        handles = [several.submit(None, [Text((p,)), ask(n)]) for p in PROMPTS for n in NAMES]
        assert [h.results[0].output().text for h in handles] == expected
        with pytest.raises(ParameterError, match="no adapter of that name"):
            several.submit(None, [Text(("x",)), ask("sql")])
    finally:
        several.close()


# -- what cannot be ------------------------------------------------------------------------------------------------------


def changed(llama, tmp_path, config: dict[str, Any] | None = None, state=None):
    """A copy of an adapter with changes."""
    path = adapters.write(tmp_path / "adapter", llama.weights, (0, 1), ("q_proj", "down_proj"))
    if config is not None:
        file = path / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    if state is not None:
        from safetensors.torch import load_file, save_file

        file = path / "adapter_model.safetensors"
        tensors = dict(load_file(file))
        state(tensors)
        save_file(tensors, file)
    return path


CONFIGS = {
    "another method": ({"peft_type": "IA3"}, r"peft_type is 'IA3'; supported: 'LORA'"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\], which is not supported; merge"),
    "biases": ({"bias": "all"}, r"bias is 'all'; supported: 'none'"),
    "biases of B": ({"lora_bias": True}, r"lora_bias is True, which is not supported"),
    "directions": ({"use_dora": True}, r"use_dora is True"),
    "other ranks": ({"rank_pattern": {"q_proj": 8}}, r"rank_pattern is"),
    "other weights": ({"init_lora_weights": "pissa"}, r"init_lora_weights is 'pissa', which changes the model's own weights"),
    "a field of tomorrow": ({"use_something": 3}, r"use_something is 3, which is not supported"),
    "no rank": ({"r": 0}, r"r is 0; expected a whole number from 1 to 4096"),
    "a huge rank": ({"r": 10**9}, r"r is 1000000000; expected"),
    "a rank of text": ({"r": "4"}, r"r is '4'; expected"),
    "a scale that is none": ({"lora_alpha": float("nan")}, r"lora_alpha is nan; expected a number"),
    "a text where true or false is": ({"use_rslora": "false"}, r"use_rslora is 'false'; expected true or false"),
    "a scale beyond reason": ({"lora_alpha": 1e300}, r"lora_alpha is 1e\+300"),
    "the head": ({"target_modules": ["q_proj", "lm_head"]}, r"target_modules has 'lm_head'; supported: down_proj, gate_proj"),
    "targets that are no text": ({"target_modules": [3]}, r"target_modules has 3"),
    "another rank": ({"r": 5}, r"'base_model.model.model.layers.0.*lora_[AB].weight' is \[.*\], and model and adapter_config.json say"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_cannot_be_is_refused(llama, tmp_path, name):
    config, said = CONFIGS[name]
    path = changed(llama, tmp_path, config)
    with pytest.raises(ModelLoadError, match=said):
        lmc.Engine(llama.path, adapters={"x": str(path)}, device="cpu", max_tokens=64)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
STATES = {
    "of another matrix": (lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t[FIRST].clone()}), r"'base_model.model.lm_head.lora_A.weight' "
                                                                                                            r"changes what no adapter"),
    "of a layer too many": (lambda t: t.update({FIRST.replace("layers.0", "layers.77"): t.pop(FIRST)}), r"is of layer 77, and the model has 3"),
    "without its other half": (lambda t: t.pop(FIRST), r"lora_A of self_attn.q_proj in layer 0 is missing"),
    "of another shape": (lambda t: t.update({FIRST: t[FIRST][:, :-1].contiguous()}), r"is \[4, 47\], and model and adapter_config.json say \[4, 48\]"),
    "not a number": (lambda t: t[FIRST].fill_(float("nan")), r"no finite numbers"),
    "of whole numbers": (lambda t: t.update({FIRST: t[FIRST].to(torch.int8)}), r"no finite numbers"),
    "of none": (lambda t: t.clear(), r"holds no tensors of an adapter"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_tensors_that_cannot_be_are_refused(llama, tmp_path, name):
    change, said = STATES[name]
    path = changed(llama, tmp_path, state=change)
    with pytest.raises(ModelLoadError, match=said) as caught:
        lmc.Engine(llama.path, adapters={"x": str(path)}, device="cpu", max_tokens=64)
    assert str(path) in str(caught.value)


def test_files_that_are_not_there_or_damaged_are_refused(llama, tmp_path):
    def refused(said: str) -> None:
        with pytest.raises(ModelLoadError, match=said):
            lmc.Engine(llama.path, adapters={"x": str(tmp_path / "adapter")}, device="cpu", max_tokens=64)

    refused("no such directory; an adapter is a directory")
    (tmp_path / "adapter").mkdir()
    refused("has no adapter_config.json")
    path = changed(llama, tmp_path)
    weights = (path / "adapter_model.safetensors").read_bytes()
    (path / "adapter_model.safetensors").write_bytes(weights[:100])
    refused("damaged safetensors")
    (path / "adapter_model.safetensors").write_bytes(b"\xff" * 4000)
    refused("damaged safetensors")
    (path / "adapter_model.safetensors").unlink()
    (path / "adapter_model.bin").write_bytes(b"\x80\x04.")
    refused("no adapter_model.safetensors; adapter_model.bin is a pickle")
    (path / "adapter_config.json").write_text("[" * 100_000)
    refused("not valid JSON")
    (path / "adapter_config.json").write_text("[]")
    refused("holds no JSON object")


@pytest.mark.parametrize("given", [["x"], {"x": 3}, {"": "path"}, {"a\nb": "path"}, {3: "path"}])
def test_adapters_are_a_mapping_from_names_to_directories(given):
    with pytest.raises(ParameterError, match="adapters"):
        lmc.Engine("nowhere", adapters=given)


def test_experts_are_not_changed(tmp_path):
    base = make_base("mixtral", tmp_path)
    weights = {f"model.layers.0.mlp.{n}.weight": torch.empty(s) for n, s in (("gate_proj", (32, 48)), ("up_proj", (32, 48)), ("down_proj", (48, 32)))}
    path = adapters.write(tmp_path / "x", weights, (0,), MLP)
    with pytest.raises(ModelLoadError, match="changes an MLP, and the model's are mixtures of experts"):
        lmc.Engine(base.path, adapters={"x": str(path)}, device="cpu", max_tokens=64)
