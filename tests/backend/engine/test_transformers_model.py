"""Decoders that only transformers computes give its greedy tokens, through chunks, shared prefixes and mixed batches."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.backend.engine.models.transformers_model import TransformersModel  # noqa: E402
from lmc.backend.local_model import Engine  # noqa: E402
from lmc.errors import ModelLoadError  # noqa: E402
from lmc.segments import ChoicesMethod, Gen, SamplingParams, Select, Text  # noqa: E402
from tests.backend.engine.model_fixtures import all_logits  # noqa: E402

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
WINDOWED = {"sliding_window": 10}
FAMILIES = {
    "GPT2": {},
    "GPTNeoX": {"rotary_pct": 0.5},
    "OPT": {"ffn_dim": 80, "word_embed_proj_dim": 64},
    "Phi": {"partial_rotary_factor": 0.5},
    "Phi3": {},
    "Gemma": {"head_dim": 24},
    "Gemma2": {"head_dim": 24, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, **WINDOWED},
    "Gemma3": {"head_dim": 16, **WINDOWED},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 32, "use_sliding_window": True, **WINDOWED},
    "Olmo2": {},
    "StableLm": {},
    "Cohere": {},
    "Cohere2": WINDOWED,
    "Granite": {"embedding_multiplier": 2.0, "attention_multiplier": 0.3, "logits_scaling": 3.0},
    "Starcoder2": WINDOWED,
    "Nemotron": {},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, **WINDOWED},
    "DeepseekV3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "Llama": {"mlp_bias": True},  # a family of ours, with what ours does not compute
}
NAMES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"), "GPT2": ("GPT2Config", "GPT2LMHeadModel")}


def tiny(family: str, **more):
    """A random model, biases and norms away from their neutral start."""
    config, model = NAMES.get(family, (family + "Config", family + "ForCausalLM"))
    torch.manual_seed(11)
    options = {**SHAPE, **FAMILIES.get(family, {}), **more}
    if family == "DeepseekV3":
        options["num_key_value_heads"] = options["num_attention_heads"]
    made = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    for name, parameter in made.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name and "bias" not in name else 0.0, std=0.2)
    return made


def save(model, folder, **options):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(map(chr, range(33, 33 + 96)))}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model.save_pretrained(folder, **options)
    raw.save(str(folder / "tokenizer.json"))
    return str(folder)


def their_answer(model, ids: list[int], n: int) -> list[int]:
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        whole = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), do_sample=False, max_new_tokens=n)
    return whole[0, len(ids) :].tolist()


SHARED = "TheQuickBrownFoxJumpsOverTheLazyDog"
PROMPTS = [SHARED + "AndSleeps", SHARED + "AndRuns", SHARED, "z", "SomethingElse" * 4]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family, tmp_path):
    theirs = tiny(family)
    where = save(theirs, tmp_path)
    with Engine(where, dtype="float32", max_tokens=500, chunk=16) as engine:
        assert isinstance(engine._core._runner._model, TransformersModel)
        params = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)
        handles = [engine.submit(None, [Text((prompt,)), Gen(params)]) for prompt in PROMPTS]
        found = [engine.prompt_ids(handle) for handle in handles]
        assert engine.counters().cached_tokens >= 2 * (len(SHARED) - 1)
        engine.check()
    for prompt, ids in zip(PROMPTS, found, strict=True):
        asked = [ord(c) - 33 for c in prompt]
        assert ids == asked + their_answer(theirs, asked, 6)


def test_windows_are_those_of_the_masks(tmp_path):
    loaded = load(save(tiny("Qwen2Moe"), tmp_path), dtype="float32")
    assert set(loaded.model.windows.values()) == {None, 10}


def test_half_precision_and_dummy_weights(tmp_path):
    where = save(tiny("Gemma2"), tmp_path)
    ids = list(range(20))
    exact, half = (all_logits(load(where, dtype=dtype), ids).float() for dtype in ("float32", "bfloat16"))
    assert float((exact - half).abs().max()) < 0.3 * float(exact.std())
    (tmp_path / "model.safetensors").unlink()
    assert all_logits(load(where, load_format="dummy"), ids).isfinite().all()


def test_sharded_weights(tmp_path):
    theirs = tiny("Granite")
    where = save(theirs, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.inference_mode():
        expected = theirs(torch.tensor([[5, 6, 7]])).logits[0]
    torch.testing.assert_close(all_logits(load(where, dtype="float32"), [5, 6, 7]), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("Mamba", "it has no attention"),
        ("Falcon", "does not go through transformers' attention interface"),
        ("T5", "encoder-decoder"),
        ("Bloom", "does not go through"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(family, why, tmp_path):
    sizes = {"T5": (), "Mamba": ("vocab_size", "hidden_size")}.get(family, SHAPE)
    raw = getattr(transformers, family + "Config")(**{k: SHAPE[k] for k in sizes}).to_dict()
    save(tiny("GPT2"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(raw, default=str))
    with pytest.raises(ModelLoadError, match=why):
        load(str(tmp_path), dtype="float32", load_format="dummy")


def test_missing_weights_are_named(tmp_path):
    where = save(tiny("GPT2"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load(where)


@pytest.mark.parametrize("family", ["GPT2", "Qwen3"])
def test_weights_without_room_are_refused_before_they_are_read(family, tmp_path, monkeypatch):
    where = save(tiny(family), tmp_path)
    monkeypatch.setattr("lmc.backend.engine.memory.free_memory", lambda device: 1000)
    with pytest.raises(ModelLoadError, match=r'as float32, and cpu has 0\.0 GiB free; dtype="bfloat16" needs half'):
        load(where, dtype="float32")


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.5, 1.7, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 12.0, 20.0],
    "original_max_position_embeddings": 48,
}
NEAR = {"original_max_position_embeddings": 48, "rope_parameters": LONGROPE}
NARROW = {k: LONGROPE[k][:4] for k in ("short_factor", "long_factor")} | {"partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "rope",
    [{}, {"attention_factor": 1.3}, {"original_max_position_embeddings": 10}, NARROW],
    ids=["plain", "attention factor", "far from the start", "a part of each head"],
)
def test_longrope_turns_each_sequence_by_its_own_length(rope, tmp_path):
    """Shorter than the trained context, longer, and growing longer in the midst of an answer, all in one batch."""
    rope = LONGROPE | rope
    theirs = tiny("Phi3", rope_parameters=rope, original_max_position_embeddings=rope["original_max_position_embeddings"])
    lengths = (3, 30, 47, 48, 49, 70, 41)
    prompts = ["".join(chr(33 + (7 * i + 3 * n) % 90) for i in range(n)) for n in lengths]
    with Engine(save(theirs, tmp_path), dtype="float32", max_tokens=900, chunk=32) as engine:
        params = SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True)
        handles = [engine.submit(None, [Text((prompt,)), Gen(params)]) for prompt in prompts]
        found = [engine.prompt_ids(handle) for handle in handles]
        later = engine.submit(handles[1], [Gen(params), Text(("again",)), Gen(params)])  # what went before was shorter
        found.append(engine.prompt_ids(later))
        engine.check()
        assert engine.stats()["recomputed_tokens"] > 0 or rope["original_max_position_embeddings"] == 10
    for prompt, ids in zip(prompts, found[:-1], strict=True):
        asked = [ord(c) - 33 for c in prompt]
        assert ids == asked + their_answer(theirs, asked, 12)
    first = found[1] + their_answer(theirs, found[1], 12)
    again = [*first, *(ord(c) - 33 for c in "again")]
    assert found[-1] == again + their_answer(theirs, again, 12)


def test_longrope_scores_choices_as_texts_of_their_length(tmp_path):
    theirs = tiny("Phi3", **NEAR)
    prompt, choices = "a" * 40, ("bc" * 10, "d")
    with Engine(save(theirs, tmp_path), dtype="float32", max_tokens=900) as engine:
        method = ChoicesMethod.UNCONDITIONAL_LIKELIHOOD_NORMALIZED
        done = engine.submit(None, [Text((prompt,)), Select(choices, method)]).results[0].output()
        engine.check()

    def score(text: str, start: int, ids: list[int]) -> float:
        with torch.inference_mode():
            logits = theirs(torch.tensor([ids])).logits[0].log_softmax(-1)
        return sum(float(logits[i - 1, ids[i]]) for i in range(max(1, start), len(ids)))

    expected = [score(c, 40, [ord(x) - 33 for x in prompt + c]) / len(c) for c in choices[:1]]
    assert done.meta["normalized_prompt_logprobs"][0] == pytest.approx(expected[0], abs=1e-4)
    alone = score(choices[0], 0, [ord(x) - 33 for x in choices[0]]) / len(choices[0])
    gain = done.meta["normalized_unconditional_prompt_logprobs"][0]
    assert gain == pytest.approx(expected[0] - alone, abs=1e-3)


def test_a_window_in_some_layers_only_is_left_to_transformers(tmp_path):
    theirs = tiny("Qwen3", head_dim=16, use_sliding_window=True, sliding_window=8, max_window_layers=2)
    loaded = load(save(theirs, tmp_path), dtype="float32")
    assert [loaded.model.windows[i] for i in range(4)] == [None, None, 8, 8]
    ids = list(range(40))
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(all_logits(loaded, ids), expected, atol=1e-4, rtol=1e-3)
