"""The small model as a folder that servers read: `python -m tests.api.small_model FOLDER`. Needs torch, safetensors and the model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\n' }}{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}{{ 'Tools:' }}
{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}{{ '\nWrite <tool_call>{"name": …, "arguments": …}</tool_call> to call one.<|im_end|>\n' }}
{%- elif messages[0]['role'] == 'system' %}{{ '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' + (message['content'] or '') }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif message['role'] != 'system' %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""ChatML with tools in Hermes's form, which the model's own template lacks: `tools.jinja` in the folder."""


def write(folder: Path) -> None:
    """Weights as float32, tokenizer and configuration as transformers has them."""
    from safetensors.torch import save_file

    from lmc.backend.engine import gguf_tokenizer
    from lmc.backend.engine.models import gguf, gguf_model

    path = gguf.embedded_path()
    file = gguf.read(path)
    config = gguf_model.config_of(file)
    state = {name: tensor.float().contiguous() for name, tensor in gguf_model.state_of(file, config).items()}
    words = gguf_tokenizer.from_gguf(file.metadata, str(path))
    said = {name.removeprefix("llama."): value for name, value in file.metadata.items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, str(folder / "model.safetensors"), metadata={"format": "pt"})
    words.raw.save(str(folder / "tokenizer.json"))
    _json(folder / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "hidden_act": "silu", "attention_bias": False,
        "hidden_size": said["embedding_length"], "intermediate_size": said["feed_forward_length"], "num_hidden_layers": said["block_count"],
        "num_attention_heads": said["attention.head_count"], "num_key_value_heads": said["attention.head_count_kv"],
        "rms_norm_eps": float(said["attention.layer_norm_rms_epsilon"]), "rope_theta": float(said["rope.freq_base"]),
        "max_position_embeddings": said["context_length"], "vocab_size": len(said["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": "lm_head.weight" not in state,
        "bos_token_id": said["tokenizer.ggml.bos_token_id"], "eos_token_id": said["tokenizer.ggml.eos_token_id"],
    })  # fmt: skip
    spell = said["tokenizer.ggml.tokens"].__getitem__
    _json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": said["tokenizer.chat_template"], "model_max_length": said["context_length"],
        "bos_token": spell(said["tokenizer.ggml.bos_token_id"]), "eos_token": spell(said["tokenizer.ggml.eos_token_id"]),
        "pad_token": spell(said["tokenizer.ggml.padding_token_id"]),
    })  # fmt: skip
    (folder / "tools.jinja").write_text(TEMPLATE, encoding="utf-8")


def _json(path: Path, data: object) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
