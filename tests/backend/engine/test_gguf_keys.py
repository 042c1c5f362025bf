"""Keys of GGUF metadata: each is honoured, or refused with the field and the remedy; none loads that says what lmc does not compute."""

from __future__ import annotations

import math
import random
import re

import pytest

from lmc.errors import ModelLoadError

pytest.importorskip("torch")

from lmc.backend.engine import gguf_tokenizer
from lmc.backend.engine.models import config as configs
from lmc.backend.engine.models import gguf_keys
from lmc.backend.engine.models.loader import load
from tests.fuzzing import bases

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LMC_CACHE_DIR", str(tmp_path / "cache"))


def model(kind: str = "gpt2") -> bases.Gguf:
    for seed in range(1000):
        found = bases.gguf(random.Random(seed))
        if found.metadata["general.architecture"] == "llama" and found.metadata["tokenizer.ggml.model"] == kind:
            return found
    raise AssertionError


def refused(tmp_path, why: str, **said: object) -> None:
    changed = model()
    changed.metadata |= said
    with pytest.raises(ModelLoadError, match=rf"model\.gguf: {why}"):
        load(str(changed.write(tmp_path)))


RIGHT = {
    "vocab_size": bases.WORDS, "rope.dimension_count": bases.HEAD, "attention.value_length": bases.HEAD, "attention.scale": 1 / math.sqrt(bases.HEAD),
    "attention.causal": True, "use_parallel_residual": False,
}  # fmt: skip
WRONG = {
    "vocab_size": 96, "rope.dimension_count": bases.HEAD // 2, "attention.value_length": 16, "attention.scale": 1.0, "attention.causal": False,
    "use_parallel_residual": True,
    "logit_scale": 0.25, "rope.scale_linear": 4.0, "expert_count": 8, "attn_logit_softcapping": 50.0, "rope.scaling.yarn_ext_factor": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", gguf_keys.MUST_BE)
def test_what_the_model_must_be_is_taken_if_it_is_and_refused_if_not(tmp_path, key):
    wanted = RIGHT.get(key, 1.0 if "scale" in key or "factor" in key else 0)
    (tmp_path / "right").mkdir()
    right = model()
    right.metadata[f"llama.{key}"] = wanted
    load(str(right.write(tmp_path / "right")))
    refused(
        tmp_path, rf"llama\.{key} is .*; expected .*, .*; convert it again, take its safetensors, or correct the field", **{f"llama.{key}": WRONG.get(key, 3)}
    )


UNKNOWN = ("attention.sinks", "attention.sliding_window_pattern", "rope.dimension_sections", "rope.freq_base_swa", "ssm.state_size", "x")
REFUSED = [
    ("llama.rope.dimension_count", 4, rf"expected {bases.HEAD}, .*rotating a part"),  # it ran as one that rotates all of it
    *((f"llama.{key}", 5, "which lmc does not know, and which may change what the model computes") for key in UNKNOWN),
    *((f"tokenizer.ggml.{key}", [5], r"which lmc does not know, .*tokenizer\.json") for key in ("normalizer.lowercase", "suppress_tokens", "x")),
    *((f"tokenizer.ggml.{key}", True, "expected ") for key in ("add_eos_token", "add_sep_token", "remove_extra_whitespaces")),
    ("tokenizer.ggml.precompiled_charsmap", [1], "expected "), ("tokenizer.ggml.token_type_count", 2, "expected "),
    ("tokenizer.ggml.add_bos_token", "no", "expected true or false"), ("tokenizer.ggml.add_space_prefix", "no", "expected true or false"),
    ("split.count", 3, r"the file is one of 3 parts of a model; .*llama-gguf-split --merge"),
    ("split.no", 1, "expected 0"), ("split.tensors.count", 3, r"expected \d+, the tensors that the file has"),
    ("general.type", "adapter", "the file is no model"), ("general.quantization_version", 1, "expected 2"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "why"), REFUSED)
def test_what_a_file_says_that_lmc_does_not_do_is_refused(tmp_path, key, value, why):
    refused(tmp_path, rf"{re.escape(key)} is {re.escape(repr(value))}.{{1,2}}{why}", **{key: value})


def test_what_says_where_a_file_comes_from_is_of_no_matter(tmp_path):
    made = model()
    made.metadata |= {
        "general.author": "x", "general.file_type": 0, "general.type": "model", "general.quantization_version": 2, "general.sampling.temp": 0.6,
        "quantize.imatrix.file": "x",
        "split.no": 0, "split.count": 1, "split.tensors.count": len(made.tensors), "llama.tensor_data_layout": "Meta AI original pth",
        "llama.rope.scaling.finetuned": False,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.add_eos_token": False, "tokenizer.chat_template.tool_use": "x",
    }  # fmt: skip
    load(str(made.write(tmp_path)))


class Looked(dict):
    """Metadata that remember what is looked up in them."""

    def __init__(self, given: dict[str, object]) -> None:
        super().__init__(given)
        self.keys_read = set[str]()

    def get(self, key, default=None):
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.keys_read.add(key)
        return super().__getitem__(key)


def test_the_keys_that_are_said_to_be_read_are(monkeypatch):
    """So that none is let through which nobody looks at."""
    monkeypatch.setattr(gguf_tokenizer, "check_tokenizer", lambda *_: None)
    seen = set[str]()
    for kind in ("gpt2", "llama"):
        for scaling in ("none", "linear", "yarn"):
            meta = Looked(model(kind).metadata | {"llama.rope.scaling.type": scaling, "llama.rope.scaling.factor": 2.0, "llama.attention.sliding_window": 8})
            configs.from_gguf(meta, "x", tied=True, vocab_size=bases.WORDS, biased=False)
            gguf_tokenizer.from_gguf(meta, "x")
            seen |= meta.keys_read
    assert {key.removeprefix("llama.") for key in seen if key.startswith("llama.")} == gguf_keys.READ
    assert {key.removeprefix("tokenizer.ggml.") for key in seen if key.startswith("tokenizer.ggml.")} == gguf_keys.TOKENIZER_READ


def test_the_tables_have_the_formats_own_names():
    constants = pytest.importorskip("gguf.constants")

    def names(of: type) -> set[str]:
        return {n for value in vars(of).values() for n in (names(value) if isinstance(value, type) else {value} if isinstance(value, str) else set())}

    known = names(constants.Keys)
    ours = gguf_keys.READ | gguf_keys.NO_MATTER | gguf_keys.MUST_BE.keys()
    assert {key for key in ours if f"{{arch}}.{key}" not in known} == {"rope.scale_linear"}, "llama.cpp's former name"
    theirs = gguf_keys.TOKENIZER_IDS | gguf_keys.TOKENIZER_MUST_BE.keys() | gguf_keys.TOKENIZER_READ
    assert {key for key in theirs if f"tokenizer.ggml.{key}" not in known} <= {"separator_token_id", "cls_token_id", "eos_token_ids"}, "other converters' names"


@pytest.mark.parametrize("key", ("eom_token_id", "eos_token_ids"))
def test_every_end_that_a_file_names_ends_an_answer(tmp_path, key):
    made = model()
    made.metadata[f"tokenizer.ggml.{key}"] = 7 if key == "eom_token_id" else [1, 7]
    assert load(str(made.write(tmp_path))).config.eos_token_ids == (1, 7)


def test_the_ramp_of_yarn_is_the_files(tmp_path):
    made = model()
    made.metadata |= {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.yarn_beta_fast": 16.0,
        "llama.rope.scaling.yarn_beta_slow": 2.0,
    }
    made.tensors.pop("rope_freqs.weight", None)
    scaling = load(str(made.write(tmp_path))).config.rope_scaling
    assert scaling is not None and (scaling.beta_fast, scaling.beta_slow) == (16.0, 2.0)
