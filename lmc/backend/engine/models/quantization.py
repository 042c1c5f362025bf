"""Quantization declared by checkpoints, and the supported kinds: FP8 by compressed-tensors and by ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmc.errors import ModelLoadError

_REMEDY = "take the unquantized weights, an FP8 checkpoint with a scale for each channel or tensor (compressed-tensors, ModelOpt), or a GGUF"


def is_fp8(raw: Mapping[str, Any], where: str) -> bool:
    """Return whether the matrices of a checkpoint with this configuration are e4m3 with scales, one for all or one per
    output.

    Activations are quantized by row at run time, which is finer than what a checkpoint may have been calibrated for.
    False without a quantization. Raises ModelLoadError for another one.
    """
    said = raw.get("quantization_config")
    if not said:
        return False
    if not isinstance(said, Mapping):
        raise ModelLoadError(f"{where}: quantization_config is {said!r:.60}; expected an object; download it again")
    method = said.get("quant_method")
    if method == "compressed-tensors":
        return _compressed_tensors(said, where)
    if method == "modelopt":
        if (algorithm := said.get("quant_algo")) in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN"):
            return True
        raise ModelLoadError(f"{where}: ModelOpt's {algorithm} is not supported; {_REMEDY}")
    raise ModelLoadError(f"{where}: weights quantized by {method!r:.40} are not supported; {_REMEDY}")


def _compressed_tensors(said: Mapping[str, Any], where: str) -> bool:
    if said.get("transform_config"):
        raise ModelLoadError(f"{where}: weights that need rotated activations (transform_config) are not supported; {_REMEDY}")
    groups = said.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ModelLoadError(f"{where}: quantization_config has no config_groups; download it again")
    for name, group in groups.items():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise ModelLoadError(f"{where}: quantization_config.config_groups.{name} quantizes no weights; {_REMEDY}")
        kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
        if (kind, bits) != ("float", 8) or strategy not in ("channel", "tensor") or weights.get("symmetric") is False:
            raise ModelLoadError(f"{where}: {bits}-bit {kind} weights with a scale for each {strategy} are not supported; {_REMEDY}")
    return True


def of_modelopt(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return ModelOpt's separate configuration (`hf_quant_config.json`) in the form in which later versions embed
    it."""
    said = raw.get("quantization")
    return {"quant_method": "modelopt", "quant_algo": said.get("quant_algo") if isinstance(said, Mapping) else None}
