"""Host memory that a transfer may still read is not written to: the runner on a GPU, without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.model  # needs torch
torch = pytest.importorskip("torch")


def test_a_graph_is_captured_over_the_stage_once_the_pass_before_has_what_was_staged(monkeypatch):
    pytest.importorskip("triton")
    from lmc.backend.engine.cuda_runner import CudaRunner

    done: list[str] = []

    def step(name: str):
        return lambda *args, **options: done.append(name)

    runner = object.__new__(CudaRunner)
    vars(runner).update(
        _graphs={}, _staged=SimpleNamespace(synchronize=step("wait"), record=step("record")),
        _stage=SimpleNamespace(send=step("send")), _mark=step("begins"), _fused=SimpleNamespace(logits=step("logits")), _stream=None,
    )  # fmt: skip
    captured = SimpleNamespace(graph=SimpleNamespace(replay=step("replay")), hidden=lambda wanted: torch.zeros(wanted, 4))
    monkeypatch.setattr(runner, "_capture", lambda rows, wide, adapted: done.append("capture") or captured)
    monkeypatch.setattr(runner, "_fill", step("fill"))
    monkeypatch.setattr("lmc.backend.engine.cuda_runner.put", step("put"))
    layout: Any = SimpleNamespace(wanted=[0, 1, 2], adapters=None)
    plan: Any = SimpleNamespace(wide=np.zeros((0, 8)))
    for _ in range(2):
        runner._replay(3, layout, plan, 8)
    each = ["fill", "put", "begins", "send", "record", "replay", "logits"]
    assert done == ["wait", "capture", *each, "wait", *each]


@pytest.mark.parametrize(("begins", "same", "behind"), [(True, True, []), (True, False, ["launch"]), (False, True, ["launch"]), (False, False, ["launch"])])
def test_a_prepared_pass_is_sent_at_once_and_replayed_when_it_begins(begins, same, behind, monkeypatch):
    """What is launched then is it, if it computes the same; else it is launched as ever, as it is where the prepared one has not begun."""
    pytest.importorskip("triton")
    from lmc.backend.engine import cuda_runner

    done: list[str] = []

    def step(name: str, found: Any = None):
        return lambda *args, **options: done.append(name) or found

    runner: Any = object.__new__(cuda_runner.CudaRunner)
    captured = SimpleNamespace(graph=SimpleNamespace(replay=step("replay")), hidden=lambda wanted: wanted)
    vars(runner).update(
        buckets=(8,), _tiled=SimpleNamespace(many=16), _staged=SimpleNamespace(record=step("record")), _stage=SimpleNamespace(send=step("send")),
        _fused=SimpleNamespace(logits=lambda hidden: hidden), _seen=step("seen"), _plan=step("plan"), _fits_graph=lambda *_: True,
        _put=step("put", (captured, 5)), _groups=lambda _: [], _replay=step("launch", "launched"), _begun=None, _stream=None,
    )  # fmt: skip
    monkeypatch.setattr(cuda_runner, "_arranged", lambda *_: SimpleNamespace(spans=[]))
    monkeypatch.setattr(cuda_runner, "wanted_rows", lambda _: [0, 1, 2])
    begun = SimpleNamespace(record=step("begins"))
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: begun)
    assert runner.prepare(SimpleNamespace(rows=3, computes=lambda _: same))
    assert done == ["seen", "plan", "put", "send", "record"], "all that the device needs, and nothing that it does"
    done.clear()
    if begins:
        runner.begin()
        assert done == ["begins", "replay"]
    for further in (behind, ["launch"]):  # it is nothing to the pass after the next
        done.clear()
        assert runner.logits(SimpleNamespace(rows=3), [0, 1, 2]) == ("launched" if further else 3)
        assert [name for name in done if name == "launch"] == further
        assert further or runner._begun is begun


def test_behind_pictures_attention_masks_by_the_index_in_the_context():
    pytest.importorskip("triton")
    from lmc.backend.engine.cuda_runner import CudaRunner

    stage, runner = {name: np.full(8, -9) for name in ("ids", "positions", "in_context", "slots", "logits")}, object.__new__(CudaRunner)
    vars(runner).update(_places={}, _eyes="some", _pool=SimpleNamespace(scratch=99))
    picture = SimpleNamespace(end=6, lift=-3)  # six tokens, of which positions count three
    sees = SimpleNamespace(ids=[5, 6], slots=np.arange(20, 30), position=8, branch=None, request=SimpleNamespace(pictures=[picture]))
    text = SimpleNamespace(ids=[7, 8, 9], slots=np.arange(40, 45), position=2, branch=None, request=SimpleNamespace(pictures=[]))
    layout: Any = SimpleNamespace(
        spans=[sees, text], lengths=np.array([2, 3]), contexts=np.array([10, 5]), wanted=np.array([1, 4]), adapters=None
    )  # fmt: skip
    runner._fill(SimpleNamespace(array=lambda name, rows: stage[name][:rows]), layout, 5, 8)  # pyright: ignore[reportArgumentType]
    assert stage["positions"].tolist() == [5, 6, 2, 3, 4, 0, 0, 0]
    assert stage["in_context"].tolist() == [8, 9, 2, 3, 4, 0, 0, 0]
    assert stage["slots"].tolist() == [28, 29, 42, 43, 44, 99, 99, 99]


@pytest.mark.parametrize(("rows", "wanted", "way"), [(1024, 1024, 1024), (1025, 1, 1152), (2049, 2049, 2304), (4097, 1, "launched")])
def test_large_passes_are_captured_if_a_graph_has_room_for_them(rows, wanted, way, monkeypatch):
    pytest.importorskip("triton")
    from lmc.backend.engine import cuda_runner

    runner: Any = object.__new__(cuda_runner.CudaRunner)
    runner._prepared = None
    runner.buckets, runner._tiled = cuda_runner.BUCKETS_OF_FP8, SimpleNamespace(many=16, widens=lambda rows: rows > 1100)
    runner._stage, runner._partials = SimpleNamespace(capacity=lambda _: 8), SimpleNamespace(capacity=1)
    monkeypatch.setattr(cuda_runner, "_arranged", lambda *_: SimpleNamespace(spans=[]))
    plan = SimpleNamespace(indices=[], wide=np.zeros((1, 8)), indptr=[0, 1], widened=1 if rows > 1024 else None)
    for name, found in (("_groups", []), ("_seen", None), ("_plan", plan)):
        monkeypatch.setattr(runner, name, lambda *_, found=found: found)
    monkeypatch.setattr(runner, "_replay", lambda known, layout, plan, rows: rows)
    monkeypatch.setattr(runner, "_launch", lambda *_: "launched")
    assert runner.logits(SimpleNamespace(rows=rows), list(range(wanted))) == way
    plan.widened = None if plan.widened else 1
    assert runner.logits(SimpleNamespace(rows=rows), list(range(wanted))) == "launched", "its graph reads other KV than the plan says"
    plan.widened = None if plan.widened else 1
    runner._partials.capacity = 0
    assert runner.logits(SimpleNamespace(rows=rows), list(range(wanted))) == "launched", "no graph has room for its partial results"


def test_weights_and_kv_in_fp8_have_graphs_of_more_rows():
    pytest.importorskip("triton")
    from lmc.backend.engine.cuda_runner import BUCKETS, BUCKETS_OF_FP8, buckets_of
    from lmc.backend.engine.kv_fp8 import Fp8Rows
    from lmc.backend.engine.models.fp8 import fp8
    from lmc.backend.engine.models.linear import Dense

    matrix, rows = torch.zeros(16, 16), Fp8Rows.zeros(1, 1, 1, "cpu")

    def found(qkv: Any, kv: Any, chunk: int) -> Any:
        model: Any = SimpleNamespace(layers=[SimpleNamespace(qkv=qkv)])
        pool: Any = SimpleNamespace(key=lambda _: kv)
        return buckets_of(model, pool, chunk)

    assert found(fp8(matrix), rows, 4096) == BUCKETS_OF_FP8
    assert found(fp8(matrix), rows, 2000)[-1] == 2048 and found(fp8(matrix), rows, 64) == BUCKETS
    assert found(Dense(matrix), rows, 4096) == found(fp8(matrix), matrix, 4096) == BUCKETS


@pytest.mark.parametrize(
    ("dtype", "head_dim", "device", "slots"),
    [(torch.bfloat16, 16, (9, 0), 128), (torch.float32, 16, (9, 0), None), (torch.bfloat16, 256, (9, 0), None), (torch.bfloat16, 16, (8, 9), None)],
)
def test_kv_is_widened_where_blocks_fit_shared_memory_and_for_no_more_slots_than_there_are(dtype, head_dim, device, slots, monkeypatch):
    pytest.importorskip("triton")
    from lmc.backend.engine.cuda_runner import _room
    from lmc.backend.engine.kv_fp8 import Fp8Rows

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: device)
    model: Any = SimpleNamespace(config=SimpleNamespace(head_dim=head_dim, num_kv_heads=2), device=torch.device("cpu"), dtype=dtype)
    room = _room(model, SimpleNamespace(key=lambda _: Fp8Rows.zeros(100, 2, head_dim, "cpu")))  # pyright: ignore[reportArgumentType]
    assert (room and tuple(room.keys.shape)) == (slots and (2, slots, head_dim))
