"""Ways of multiplying: kept on disk, used for the sizes that they were measured for, and as right as torch's own."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from lmc.backend.engine import gemm_tuning  # noqa: E402
from lmc.backend.engine.gemm_tuning import TunedGemm  # noqa: E402
from lmc.backend.engine.kernels.few_rows import DENSE_CUTS, FewRows  # noqa: E402
from lmc.backend.engine.models.linear import Dense  # noqa: E402

WAY = bytes(range(64))


class Recorded:
    """A cuBLAS that writes ones and notes what it was asked."""

    def __init__(self) -> None:
        self.asked = []

    def multiply(self, way, x, w, y):
        self.asked.append((way, len(x), tuple(w.shape)))
        y.fill_(1.0)


def kept(path, *rows, form=gemm_tuning._FORMAT):
    path.write_text(json.dumps({"format": form, "ways": rows, "checksum": gemm_tuning._checksum(rows)}))
    return path


def test_a_measured_size_goes_its_way_and_others_go_torchs(tmp_path):
    cublas, w = Recorded(), torch.randn(6, 4)
    times = TunedGemm(cublas, kept(tmp_path / "ways.json", [3, 6, 4, WAY.hex()], [2, 6, 4, None]))
    x = torch.randn(3, 4)
    assert (times(Dense(w), x) == 1).all() and cublas.asked == [(WAY, 3, (6, 4))]
    bias = torch.randn(6)
    for matrix, rows in (
        (Dense(w), x[:2]),  # torch's own way was the fastest
        (Dense(w), torch.randn(5, 4)),  # never measured
        (Dense(w, bias), x),  # with a bias
        (lambda rows: F.linear(rows, w), x),  # not a plain matrix
        (Dense(w), torch.randn(4, 3).T),  # rows that do not lie one behind the other
    ):
        expected = F.linear(rows, w, matrix.bias if isinstance(matrix, Dense) else None)
        assert torch.equal(times(matrix, rows), expected)
    assert len(cublas.asked) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, f'{{"format": {gemm_tuning._FORMAT}}}', "\xff"])
def test_what_is_damaged_is_measured_again(tmp_path, text, caplog):
    path = tmp_path / "ways.json"
    path.write_text(text, "latin-1")
    assert gemm_tuning._read(path) == {} and "measuring again" in caplog.text


def test_a_flipped_bit_is_noticed(tmp_path, caplog):
    path = kept(tmp_path / "ways.json", [3, 6, 4, WAY.hex()])
    text = path.read_text()
    path.write_text(text.replace(WAY.hex(), bytes([WAY[0] ^ 1, *WAY[1:]]).hex()))
    assert gemm_tuning._read(path) == {} and "their checksum does not fit" in caplog.text
    path.write_text(text)
    assert gemm_tuning._read(path) == {(3, 6, 4): WAY}


def test_another_format_is_measured_again_and_nothing_is_said(tmp_path, caplog):
    assert gemm_tuning._read(kept(tmp_path / "ways.json", form=0)) == {} and not caplog.text
    assert gemm_tuning._read(tmp_path / "none.json") == {} and gemm_tuning._read(None) == {}


def test_what_others_measured_meanwhile_stays(tmp_path):
    path = kept(tmp_path / "ways.json", [1, 2, 3, WAY.hex()])
    gemm_tuning._write(path, {(4, 5, 6): None, (4, 5, 7): DENSE_CUTS[1]})
    assert gemm_tuning._read(path) == {(1, 2, 3): WAY, (4, 5, 6): None, (4, 5, 7): DENSE_CUTS[1]}
    assert [p.name for p in tmp_path.iterdir()] == ["ways.json"]


def test_a_cut_that_the_kernel_has_no_longer_is_measured_again(tmp_path, caplog):
    assert gemm_tuning._read(kept(tmp_path / "ways.json", [1, 64, 64, [32, 128, 5, 1, 4]])) == {} and "measuring again" in caplog.text


@pytest.mark.parametrize("cut", DENSE_CUTS)
@pytest.mark.parametrize(("rows", "outputs", "columns"), [(1, 64, 512), (5, 200, 1032), (16, 72, 200)])
def test_the_kernel_for_few_rows_multiplies_as_torch_does(cut, rows, outputs, columns):
    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float16)  # the interpreter has no bfloat16
    few, w = FewRows(torch.device(device)), torch.randn(outputs, columns, device=device).to(dtype)
    for _ in range(2):  # counters are 0 again after each product
        x = torch.randn(rows, columns, device=device).to(dtype)
        found, expected = few.dense(x, w, cut).double(), x.double() @ w.double().T
        assert (found - expected).norm() <= 5e-3 * expected.norm()


def test_a_place_that_cannot_be_written_is_named(tmp_path, caplog):
    gemm_tuning._write(tmp_path / "none" / "ways.json", {(1, 2, 3): None})
    assert "cannot keep measurements" in caplog.text


@pytest.mark.gpu
def test_every_way_gives_torchs_products_and_is_found_once(tmp_path, monkeypatch):
    from lmc.backend.engine.kernels.cublas import Cublas

    device, dtype = torch.device("cuda"), torch.bfloat16
    matrices = [Dense(torch.randn(n, k, device=device).to(dtype)) for n, k in ((256, 512), (768, 128)) for _ in range(3)]
    path = tmp_path / "ways.json"
    monkeypatch.setattr(gemm_tuning, "_GAIN", 1e9)  # torch's own is never kept
    times = TunedGemm(Cublas(device, dtype), path)
    times.measure(matrices, (1, 8, 40, 200))
    assert all(times._ways.values()) and len(times._ways) == 8
    for matrix in matrices:
        for rows in (1, 8, 40, 200, 3):
            x = torch.randn(rows, matrix.weight.shape[1], device=device).to(dtype)
            found, expected = times(matrix, x).double(), x.double() @ matrix.weight.double().T
            assert (found - expected).norm() <= 5e-3 * expected.norm(), (rows, matrix.weight.shape)
    again = TunedGemm(Cublas(device, dtype), path)
    monkeypatch.setattr(TunedGemm, "_fastest", None)  # would raise
    again.measure(matrices, (1, 8, 40, 200))
    assert again._ways == times._ways


@pytest.mark.gpu
def test_a_dtype_that_it_does_not_have_is_torchs(monkeypatch):
    assert TunedGemm.of(torch.device("cuda"), torch.float32) is None
