"""Writes a GGUF file of the llama family as a Hugging Face checkpoint: `convert_gguf.py FILE DIRECTORY`."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}


def convert(source: Path, directory: Path) -> None:
    """Makes the directory and in it config, weights (bfloat16), tokenizer and chat template."""
    reader = gguf.GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    directory.mkdir(parents=True)
    tensors = {hf_name(tensor.name): weights(tensor, fields) for tensor in reader.tensors}
    write_safetensors(tensors, directory / "model.safetensors")
    special = {f"{name}_token_id": fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    special["pad_token_id"] = fields["tokenizer.ggml.padding_token_id"]
    write_json({**config(fields, tied="lm_head.weight" not in tensors), **special}, directory / "config.json")
    write_json(special, directory / "generation_config.json")
    write_tokenizer(fields, special, directory)


def hf_name(name: str) -> str:
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def weights(tensor: Any, fields: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """A tensor as bfloat16 bit patterns, rounded to nearest even, in Hugging Face's order of rows."""
    full = dequantize(tensor.data, tensor.tensor_type).reshape([int(size) for size in tensor.shape][::-1])
    part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
    if part in HEADS:
        # GGUF interleaves the two halves that the rotary embedding turns in each head.
        full = full.reshape(fields[HEADS[part]], -1, 2, full.shape[1]).swapaxes(1, 2).reshape(full.shape)
    bits = np.ascontiguousarray(full, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_safetensors(tensors: dict[str, np.ndarray[Any, Any]], file: Path) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, bits in tensors.items():
        start, end = end, end + bits.nbytes
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as handle:
        handle.write(struct.pack("<Q", len(text)) + text)
        for bits in tensors.values():
            handle.write(bits.tobytes())


def config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        # Stored as a 32-bit float, which is not the 1e-05 it came from.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": fields["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def write_tokenizer(fields: dict[str, Any], special: dict[str, int], directory: Path) -> None:
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(tokens)}, merges=merges))
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [text for text, kind in kinds if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name.removesuffix("_id"): tokens[number] for name, number in special.items()},
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }
    write_json(settings, directory / "tokenizer_config.json")


def write_json(content: Any, file: Path) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
