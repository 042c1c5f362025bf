"""Free memory: of the machine, and of each group of processes that this one is limited with; allocations that have no room are refused."""

from __future__ import annotations

import platform
import resource
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from lmc.backend.engine import memory
from lmc.errors import ModelLoadError, ParameterError

CPU = SimpleNamespace(type="cpu", __str__=lambda self: "cpu")
MIB = 1 << 20


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Control groups as Linux shows them: `groups(path, limit, used, cached)` in MiB."""
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN", tmp_path / "own")
    monkeypatch.setattr(memory, "_free_of_machine", lambda: 5000 * MIB)
    (tmp_path / "own").write_text("1:cpu:/x\n0::/a/b\n")

    def group(path: str, limit: int | str, used: int, cached: int) -> None:
        folder = tmp_path / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit * MIB if isinstance(limit, int) else limit}\n")
        (folder / "memory.current").write_text(f"{used * MIB}\n")
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cached * MIB}\nactive_file {cached * MIB}\n")

    return group


def free() -> int:
    return memory.free_memory(CPU) // MIB  # type: ignore[arg-type]


def test_without_groups_the_machine_says_what_is_free(groups):
    assert free() == 5000


def test_no_limit_is_none(groups):
    groups("a/b", "max", 300, 0)
    assert free() == 5000


def test_the_tightest_limit_counts_and_cached_files_are_free(groups):
    groups("a/b", 3000, 1000, 100)
    assert free() == 2200
    groups("a", 2000, 1500, 50)
    assert free() == 600
    groups("", 400, 500, 0)  # what a container sees of its own
    assert free() == 0


def test_limits_of_the_first_version_of_groups_count(groups, tmp_path):
    (tmp_path / "own").write_text("9:name=systemd:/\n4:cpu,memory:/a\n0::/\n")
    folder = tmp_path / "memory" / "a"
    folder.mkdir(parents=True)
    for name, said in (("limit_in_bytes", 3000 * MIB), ("usage_in_bytes", 1000 * MIB)):
        (folder / f"memory.{name}").write_text(f"{said}\n")
    (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {100 * MIB}\ntotal_active_file {100 * MIB}\n")
    assert free() == 2200


def test_a_pool_without_room_is_refused_with_what_has(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 << 30)
    memory.check_pool(3 << 20, 1024, CPU)  # type: ignore[arg-type]
    refused = r"KV pool of 3145729 tokens needs 3\.0 GiB, and .* has 3\.0 GiB free: room for max_tokens=3145728"
    with pytest.raises(ParameterError, match=refused):
        memory.check_pool((3 << 20) + 1, 1024, CPU)  # type: ignore[arg-type]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that keeps what was freed")
def test_what_was_freed_goes_back_to_the_system():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // MIB

    blocks = [bytearray(b"x" * 60_000) for _ in range(4000)]
    kept = bytearray(b"x" * 60_000)  # behind them, so that they stay in the heap
    before = resident()
    del blocks[:]
    memory.trim()
    assert before - resident() > 150
    assert kept


KINDS = [
    {}, {"host_memory": "100MB"}, {"drafts": 4}, {"draft_model": "tiny"}, {"adapters": {"sql": "adapter"}}, {"deterministic": True}, {"kv_dtype": "fp8"},
    {"quantization": "fp8"}, {"dtype": "float32"}, {"tp": 3},
]  # fmt: skip
ENDS = [(options, "closed") for options in KINDS] + [(options, "dropped") for options in KINDS if not options or {"draft_model", "tp"} & options.keys()]


@pytest.fixture
def uncollected():
    """No collection comes by chance."""
    import gc

    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.model
@pytest.mark.parametrize(("options", "end"), ENDS, ids=str)
def test_a_closed_engine_has_no_memory_of_its_model(options, end, tiny_smollm2, tmp_path, uncollected):
    import lmc
    from tests.backend.engine.model_fixtures import TensorsMade

    @lmc.function
    def hello(s):
        s += "Hello" + lmc.gen("a", max_tokens=2) + lmc.select("b", ["x", "y"]) + lmc.gen("c", regex="[0-9]{3}")

    if "adapters" in options:
        options = {"adapters": {"sql": _adapter(tiny_smollm2, tmp_path)}}
    elif "draft_model" in options:
        options = {"draft_model": tiny_smollm2}
    made = TensorsMade()
    engine = lmc.Engine(tiny_smollm2, device="cpu", max_tokens=500, **options)
    if "host_memory" in options:
        engine._scheduler._mover.want(100)
    state, core = hello.run(backend=engine), engine._core
    state.sync()
    assert made.look() > 7 << 20
    if end == "closed":
        engine.close()
        assert engine.counters().calls == 3
        assert engine.stats()["slots"] == engine.server_info()["max_tokens"] == 500
        engine.flush_cache()
        engine.check()
        engine.warm_up()
    else:
        text = state.text()
        del engine, state
        core._thread.join(60)
        assert text
    assert made.alive == 0


def _adapter(folder: str, where: Path) -> str:
    from safetensors.torch import load_file

    from tests.backend.engine import adapters

    return str(adapters.write(where / "sql", load_file(f"{folder}/model.safetensors"), (0, 1)))


@pytest.mark.model
def test_a_closed_engine_that_sees_has_no_tower(tmp_path, uncollected):
    from tests.backend.engine.model_fixtures import TensorsMade
    from tests.backend.engine.seeing import ASK, PROMPTS, Pair

    pair, made = Pair(tmp_path), TensorsMade()
    engine = pair.engine()
    results = [engine.submit(None, [*prompt, ASK]).results[0].output() for prompt in PROMPTS]
    assert made.look() > 1 << 20
    engine.close()
    assert made.alive == 0
    assert engine.counters().images > 0 and engine.capabilities.images and all(results)


# -- when it runs out --------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_what_runs_out_of_memory_says_what_there_is_who_has_it_and_what_to_do(monkeypatch):
    monkeypatch.setattr(memory, "_OPEN", weakref.WeakKeyDictionary())
    monkeypatch.setattr(memory, "free_memory", lambda device: 3 << 30)

    class Open:
        """An engine of this process."""

    first, second = Open(), Open()
    memory.opened(first, "a on cpu")
    memory.opened(second, "b on cpu")
    refused = r"too little memory for its KV pool of 2\.0 GiB: cpu has 3\.0 GiB free without; no room; .* this process has open a on cpu, b on cpu; close\(\)"
    with pytest.raises(ModelLoadError, match=refused), memory.room_for("model", "its KV pool", "cpu", 2 << 30):
        raise MemoryError("no room")
    memory.closed(first)
    del second
    with pytest.raises(ModelLoadError, match=r"for its weights: .* or free memory$"), memory.room_for("model", "its weights", "cpu"):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)")
    with pytest.raises(RuntimeError, match="a fault"), memory.room_for("model", "its weights", "cpu"):
        raise RuntimeError("a fault")


@pytest.mark.model
@pytest.mark.parametrize("place", ["lmc.backend.engine.kv_pool.KVPool.of", "lmc.backend.local_model._runner", "lmc.backend.engine.memory.check_pool"])
def test_an_engine_that_does_not_fit_keeps_nothing_of_what_did(place, tiny_smollm2, monkeypatch, uncollected):
    """Who keeps the error, as a notebook does, keeps no tensor; what is open is named."""
    import torch

    import lmc
    from tests.backend.engine.model_fixtures import TensorsMade

    with lmc.Engine(tiny_smollm2, device="cpu", max_tokens=500):
        made = TensorsMade()

        def full(*_):
            assert made.look() > 5 << 20  # the weights
            if place.endswith("check_pool"):
                raise ParameterError("no pool")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

        monkeypatch.setattr(place, full)
        with pytest.raises(lmc.LmcError) as found:
            lmc.Engine(tiny_smollm2, device="cpu", max_tokens=500)
        assert made.alive == 0
        if not place.endswith("check_pool"):
            assert isinstance(found.value, ModelLoadError)
            assert "Tried to allocate 2.00 GiB; take a smaller" in found.value.message and "this process has open" in found.value.message
