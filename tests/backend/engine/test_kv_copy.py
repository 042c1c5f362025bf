"""KV goes to host memory and back as it was, and programs say the same with a host tier as without."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

pytestmark = pytest.mark.model
torch = pytest.importorskip("torch")

import lmc  # noqa: E402
from lmc.backend.engine import kv_copy  # noqa: E402
from lmc.backend.engine.kv_copy import KVMover  # noqa: E402
from lmc.backend.engine.kv_pool import KVPool, LayerShape  # noqa: E402
from lmc.errors import ParameterError  # noqa: E402
from lmc.segments import Gen, SamplingParams, Text  # noqa: E402

LAYERS = [LayerShape(2, 4, 4), LayerShape(1, 6, 3)]  # not alike


def test_rows_come_back_as_they_were(monkeypatch):
    monkeypatch.setattr(kv_copy, "_PIECE", 5 * 25 * 4)  # five rows: copies cross pieces
    pool = KVPool.of(LAYERS, 20, torch.float32)
    for i in range(len(LAYERS)):
        pool.key(i).normal_()
        pool.value(i).normal_()
    before = [(pool.key(i).clone(), pool.value(i).clone()) for i in range(len(LAYERS))]
    mover = KVMover(pool, 17 * 25 * 4)
    assert (mover.token_bytes, mover.capacity, mover.ready) == (25 * 4, 17, 0), "nothing is wanted yet"
    mover.want(100)
    assert mover.capacity == mover.ready == 17
    source, host, target = np.array([3, 9, 4, 0, 19, 7]), np.array([3, 4, 5, 6, 16, 9]), np.array([1, 2, 8, 11, 12, 18])
    assert mover.out(source, host).done()
    for i in range(len(LAYERS)):
        pool.key(i)[source] = pool.value(i)[source] = 0.0
    assert mover.back(host, target).done()
    for i, (key, value) in enumerate(before):
        assert torch.equal(pool.key(i)[target], key[source]) and torch.equal(pool.value(i)[target], value[source])
        untouched = np.setdiff1d(np.arange(20), [*source, *target])
        assert torch.equal(pool.key(i)[untouched], key[untouched])


class Machine:
    """With so much memory, of which movers take some; more comes as it is used, if there is any."""

    def __init__(self, monkeypatch, size: int) -> None:
        self.size, self.now, self.movers = size, 0.0, list[KVMover]()
        monkeypatch.setattr(kv_copy, "_PIECE", 10 * 25 * 4)
        monkeypatch.setattr(kv_copy, "free_host", lambda: self.size - sum(m.ready for m in self.movers) * 25 * 4)
        monkeypatch.setattr(kv_copy.time, "monotonic", lambda: self.now)

    def mover(self) -> KVMover:
        found = KVMover(KVPool.of(LAYERS, 20, torch.float32), None)
        self.movers.append(found)
        return found


def test_by_default_it_takes_what_is_wanted_and_leaves_as_much_as_it_takes(monkeypatch):
    machine = Machine(monkeypatch, 1000 * 25 * 4)
    mover = machine.mover()
    assert (mover.ready, mover.capacity) == (0, 500)
    mover.want(42)
    assert (mover.ready, mover.capacity) == (50, 500), "in whole pieces"
    mover.want(9999)
    assert mover.ready == mover.capacity == 500
    machine.size *= 2  # a machine may show more of its memory once it is used
    mover.want(9999)
    assert mover.ready == 500, "it does not ask again at once"
    machine.now = 60.0
    mover.want(9999)
    assert mover.ready == mover.capacity == 1000
    machine.size //= 2  # somebody else needs it: what it has it keeps, but it takes no more
    machine.now = 120.0
    mover.want(9999)
    assert mover.ready == mover.capacity == 1000


def test_engines_on_one_machine_share_its_memory(monkeypatch):
    machine = Machine(monkeypatch, 1000 * 25 * 4)
    for mover in [machine.mover() for _ in range(4)]:
        mover.want(100)
    for _ in range(10):
        machine.now += 60.0
        for mover in machine.movers:
            mover.want(mover.ready + 10)
    assert {mover.ready for mover in machine.movers} == {200}, "a fifth is left"


def test_nothing_is_allocated_for_a_closed_one(monkeypatch):
    machine = Machine(monkeypatch, 1000 * 25 * 4)
    mover = machine.mover()
    free = kv_copy.free_host
    monkeypatch.setattr(kv_copy, "free_host", lambda: mover.close() or free())  # while a thread looks how much there is
    mover.want(42)
    assert mover.ready == 0 and not mover._pieces


@pytest.mark.gpu
def test_pinned_memory_comes_beside_the_callers_work_and_goes_back():
    pool = KVPool.of([LayerShape(8, 128, 128)] * 4, 5000, torch.bfloat16, "cuda")
    for i in range(4):
        pool.key(i).normal_()
        pool.value(i).normal_()
    mover = KVMover(pool, 100 << 20)
    assert mover.ready == 0
    mover.want(1 << 30)
    deadline = time.monotonic() + 60
    while mover.ready < mover.capacity and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mover.ready == mover.capacity == 100 << 20 >> 14 and all(piece.is_pinned() for piece in mover._pieces)
    before = [(pool.key(i).clone(), pool.value(i).clone()) for i in range(4)]
    source, host, target = np.random.default_rng(0).permutation(5000)[:4500], np.arange(100, 4600), np.arange(4500)[::-1].copy()
    out = mover.out(source, host)
    back = mover.back(host, target)
    back.wait()
    assert out.done() and back.done() and out.seconds > 0
    for i, (key, value) in enumerate(before):
        assert torch.equal(pool.key(i)[target], key[source]) and torch.equal(pool.value(i)[target], value[source])
    pieces = list(mover._pieces)
    del mover
    gc.collect()
    assert not any(piece.is_pinned() for piece in pieces)


@pytest.mark.parametrize("host", [None, "200MB"])
def test_a_model_goes_on_from_what_came_back(tiny_smollm2, host, monkeypatch):
    monkeypatch.setattr("lmc.backend.engine.load.CopyRates.favour_copies", True)  # whatever this machine is faster at
    with lmc.Engine(tiny_smollm2, device="cpu", max_tokens=400, host_memory=host) as engine:
        ask = Gen(SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True))
        chat = engine.submit(None, [Text(("The old lighthouse keeper counted the ships that passed. " * 8,)), ask])
        first = chat.results[0].output().text
        for name in ("river", "forest", "market"):
            engine.submit(None, [Text((f"A {name} is a place where many people met in the morning. " * 12,)), ask]).results[0].output()
        told = engine.submit(chat, [Text((" And then",)), ask]).results[0].output()
        stats = engine.stats()
        engine.check()
    assert isinstance(told.meta, dict)
    if host is not None:
        assert stats["host_hits"] == 1 and stats["host_in"] > 60
        assert told.meta["cached_tokens"] > 80
    # what both say is what an engine says that evicts nothing
    with lmc.Engine(tiny_smollm2, device="cpu", max_tokens=2000) as roomy:
        chat = roomy.submit(None, [Text(("The old lighthouse keeper counted the ships that passed. " * 8,)), ask])
        assert chat.results[0].output().text == first
        assert roomy.submit(chat, [Text((" And then",)), ask]).results[0].output().text == told.text


def test_more_memory_than_there_is_is_refused(tiny_smollm2):
    with pytest.raises(ParameterError, match="host_memory of"):
        lmc.Engine(tiny_smollm2, device="cpu", max_tokens=400, host_memory="900TB")
