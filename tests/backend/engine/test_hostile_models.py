"""Model files that claim what cannot be: refused before anything is made of it, with the field, the file and the remedy."""

from __future__ import annotations

import json
import math
import os
import random
import re
import struct

import numpy as np
import pytest

import lmc
from lmc.backend.api import tokens
from lmc.backend.engine.models import frames, gguf_keys
from lmc.errors import BackendError, ModelLoadError
from tests.fuzzing import bases
from tests.fuzzing.__main__ import search

pytest.importorskip("torch")

from lmc.backend.engine.models.loader import load

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LMC_CACHE_DIR", str(tmp_path / "cache"))


def a_gguf(arch="llama"):
    """A file of the family that loads."""
    for seed in range(1000):
        found = bases.gguf(random.Random(seed))
        if found.metadata["general.architecture"] == arch and found.metadata["tokenizer.ggml.model"] == "gpt2" and "rope_freqs.weight" in found.tensors:
            return found
    raise AssertionError


def a_folder(kind="qwen2"):
    for seed in range(1000):
        found = bases.folder(random.Random(seed))
        if found.files["config.json"]["model_type"] == kind and found.files["config.json"]["rope_parameters"]["rope_type"] == "yarn":
            return found
    raise AssertionError


def test_the_files_load_as_they_are(tmp_path):
    for name, model in (("a", a_gguf()), ("b", a_folder())):
        (tmp_path / name).mkdir()
        with lmc.Engine(str(model.write(tmp_path / name)), max_tokens=64, device="cpu") as engine:
            state = lmc.function(says).run(backend=engine)
            assert state.get_meta_info("x")["completion_tokens"] > 0


def says(s):
    s += "ab" + lmc.gen("x", max_tokens=3, temperature=0, ignore_eos=True)


NUMBERS = {
    "block_count": (2**31, r"llama\.block_count is 2147483648; expected a whole number from 1 to 10000"),
    "block_count ": (2, None),
    "block_count  ": (9999, r"llama\.block_count is 9999, and the file has tensors of 2 layers"),
    "block_count   ": (1, r"llama\.block_count is 1, and the file has tensors of 2 layers"),
    "context_length": (2**32 - 1, r"llama\.context_length is 4294967295; expected a whole number from 1 to 16777216"),
    "attention.head_count": (0, r"llama\.attention\.head_count is 0; expected a whole number"),
    "attention.head_count ": ([4, 4], r"llama\.attention\.head_count is \[4, 4\]; expected a whole number"),
    "attention.head_count  ": (8, r"tensor 'blk\.0\.attn_q\.weight' is \[32, 32\], and the metadata say \[64, 32\]"),
    "attention.head_count_kv": (0, r"llama\.attention\.head_count_kv is 0"),
    "attention.head_count_kv ": (3, r"model\.gguf: .*'blk\.0\.attn_k\.weight'|4 heads are not a multiple of 3"),
    "attention.key_length": (7, r"model config: head_dim is 7, expected an even number"),
    "attention.layer_norm_rms_epsilon": (math.nan, r"rms_epsilon is nan; expected a number from 0 to 1"),
    "attention.layer_norm_rms_epsilon ": ("x", r"rms_epsilon is 'x'; expected a number from 0 to 1"),
    "rope.freq_base": (0.0, r"llama\.rope\.freq_base is 0\.0; expected a number from 2"),
    "rope.freq_base ": (math.inf, r"llama\.rope\.freq_base is inf"),
    "rope.scaling.factor": (0.0, r"llama\.rope\.scaling\.factor is 0\.0"),
    "attention.sliding_window": (-5, r"llama\.attention\.sliding_window is -5"),
    "embedding_length": (2**40, r"llama\.embedding_length is 1099511627776"),
    "embedding_length ": (64, r"the metadata say \[97, 64\]"),
    "feed_forward_length": (2.5, r"llama\.feed_forward_length is 2\.5; expected a whole number"),
}


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_of_a_gguf_that_cannot_be_names_the_field(tmp_path, key):
    value, why = NUMBERS[key]
    model = a_gguf()
    model.metadata |= {f"llama.{key.strip()}": value, **({"llama.rope.scaling.type": "linear"} if "scaling" in key else {})}
    path = str(model.write(tmp_path))
    if why is None:
        load(path)
        return
    with pytest.raises(ModelLoadError, match=rf"model\.gguf: .*(?:{why}).*(?:download it again|do both belong to the same model)"):
        load(path)


@pytest.mark.parametrize(
    ("key", "values", "why"),
    (
        ("general.alignment", (0, -1, 2**63, "x", 0.5), "expected a whole number from 1"),
        *((f"tokenizer.ggml.{key}", (97, 2**31, -1, "x"), "expected a whole number from 0 to 96") for key in ("eos_token_id", "bos_token_id")),
        *((f"tokenizer.ggml.{key}", (97,), "expected a whole number from 0 to 96") for key in sorted(gguf_keys.TOKENIZER_IDS)),
    ),
)
def test_a_number_of_the_file_or_its_vocabulary_that_cannot_be(tmp_path, key, values, why):
    for value in values:
        model = a_gguf()
        model.metadata[key] = value
        with pytest.raises(ModelLoadError, match=rf"{re.escape(key)} is .*; {why}"):
            load(str(model.write(tmp_path)))


SHAPES = {
    "bias": ("qwen2", "blk.0.attn_q.bias", (16,), r"\[16\], and the metadata say \[32\]"),
    "rope": ("llama", "rope_freqs.weight", (5,), r"\[5\], and the metadata say \[4\]"),
    "queries": ("llama", "blk.1.attn_q.weight", (30, 32), r"\[30, 32\], and the metadata say \[32, 32\]"),
    "norm": ("qwen3", "blk.0.attn_k_norm.weight", (4,), r"\[4\], and the metadata say \[8\]"),
    "embedding": ("llama", "token_embd.weight", (97,), r"\[97\], and the metadata say|has no rows"),
}


@pytest.mark.parametrize("kind", SHAPES)
def test_shapes_that_are_not_the_metadatas_name_the_tensor(tmp_path, kind):
    arch, name, shape, why = SHAPES[kind]
    model = a_gguf(arch)
    model.tensors[name] = bases.Tensor(shape, 0, bases.floats(shape, random.Random(0)))
    with pytest.raises(ModelLoadError, match=rf"model\.gguf: the tensor '{name}' is {why}"):
        load(str(model.write(tmp_path)))


def test_factors_of_positions_that_are_no_numbers(tmp_path):
    model = a_gguf()
    model.tensors["rope_freqs.weight"].data = b"\0\0\xc0\x7f" * 4
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight is nan"):
        load(str(model.write(tmp_path)))


@pytest.mark.parametrize("words", ("gpt2", "llama"))
@pytest.mark.parametrize(
    ("key", "value"), (("tokens", 5), ("tokens", [1, 2]), ("tokens", ["a" * 100_000] * 3), ("token_type", [1]), ("scores", "x"), ("merges", [""]))
)
def test_a_vocabulary_that_is_none(tmp_path, words, key, value):
    model = next(m for seed in range(99) if (m := bases.gguf(random.Random(seed))).metadata["tokenizer.ggml.model"] == words)
    if f"tokenizer.ggml.{key}" not in model.metadata:
        pytest.skip("not of this kind")
    model.metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelLoadError, match=r"model\.gguf: "):
        load(str(model.write(tmp_path)))


CONFIGS = {
    "num_hidden_layers": (2**31, r"num_hidden_layers is 2147483648; expected a whole number from 1 to 10000"),
    "num_hidden_layers ": (9000, r"num_hidden_layers is 9000, and the weights have 26 tensors"),
    "max_position_embeddings": (2**32 - 1, r"max_position_embeddings is 4294967295"),
    "num_attention_heads": (0, r"num_attention_heads is 0"),
    "num_attention_heads  ": (None, r"'num_attention_heads' is missing"),
    "num_attention_heads ": ("4", r"num_attention_heads is '4'; expected a whole number"),
    "num_key_value_heads": (True, r"num_key_value_heads is True"),
    "rms_norm_eps": (math.nan, r"rms_norm_eps is nan"),
    "eos_token_id": (97, r"eos_token_id is 97; expected ids in the model's vocabulary of 97"),
    "eos_token_id ": (["x"], r"eos_token_id is \['x'\]"),
    "bos_token_id": ([1], r"bos_token_id is \[1\]"),
    "rope_parameters": ({"rope_theta": 0.0}, r"rope_parameters: rope_theta is 0\.0; expected a number from 2"),
    "rope_parameters ": ({"rope_type": "yarn", "factor": 0}, r"rope_parameters: factor is 0;"),
    "rope_parameters  ": ([1], r"rope_parameters is \[1\]; expected an object"),
    "rope_parameters   ": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        r"rope_parameters: low_freq_factor is 4\.0; expected less than",
    ),
    "vocab_size": (-1, r"vocab_size is -1"),
}


@pytest.mark.parametrize("key", CONFIGS)
def test_a_value_of_a_config_that_cannot_be_names_the_field(tmp_path, key):
    value, why = CONFIGS[key]
    model = a_folder()
    del model.files["generation_config.json"]
    model.files["config.json"][key.strip()] = value
    with pytest.raises(ModelLoadError, match=rf"config\.json: {why}"):
        load(str(model.write(tmp_path)))


FILES = {
    "config.json": (b"[" * 100_000, r"config\.json: not valid JSON"),
    "config.json ": (b"[]", r"config\.json: holds no JSON object"),
    "chat_template.jinja": (b"\xff\xfe", r"chat_template\.jinja: cannot be read"),
    "tokenizer_config.json": (b'{"chat_template": 5}', r"chat_template is 5; expected text"),
    "model.safetensors.index.json": (b'{"weight_map": {"x": "../../x.safetensors"}}', r"is not a file of this directory"),
    "model.safetensors.index.json ": (b"{}", r"index\.json: 'weight_map' is missing"),
    "model.safetensors.index.json  ": (b'{"weight_map": {"x": "%s"}}' % (b"x" * 256), r"is not a file of this directory"),
    "model.safetensors.index.json   ": (b'{"weight_map": {"x": "\\ud800"}}', r"is not a file of this directory"),
    "model.safetensors.index.json    ": (b'{"weight_map": {"x": "\\u0000"}}', r"is not a file of this directory"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_none(tmp_path, name):
    model = a_folder()
    model.texts[name.strip()], why = FILES[name]
    with pytest.raises(ModelLoadError, match=why):
        load(str(model.write(tmp_path)))


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"chat_template": 5}'])
def test_the_tokenizer_of_a_server_is_read_like_a_models(tmp_path, text):
    model = a_folder()
    model.texts["tokenizer_config.json"] = text.encode()
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: "):
        tokens.read(str(model.write(tmp_path)))


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    """A named pipe in the place of the weights was waited for."""
    path = a_folder().write(tmp_path)
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: not a regular file"):
        load(str(path))


@pytest.mark.parametrize("name", ["config.json", "chat_template.jinja", "tokenizer.json"])
def test_a_text_that_is_far_too_large_is_not_read(tmp_path, name):
    path = a_folder().write(tmp_path)
    with (path / name).open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ModelLoadError, match=rf"{name}: has 1,099,511,627,776 bytes, and at most 67,108,864"):
        load(str(path))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"", "it starts with"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), r"\d+ bytes follow the last tensor"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + struct.pack("<IIQ", 9, 0, 1 << 39), "the longest header ends at byte 268435456"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 0) + struct.pack("<IIQ", 9, 8, 1 << 36), "an array of 68719476736 items does not fit"),
    ],
)
def test_a_file_of_a_terabyte_is_refused_by_its_header(tmp_path, monkeypatch, header, why):
    """Not read to its end for a digest, nor for what its header claims."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(1 << 40)  # sparse
    monkeypatch.setattr("hashlib.file_digest", lambda *_: pytest.fail("all of it was read"))
    with pytest.raises(ModelLoadError, match=rf"m\.gguf: byte \d+: .*{why}"):
        load(str(path))


def test_settings_of_videos_are_read_like_those_of_the_model(tmp_path):
    os.mkfifo(tmp_path / "processor_config.json")
    (tmp_path / "video_preprocessor_config.json").write_text('{"fps": 2}')
    assert frames.settings(tmp_path) == {"fps": 2}
    with (tmp_path / "video_preprocessor_config.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(ModelLoadError, match=r"video_preprocessor_config\.json: has 1,099,511,627,776 bytes"):
        frames.settings(tmp_path)


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
LETTERS = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
SPACE = {"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": False}


@pytest.mark.parametrize(
    ("part", "rule", "times"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 40}, "1,099,511,627,776"),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10**6}, "1,000,001"),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b" * 5000}, "5,001"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": ""}, "content": "b"}] * 40}, "1,099,511,627,776"),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}, "12,157,665,459,056,928,801"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 40}, "12,157,665,459,056,928,801"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [LETTERS, SPACE, LETTERS, SPACE | {"replacement": "b"}] * 20}, "1,099,511,627,776"),
        ("decoder", {"type": "Sequence", "decoders": [DOUBLE] * 20}, "1,048,576"),
    ],
)
def test_rules_of_a_tokenizer_that_make_texts_endless_are_refused(tmp_path, part, rule, times):
    """Tokenizing the first letter took all memory."""
    model = a_folder()
    model.files["tokenizer.json"][part] = rule
    with pytest.raises(ModelLoadError, match=rf"tokenizer\.json: its {part.replace('_', '-')} may make a text {times} times as long"):
        load(str(model.write(tmp_path)))


def test_parts_of_a_tokenizer_that_make_texts_endless_together_are_refused(tmp_path):
    model = a_folder()
    model.files["tokenizer.json"] |= {
        "normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 10},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 5},
    }
    with pytest.raises(ModelLoadError, match="its pre-tokenizer may make a text 248,832 times as long"):
        load(str(model.write(tmp_path)))


def test_a_vocabulary_that_is_larger_than_the_model(tmp_path):
    model = a_folder()
    model.files["tokenizer.json"]["model"]["vocab"]["zz"] = 500
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: the token 'zz' has the id 500, and the model has 97 tokens"):
        load(str(model.write(tmp_path)))


def test_a_special_token_beyond_the_model_is_none(tmp_path):
    """Fine-tunes add such a padding token; nobody asks for it."""
    model = a_folder()
    model.files["tokenizer.json"]["added_tokens"].append(
        {"id": 97, "content": "[PAD]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    )
    tokens = load(str(model.write(tmp_path))).tokenizer
    with pytest.raises(lmc.ProgramError, match=r"no special token '\[PAD\]'"):
        tokens.id_of("[PAD]")
    assert max(tokens.encode(["ab [PAD] cd"])) < 97


@pytest.mark.parametrize("kind", ("bert", "roberta", "t5"))
def test_encoders_are_refused(tmp_path, kind):
    pytest.importorskip("transformers")
    model = a_folder()
    model.files["config.json"] |= {"model_type": kind, "architectures": ["BertForMaskedLM"]}
    del model.files["config.json"]["rope_parameters"]
    with pytest.raises(ModelLoadError, match=r"config\.json: .*(encoder here|encoder-decoder).* lmc runs decoder-only models"):
        load(str(model.write(tmp_path)))


@pytest.mark.parametrize(
    "ask",
    (
        lambda: lmc.gen("x", max_tokens=3, temperature=0),
        lambda: lmc.gen("x", max_tokens=3),
        lambda: lmc.gen("x", regex="[ab]+", max_tokens=3),
        lambda: lmc.select("x", ["a", "b"]),
    ),
)
def test_weights_that_give_no_numbers_stop_a_request_with_an_error(tmp_path, ask):
    model = a_gguf()
    model.tensors["output_norm.weight"].data = b"\0\0\xc0\x7f" * bases.WIDTH
    with lmc.Engine(str(model.write(tmp_path)), max_tokens=64, device="cpu") as engine:

        @lmc.function
        def program(s):
            s += "ab" + ask()

        with pytest.raises(BackendError, match="the model gave no numbers"):
            program.run(backend=engine).text()


def test_files_that_are_wrong_in_one_place_load_or_are_refused():
    """The short form of `python -m tests.fuzzing`, which `make nightly` runs over 2,000 files."""
    found = search(0, 48)
    assert not found.failures
    assert sum(found.outcomes.values()) == 48 and found.outcomes["refused"] > 20 and found.outcomes["answers"] > 5


@pytest.mark.parametrize("change, says", [
    ({"model_type": "nonsense"}, r"config\.json: model_type 'nonsense' is not a causal language model that this version of transformers knows"),
    ({"model_type": "../gpt2"}, "model_type '../gpt2' is not a causal"),
    ({"model_type": 7}, "model_type 7 is not a causal"),
    ({"model_type": "gpt2", "n_layer": 1 << 31}, "n_layer is 2147483648; expected a whole number from 0 to 10000"),
    ({"model_type": "gpt2", "vocab_size": -1}, "vocab_size is -1"),
    ({"model_type": "gemma3", "text_config": {"hidden_size": 1 << 40}}, "hidden_size is 1099511627776"),
])  # fmt: skip
def test_what_transformers_cannot_run_is_said_without_importing_it(change, says, tmp_path, monkeypatch):
    from lmc.backend.engine.models import transformers_config

    monkeypatch.setattr(transformers_config, "read_config", lambda *_: pytest.fail("it takes seconds to import"))
    (tmp_path / "config.json").write_text(json.dumps(change))
    with pytest.raises(ModelLoadError, match=says):
        load(str(tmp_path))


@pytest.mark.parametrize("kind", (*bases.DENSE, *bases.MIXED, bases.FP8, bases.SEEING))
def test_every_kind_of_folder_that_is_made_wrong_answers_as_it_is(tmp_path, kind):
    """Else what is refused of it would be refused for another reason."""
    from tests.fuzzing.load import outcome

    for seed in range(1000):
        found = bases.folder(random.Random(seed))
        config = found.files["config.json"]
        if kind == (bases.FP8 if "quantization_config" in config else config["model_type"]):
            break
    else:
        raise AssertionError
    assert outcome(found.write(tmp_path), kind) == "answers"


def test_a_processor_that_fails_is_an_error_at_the_picture(tmp_path):
    """transformers takes any value into its configuration, and fails when a picture comes."""
    from tests.fuzzing.load import sees

    found = next(f for seed in range(1000) if "preprocessor_config.json" in (f := bases.folder(random.Random(seed))).files)
    found.files["preprocessor_config.json"]["size"] = {"shortest_edge": ["x"]}
    with (
        lmc.Engine(str(found.write(tmp_path)), max_tokens=64, device="cpu") as engine,
        pytest.raises(
            BackendError, match=r"load\.py:\d+.*image\(…\): the processor of model fails on 8 × 8 pixels: TypeError: .*preprocessor_config\.json right"
        ),
    ):
        sees.run(backend=engine).text()


def test_quantized_weights_without_a_word_in_the_configuration_are_refused(tmp_path):
    found = next(f for seed in range(1000) if "quantization_config" in (f := bases.folder(random.Random(seed))).files["config.json"])
    del found.files["config.json"]["quantization_config"]
    with pytest.raises(ModelLoadError, match=r"config\.json has no quantization_config, but 'model\.layers.*' is quantized .*download it again"):
        lmc.Engine(str(found.write(tmp_path)), max_tokens=64, device="cpu")


def a_seeing_folder():
    return next(f for seed in range(1000) if (f := bases.folder(random.Random(seed))).files["config.json"]["model_type"] == "llava")


def test_an_image_token_that_the_tokenizer_does_not_have_is_refused(tmp_path):
    found = a_seeing_folder()
    del found.files["config.json"]["image_token_index"]  # transformers' own is 32000
    with pytest.raises(ModelLoadError, match=r"config\.json has 32000 as the image token's id, which the tokenizer does not have"):
        lmc.Engine(str(found.write(tmp_path)), max_tokens=64, device="cpu")


def test_a_tower_of_more_layers_than_there_are_weights_is_refused_before_it_is_made(tmp_path):
    found = a_seeing_folder()
    found.files["config.json"]["vision_config"]["num_hidden_layers"] = 10**9
    with pytest.raises(ModelLoadError, match=r"config\.json: vision_config: num_hidden_layers is 1000000000, and the weights have \d+ tensors"):
        lmc.Engine(str(found.write(tmp_path)), max_tokens=64, device="cpu")


def test_a_processor_that_does_not_fit_the_tower_is_an_error_at_the_picture_and_not_of_the_engine(tmp_path):
    found = a_seeing_folder()
    found.files["preprocessor_config.json"]["do_center_crop"] = False

    @lmc.function
    def sees(s, width):
        s += lmc.user("a" + lmc.image(np.zeros((30, width, 3), np.uint8))) + lmc.assistant(lmc.gen("x", max_tokens=1))

    with lmc.Engine(str(found.write(tmp_path)), max_tokens=512, device="cpu") as engine:
        with pytest.raises(lmc.LmcError, match=r"its processor makes pictures of \d+ × \d+ pixels, and its tower takes \d+ × \d+"):
            sees.run(width=40, backend=engine).text()
        assert sees.run(width=30, backend=engine)["x"] is not None


def test_a_processor_that_leaves_a_pixel_of_a_picture_is_an_error_at_the_picture(tmp_path):
    from tests.fuzzing.load import sees

    found = a_seeing_folder()
    found.files["preprocessor_config.json"]["crop_size"] = 1
    with (
        lmc.Engine(str(found.write(tmp_path)), max_tokens=64, device="cpu") as engine,
        pytest.raises(lmc.ParameterError, match=r"load\.py:\d+.*image\(…\): model cannot take 8 × 8 pixels: its processor makes pictures of 1 × 1 pixels"),
    ):
        sees.run(backend=engine).text()


def test_a_seed_is_the_same_file_whatever_was_made_before(tmp_path):
    """Else what one file has wrong, all later ones have, too, and are refused for it."""
    from tests.fuzzing import mutations

    def made(seed, name):
        (tmp_path / name).mkdir()
        path, _ = mutations.write(seed, tmp_path / name)
        return {p.name: p.read_bytes() for p in (sorted(path.iterdir()) if path.is_dir() else [path])}

    seeds = range(1_000_000, 1_000_040)
    first = [made(seed, f"a{seed}") for seed in seeds]
    for seed in range(2_000_000, 2_000_300):
        made(seed, f"b{seed}")
    assert [made(seed, f"c{seed}") for seed in seeds] == first
