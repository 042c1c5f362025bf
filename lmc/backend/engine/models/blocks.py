"""GGUF quantization: blocks of weights with scales of their own, and their dequantization to float32.

The layouts are those of ggml (github.com/ggml-org/ggml, src/ggml-common.h); d and m below are float16, all arithmetic is float32.
numpy, not torch: its single-threaded passes do not wait for one another on a busy machine, and the loader runs one task a layer
anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

_AT_ONCE = 1 << 20  # weights: intermediate results stay in the CPU cache


class BlockType(NamedTuple):
    """A type of ggml: blocks of so many weights in so many bytes, and their dequantization: uint8 [n, bytes] → float32
    [n, weights]."""

    name: str
    weights: int
    bytes: int
    numbers: Callable[[Array], Array]

    def dequantized(self, raw: Array) -> Array:
        """Dequantize uint8 [bytes] → float32 [weights], a fresh array."""
        blocks = raw.reshape(-1, self.bytes)
        found = np.empty((len(blocks), self.weights), np.float32)
        step = _AT_ONCE // self.weights
        for at in range(0, len(blocks), step):
            found[at : at + step] = self.numbers(blocks[at : at + step])
        return found.reshape(-1)


def _half(raw: Array) -> Array:
    """Read [n, 2] bytes → float32 [n, 1]."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _fields(packed: Array, *shifts: int) -> Array:
    """Return bits of every byte, one shift after the other: uint8 [n, k] → [n, len(shifts), k], not masked."""
    return packed[:, None, :] >> np.array(shifts, np.uint8)[:, None]


def _nibbles(packed: Array) -> Array:
    """uint8 [n, 16] → [n, 32]: low nibbles are the first 16 weights, high nibbles the last."""
    return (_fields(packed, 0, 4) & 15).reshape(len(packed), -1)


def _f32(raw: Array) -> Array:
    return raw.view("<f4")


def _f16(raw: Array) -> Array:
    return raw.view("<f2").astype(np.float32)


def _bf16(raw: Array) -> Array:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(b: Array) -> Array:
    """w = d·q"""
    return b[:, 2:].view(np.int8) * _half(b[:, :2])


def _q4_0(b: Array) -> Array:
    """w = d·(q - 8)"""
    return (_nibbles(b[:, 2:]).astype(np.float32) - 8) * _half(b[:, :2])


def _q4_1(b: Array) -> Array:
    """w = d·q + m"""
    return _nibbles(b[:, 4:]) * _half(b[:, :2]) + _half(b[:, 2:4])


def _fives(high: Array, low: Array) -> Array:
    """The fifth bits [n, 4], one a weight, and the nibbles [n, 16] → [n, 32]."""
    return _nibbles(low) | np.unpackbits(high, axis=1, bitorder="little") << 4


def _q5_0(b: Array) -> Array:
    """w = d·(q - 16)"""
    return (_fives(b[:, 2:6], b[:, 6:]).astype(np.float32) - 16) * _half(b[:, :2])


def _q5_1(b: Array) -> Array:
    """w = d·q + m"""
    return _fives(b[:, 4:8], b[:, 8:]) * _half(b[:, :2]) + _half(b[:, 2:4])


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def _iq4_nl(b: Array) -> Array:
    """w = d·table[q]"""
    return _IQ4[_nibbles(b[:, 2:])] * _half(b[:, :2])


def _iq4_xs(b: Array) -> Array:
    """w = d·(s - 32)·table[q], a scale s of 6 bits for 32 weights: 4 low bits each, then 2 high bits each."""
    n = len(b)
    low = (b[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(n, 8)
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = (low | high << 4).astype(np.float32) - 32
    quants = _IQ4[_nibbles(b[:, 8:].reshape(-1, 16))].reshape(n, 8, 32)
    return (quants * (_half(b[:, :2]) * scales)[:, :, None]).reshape(n, -1)


# -- blocks of 256 weights, with scales of their parts that are quantized too


def _parts(quants: Array, scales: Array, mins: Array | None = None) -> Array:
    """Dequantize quants [n, 256] of parts [n, p] with scales and minima: w = scale·q - min."""
    parts = quants.reshape(*scales.shape, -1) * scales[:, :, None]
    if mins is not None:
        parts -= mins[:, :, None]
    return parts.reshape(len(quants), -1)


def _q2_k(b: Array) -> Array:
    """w = d·s·q - m·t; a byte has s and t of 16 weights; 2 bits a weight, 4 × 32 weights in 32 bytes."""
    scales, quants = b[:, :16], b[:, 16:80].reshape(-1, 32)
    quants = (_fields(quants, 0, 2, 4, 6) & 3).reshape(len(b), -1)
    return _parts(quants, _half(b[:, 80:82]) * (scales & 15), _half(b[:, 82:84]) * (scales >> 4))


def _q3_k(b: Array) -> Array:
    """w = d·(s - 32)·(q - 4), s of 6 bits for 16 weights, q of 2 bits like those of Q2_K and a third in the mask before them."""
    n = len(b)
    low = (_fields(b[:, 32:96].reshape(-1, 32), 0, 2, 4, 6) & 3).reshape(n, -1)
    high = (_fields(b[:, :32], *range(8)) & 1).reshape(n, -1)
    scales = (_fields(b[:, 96:104], 0, 4) & 15).reshape(n, 16) | (_fields(b[:, 104:108], 0, 2, 4, 6) & 3).reshape(n, 16) << 4
    return _parts((low | high << 2).astype(np.float32) - 4, _half(b[:, 108:110]) * (scales.astype(np.float32) - 32))


def _scales_and_mins(packed: Array) -> tuple[Array, Array]:
    """12 bytes → eight scales and eight minima of 6 bits: six of the first four each, then nibbles and twos of the rest."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    return (
        np.concatenate((a & 63, c & 15 | a >> 2 & 48), 1),
        np.concatenate((b & 63, c >> 4 | b >> 2 & 48), 1),
    )


def _q4_k(b: Array) -> Array:
    """w = d·s·q - m·t for 32 weights each; 2 × 32 nibbles in 32 bytes."""
    scales, mins = _scales_and_mins(b[:, 4:16])
    quants = (_fields(b[:, 16:].reshape(-1, 32), 0, 4) & 15).reshape(len(b), -1)
    return _parts(quants, _half(b[:, :2]) * scales, _half(b[:, 2:4]) * mins)


def _q5_k(b: Array) -> Array:
    """As Q4_K, with a fifth bit of each weight before the nibbles."""
    scales, mins = _scales_and_mins(b[:, 4:16])
    low = (_fields(b[:, 48:].reshape(-1, 32), 0, 4) & 15).reshape(len(b), -1)
    high = (_fields(b[:, 16:48], *range(8)) & 1).reshape(len(b), -1)
    return _parts(low | high << 4, _half(b[:, :2]) * scales, _half(b[:, 2:4]) * mins)


def _q6_k(b: Array) -> Array:
    """w = d·s·(q - 32), s of 8 bits for 16 weights; 2 × 64 nibbles in 64 bytes, 4 × 32 times two bits in 32."""
    low = (_fields(b[:, :128].reshape(-1, 64), 0, 4) & 15).reshape(len(b), -1)
    high = (_fields(b[:, 128:192].reshape(-1, 32), 0, 2, 4, 6) & 3).reshape(len(b), -1)
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return _parts((low | high << 4).astype(np.float32) - 32, _half(b[:, 208:210]) * scales)


KINDS = {
    0: BlockType("F32", 1, 4, _f32),
    1: BlockType("F16", 1, 2, _f16),
    30: BlockType("BF16", 1, 2, _bf16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs),
}
"""Block types by ggml's number."""

UNREAD = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
