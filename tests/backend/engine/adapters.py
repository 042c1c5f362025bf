"""LoRA adapters for tests, in PEFT's format, and what they mean: the same model with the products added to its weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def module_of(target: str) -> str:
    return f"{'self_attn' if target in ATTENTION else 'mlp'}.{target}"


def write(
    path: Path, weights: Mapping[str, Any], layers: Sequence[int], targets: Sequence[str] = (*ATTENTION, *MLP), *, rank: int = 4, alpha: float = 12,
    seed: int = 0,
    size: float = 0.3, **config: Any,
) -> Path:  # fmt: skip
    """A random adapter of a model with these weights, by transformers' names."""
    import torch
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    said = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none", **config}
    (path / "adapter_config.json").write_text(json.dumps(said))
    generator, state = torch.Generator().manual_seed(seed), {}
    for layer in layers:
        for target in targets:
            rows, columns = weights[f"model.layers.{layer}.{module_of(target)}.weight"].shape
            name = f"base_model.model.model.layers.{layer}.{module_of(target)}.lora_"
            state[f"{name}A.weight"] = torch.randn(rank, columns, generator=generator) * size / math.sqrt(columns)
            state[f"{name}B.weight"] = torch.randn(rows, rank, generator=generator) * size
    save_file(state, path / "adapter_model.safetensors")
    return path


def merged(model: Any, path: Path) -> Any:
    """A copy of a transformers model with an adapter's products in its weights."""
    import copy

    import torch
    from safetensors.torch import load_file

    model, config, state = copy.deepcopy(model), json.loads((path / "adapter_config.json").read_text()), load_file(path / "adapter_model.safetensors")
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name in state:
            if name.endswith("lora_A.weight"):
                target = name.removeprefix("base_model.model.").replace("lora_A.weight", "weight")
                own[target] += scale * state[name.replace("lora_A", "lora_B")] @ state[name]
    return model
