"""Reading GGUF: values and tensors come back, damage is named with its place, dequantization is ggml's."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from lmc.backend.engine.models import blocks, gguf
from lmc.backend.engine.models.blocks import KINDS
from lmc.errors import ModelLoadError
from tests.backend.engine import gguf_writer as writer


@pytest.fixture
def write(tmp_path):
    def put(data: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(data)
        return path

    return put


SAMPLE = {"general.architecture": "llama", "n": 7, "f": 0.5, "yes": True, "words": ["a", "é", ""], "kinds": [1, 3, -2]}
VECTOR = struct.pack("<4f", 1, 2, 3, 4)


def test_metadata_and_tensor_places_come_back(write):
    file = gguf.read(write(writer.gguf(SAMPLE, {"a": ((2, 2), writer.F32, VECTOR), "b": ((4,), writer.F32, VECTOR)})))
    assert file.metadata == SAMPLE
    assert file.tensors["a"].shape == (2, 2)
    assert bytes(file.raw("b")) == VECTOR
    assert file.tensors["b"].offset % 32 == 0


def test_every_truncation_is_an_error_that_names_the_file_and_the_byte(write):
    whole = writer.gguf(SAMPLE, {"a": ((2, 2), writer.F32, VECTOR)})
    content_end = len(whole) - 16  # the rest is padding after the last tensor
    for size in range(content_end):
        path = write(whole[:size])
        with pytest.raises(ModelLoadError, match=r"byte|too short") as caught:
            gguf.read(path)
        assert str(path) in str(caught.value)


def test_a_truncated_tensor_is_named(write):
    with pytest.raises(ModelLoadError, match=r"tensor 'a' needs bytes .* truncated: download it again"):
        gguf.read(write(writer.gguf({}, {"a": ((64,), writer.F32, VECTOR)})))


def test_another_format_is_told_apart(write):
    with pytest.raises(ModelLoadError, match="byte 0: not a GGUF file: it starts with b'PK"):
        gguf.read(write(b"PK\x03\x04" + b"\0" * 40))


@pytest.mark.parametrize(
    ("version", "says"), [(1, "version 1; supported: 2 and 3"), (3 << 24, "big-endian files are not supported")]
)
def test_versions_that_are_not_read(write, version, says):
    with pytest.raises(ModelLoadError, match=says):
        gguf.read(write(writer.gguf(version=version)))


def test_an_unsupported_quantization_names_the_tensor_and_the_remedy(write):
    with pytest.raises(ModelLoadError, match=r"tensor 'w' is quantized as IQ2_XS, .*take a file of another quantization, as Q4_K_M"):
        gguf.read(write(writer.gguf({}, {"w": ((256,), writer.IQ2_XS, b"\0" * 74)})))


def test_absurd_counts_do_not_allocate(write):
    data = bytearray(writer.gguf(SAMPLE))
    data[8:16] = struct.pack("<Q", 1 << 60)
    with pytest.raises(ModelLoadError, match="do not fit the file"):
        gguf.read(write(bytes(data)))


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(ModelLoadError, match=r"gone\.gguf: cannot be read: No such file"):
        gguf.read(tmp_path / "gone.gguf")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_any_bytes_stand_for_what_ggml_says(kind, monkeypatch):
    reference = pytest.importorskip("gguf")
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (37, kind.bytes), np.uint8)
    theirs = reference.GGMLQuantizationType[kind.name]
    assert KINDS[theirs.value] is kind and reference.GGML_QUANT_SIZES[theirs] == (kind.weights, kind.bytes)
    with np.errstate(invalid="ignore", over="ignore"):  # any bytes: some scales are NaN
        expected = reference.dequantize(raw, theirs).reshape(-1)
        monkeypatch.setattr(blocks, "_AT_ONCE", 8 * kind.weights)  # in several steps
        found = kind.dequantized(raw.reshape(-1))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.model
def test_the_real_file_dequantizes_as_ggml_does():
    reference = pytest.importorskip("gguf")
    from lmc.backend.engine.models.gguf import embedded_path

    path = embedded_path()
    file = gguf.read(path)
    theirs = {t.name: t for t in reference.GGUFReader(path).tensors}
    assert set(theirs) == set(file.tensors)
    names = ["blk.0.attn_q.weight", "blk.7.ffn_down.weight", "blk.29.ffn_norm.weight", "token_embd.weight"]
    for name in names:
        expected = reference.dequantize(theirs[name].data, theirs[name].tensor_type)
        ours = file.tensor(name)
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours, expected)
