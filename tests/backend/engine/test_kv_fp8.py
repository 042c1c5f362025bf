"""KV in FP8: attention over it equals that over its dequantized rows, a slot depends on its own token, engines share and move it."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

import lmc  # noqa: E402
from lmc.backend.engine.attention.base import Span  # noqa: E402
from lmc.backend.engine.attention.fixed import FixedAttention  # noqa: E402
from lmc.backend.engine.attention.torch_ref import fast, reference  # noqa: E402
from lmc.backend.engine.kv_copy import KVMover  # noqa: E402
from lmc.backend.engine.kv_fp8 import Fp8Rows, check_device  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool, LayerShape  # noqa: E402
from lmc.backend.engine.models.fp8 import E4M3  # noqa: E402
from lmc.backend.engine.models.loader import load  # noqa: E402
from lmc.errors import ModelLoadError  # noqa: E402
from lmc.segments import Gen, SamplingParams, Text  # noqa: E402
from tests.backend.engine.model_fixtures import PlainKV, batch  # noqa: E402
from tests.backend.engine.test_device_automata import folder  # noqa: E402, F401

SLOTS, HEADS, KV_HEADS, DIM = 700, 6, 2, 16
GREEDY = Gen(SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True))
TALE = "The old lighthouse keeper counted the ships that passed. " * 8


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(seed=0) -> Fp8Rows:
    rows = noise(SLOTS, KV_HEADS, DIM, seed=seed) * torch.logspace(-4, 3, SLOTS)[:, None, None]
    store = Fp8Rows.zeros(SLOTS, KV_HEADS, DIM, "cpu")
    store.index_copy_(0, torch.arange(SLOTS), rows)
    assert float(((store[:] - rows).abs() / rows.abs().amax(-1, keepdim=True)).max()) <= 1 / 28 + 1e-6
    return store


def test_a_row_is_the_same_whatever_is_written_with_it():
    rows, many, one = noise(5, KV_HEADS, DIM), *(Fp8Rows.zeros(9, KV_HEADS, DIM, "cpu") for _ in range(2))
    many.index_copy_(0, torch.tensor([7, 0, 3, 4, 8]), rows)
    one.index_copy_(0, torch.tensor([3]), rows[2:3])
    assert torch.equal(one.numbers[3].float(), many.numbers[3].float()) and torch.equal(one.scales[3], many.scales[3])
    assert bool((many[torch.tensor([1, 2, 5, 6])] == 0).all()), "other slots are untouched"


SPANS = {
    "one row": [(1, range(40, 240))],
    "a prompt behind cached tokens": [(20, range(100, 400))],
    "decode": [(1, range(5, 90)), (1, [*range(300, 320), 500]), (1, range(600, 633))],
    "a shared prefix": [(1, [*range(300), 310 + i]) for i in range(4)],
    "scattered": [(3, range(0, 400, 7)), (1, range(1, 500, 9))],
}


@pytest.mark.parametrize("case", SPANS)
@pytest.mark.parametrize("plan", [fast, reference, FixedAttention(HEADS, KV_HEADS, DIM)], ids=["fast", "reference", "fixed"])
def test_attention_equals_that_over_dequantized_rows(case, plan):
    keys, values, spans, start = filled(), filled(1), [], 0
    for length, slots in SPANS[case]:
        spans.append(Span(start, length, torch.tensor(list(slots))))
        start += length
    q = noise(start, HEADS, DIM, seed=2)
    found, expected = (plan(spans).attend(q, *stores) for stores in ((keys, values), (keys[:], values[:])))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_model_over_it_is_near_the_one_over_its_own_dtype():
    loaded = load("smollm2", device="cpu", kv_dtype="fp8")
    c = loaded.config
    assert loaded.kv_dtype == E4M3 and loaded.kv_bytes == c.num_layers * c.num_kv_heads * 2 * (c.head_dim + 4)
    ids = loaded.tokenizer.encode((TALE,))
    work = batch((ids, range(len(ids))), logits=range(len(ids)))
    a, b = (loaded.model.forward(work, kv) for kv in (PlainKV(loaded, len(ids)), KVPool.of(loaded.layers, len(ids), E4M3)))
    assert 0 < float((a - b).norm() / a.norm()) < 0.06
    assert float((a.argmax(-1) == b.argmax(-1)).float().mean()) > 0.9


def test_host_memory_gets_its_bytes_and_scales():
    layers = [LayerShape(2, 8, 8), LayerShape(1, 6, 3)]
    pool = KVPool.of(layers, 20, E4M3)
    for tensor in pool.tensors():
        tensor.view(torch.uint8).random_(0, 120)
    before, mover = [t.clone() for t in pool.tensors()], KVMover(pool, 400)
    mover.want(8)
    assert mover.token_bytes == sum(layer.bytes(E4M3) for layer in layers) == 2 * 2 * 12 + 6 + 3 + 8
    source, host, target = np.array([3, 9, 4]), np.array([1, 2, 0]), np.array([1, 2, 8])
    mover.out(source, host)
    for tensor in pool.tensors():
        tensor.view(torch.uint8)[source] = 0
    mover.back(host, target)
    for tensor, kept in zip(pool.tensors(), before, strict=True):
        assert torch.equal(tensor[target].view(torch.uint8), kept[source].view(torch.uint8))


def test_a_run_continues_from_what_host_memory_kept(folder, monkeypatch):  # noqa: F811
    monkeypatch.setattr("lmc.backend.engine.load.CopyRates.favour_copies", True)  # whatever this machine is faster at
    found = []
    for more in ({"max_tokens": 300, "host_memory": "1MB"}, {"max_tokens": 4000}):
        with lmc.Engine(folder, load_format="dummy", device="cpu", dtype="float32", kv_dtype="fp8", deterministic=True, **more) as engine:
            chat = engine.submit(None, [Text(("the order 1 " * 20,)), GREEDY])
            chat.results[0].output()
            for i in range(2, 6):
                engine.submit(None, [Text((f"the order {i} " * 20,)), GREEDY]).results[0].output()
            found.append(engine.submit(chat, [Text((" the order",)), GREEDY]).results[0].output().text)
            engine.check()
            assert ("host_memory" in more) == (engine.stats().get("host_in", 0) > 60)
            assert engine.server_info()["kv_dtype"] == "float8_e4m3fn"
    assert found[0] == found[1]


def test_ranks_compute_what_one_does(tiny_smollm2):
    found = []
    for tp in (1, 3):
        with lmc.Engine(tiny_smollm2, device="cpu", dtype="float32", kv_dtype="fp8", max_tokens=600, tp=tp) as engine:
            found.append(engine.submit(None, [Text((TALE,)), GREEDY]).results[0].output().text)
            assert tp == 1 or "in float8_e4m3fn" in engine.topology[0]
    assert found[0] == found[1]


def test_what_there_is_not_is_refused(monkeypatch):
    with pytest.raises(ModelLoadError, match="kv_dtype 'int8' is not supported; supported: fp8"):
        lmc.Engine("smollm2", device="cpu", kv_dtype="int8")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    with pytest.raises(ModelLoadError, match=r'kv_dtype="fp8" needs a GPU of compute capability 8.9 \(Ada\) or newer, and cuda:0 is A100'):
        check_device(torch.device("cuda:0"))
