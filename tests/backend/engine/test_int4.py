"""Matrices packed in 4 bits: near what they were made of, exact where that was quantized so, and refused where there is no kernel."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

import lmc  # noqa: E402
from lmc.backend.engine.models import linear, loader  # noqa: E402
from tests.backend.engine.model_fixtures import PlainKV, batch  # noqa: E402

if not linear.can_pack_half():
    pytest.skip("needs FBGEMM's kernels", allow_module_level=True)


def weights(rows: int, columns: int, seed: int = 0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_products_are_near_those_of_the_matrix(rows):
    weight, bias, x = weights(48, 96), weights(1, 48, 1)[0], weights(rows, 96, 2) * 20
    found, expected = linear.four_bits(weight, bias)(x), x @ weight.T + bias
    assert found.dtype == torch.float32 and found.shape == expected.shape
    assert 0 < float((found - expected).norm() / expected.norm()) < 0.12


def test_what_was_quantized_so_keeps_its_levels():
    levels = torch.randint(0, 16, (32, 64), generator=torch.Generator().manual_seed(3)).float().view(32, 2, 32)
    levels[..., 0], levels[..., 1] = 0, 15  # as of a block's smallest and largest
    weight = (levels * 0.25 - 2.0).view(32, 64)  # scale and zero are bfloat16 numbers
    torch.testing.assert_close(linear.four_bits(weight)(torch.eye(64)).float(), weight.T, rtol=0, atol=0)


def test_a_group_of_equal_weights_stays_as_it_is():
    weight = torch.full((16, 32), 0.5)
    torch.testing.assert_close(linear.four_bits(weight)(torch.eye(32)).float(), weight.T, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(10, 64), (16, 40)])
def test_other_shapes_are_packed_as_float16(shape):
    weight, x = weights(*shape), weights(2, shape[1], 4)
    torch.testing.assert_close(linear.four_bits(weight)(x), linear.half_packed(weight)(x), rtol=0, atol=0)
    torch.testing.assert_close(linear.four_bits(weight)(x.bfloat16()), linear.half_packed(weight)(x.bfloat16().float()), rtol=0, atol=0)


@pytest.mark.parametrize("rows", [0, 1, 3, 64])
def test_a_head_in_eight_bits_is_near_the_matrix(rows):
    weight, x = weights(200, 96), weights(rows, 96, 2) * 20
    x[:, 5] *= 100  # a large number of a row does not cost the precision of the others
    weight[:, 5] = 0
    found, expected = linear.eight_bits(weight)(x), x @ weight.T
    assert found.dtype == torch.float32 and found.shape == expected.shape
    assert float((found - expected).norm()) <= 0.02 * float(expected.norm())


def test_a_row_in_eight_bits_does_not_depend_on_others():
    head, x = linear.eight_bits(weights(200, 96)), weights(7, 96, 2)
    every = head(torch.cat((x, 1000 * x)))
    assert all(torch.equal(head(row[None])[0], found) for row, found in zip(x, every, strict=False))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_row_that_is_not_finite_takes_no_others_along(wrong, at):
    """Its numbers were among those whose smallest and largest decide the levels of all: an error of the whole pass."""
    head, x = linear.eight_bits(weights(200, 96)), weights(3, 96, 2)
    others, expected = [i for i in range(3) if i != at], head(x)
    x[at, 0] = wrong
    found = head(x)
    assert not torch.isfinite(found[at]).any() and torch.equal(found[others], expected[others])


def test_without_exact_products_a_head_is_packed_as_float16(monkeypatch):
    """Older CPUs add up two products in 16 bits."""
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    weight, x = weights(48, 96), weights(2, 96, 4)
    torch.testing.assert_close(linear.eight_bits(weight)(x), linear.half_packed(weight)(x), rtol=0, atol=0)


def test_the_small_model_is_near_itself_in_four_bits():
    """Its file has Q4_1, so only scales, rows and the head are rounded."""
    whole, small = loader.load("smollm2"), loader.load("smollm2", quantization="int4")
    assert (whole.weights, small.weights) == ("float16 packed", "float16 packed, int4 packed")
    ids = whole.tokenizer.encode(("The quick brown fox jumps over the lazy dog, and then it",))
    a, b = (loaded.model.forward(batch((ids, range(len(ids))), logits=range(len(ids))), PlainKV(loaded, len(ids))) for loaded in (whole, small))
    assert 0 < float((a - b).norm() / a.norm()) < 0.04


def test_an_engine_answers_in_four_bits():
    @lmc.function
    def count(s):
        s += "1, 2, 3, 4, 5, 6, 7, 8, 9," + lmc.gen("next", max_tokens=3, temperature=0)
        return s["next"]

    with lmc.Engine("smollm2", quantization="int4", max_tokens=256) as engine:
        assert "10" in count.run(backend=engine).ret_value


@pytest.mark.parametrize(("options", "why"), [({"dtype": "float32"}, "leave dtype out"), ({"deterministic": True}, "int4 is not")])
def test_where_there_is_no_kernel_it_is_refused(options, why):
    with pytest.raises(lmc.ModelLoadError, match=why):
        loader.load("smollm2", quantization="int4", **options)
