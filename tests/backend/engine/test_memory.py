"""Free memory: of the machine, and of each group of processes that this one is limited with; allocations that have no room are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lmc.backend.engine import memory
from lmc.errors import ParameterError

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


@pytest.mark.model
@pytest.mark.parametrize("host", [None, "100MB"])
def test_a_closed_engine_holds_no_memory_of_its_model(host):
    import gc

    import torch

    import lmc

    def held() -> int:
        return sum(x.nbytes for x in gc.get_objects() if issubclass(type(x), torch.Tensor))

    @lmc.function
    def hello(s):
        s += "Hello" + lmc.gen("a", max_tokens=2)

    before = held()
    with lmc.Engine("smollm2", max_tokens=500, host_memory=host) as engine:
        if host:
            engine._scheduler._mover.want(100)
        hello.run(backend=engine)["a"]
        assert held() - before > 200 << 20
    assert held() - before < 1 << 20
    assert engine.counters().calls == 1
