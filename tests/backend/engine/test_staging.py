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
        _stage=SimpleNamespace(send=step("send")), _begun=SimpleNamespace(record=step("begins")), _fused=SimpleNamespace(logits=step("logits")),
    )  # fmt: skip
    captured = SimpleNamespace(graph=SimpleNamespace(replay=step("replay")), hidden=torch.zeros(8, 4))
    monkeypatch.setattr(runner, "_capture", lambda rows, wide, adapted: done.append("capture") or captured)
    monkeypatch.setattr(runner, "_fill", step("fill"))
    monkeypatch.setattr("lmc.backend.engine.cuda_runner.put", step("put"))
    layout: Any = SimpleNamespace(wanted=[0, 1, 2], adapters=None)
    plan: Any = SimpleNamespace(wide=np.zeros((0, 8)))
    for _ in range(2):
        runner._replay(3, layout, plan, 8)
    each = ["fill", "put", "begins", "send", "record", "replay", "logits"]
    assert done == ["wait", "capture", *each, "wait", *each]
