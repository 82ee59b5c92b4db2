"""A GGUF file becomes the checkpoint it was made from: names, shapes, rotary order, tokens."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import convert_gguf as subject

HEADS, KV_HEADS, WIDTH, INNER = 2, 1, 8, 16
HEAD = WIDTH // HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ"]


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """A projection as GGUF stores it: the two halves of each head's rows in turn."""
    rows = [head * HEAD + half * HEAD // 2 + i for head in range(heads) for i in range(HEAD // 2) for half in (0, 1)]
    return weight[rows]


@pytest.fixture(scope="module")
def original() -> dict[str, np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1)
    shapes = {"token_embd": (len(TOKENS), WIDTH), "output_norm": (WIDTH,)}
    shapes |= {"blk.0.attn_q": (WIDTH, WIDTH), "blk.0.attn_k": (KV_HEADS * HEAD, WIDTH)}
    shapes |= {"blk.0.attn_v": (KV_HEADS * HEAD, WIDTH), "blk.0.ffn_down": (WIDTH, INNER)}
    # Eight bits of fraction at most, so that bfloat16 holds every value exactly.
    return {name: numbers.integers(-64, 64, shape).astype(np.float32) / 64 for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, original: dict[str, np.ndarray[Any, Any]]) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(folder / "small.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, 1, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, weight in original.items():
        heads = {"blk.0.attn_q": HEADS, "blk.0.attn_k": KV_HEADS}.get(name)
        writer.add_tensor(f"{name}.weight", interleaved(weight, heads) if heads else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    subject.convert(folder / "small.gguf", folder / "made")
    return folder / "made"


def tensors(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    data = file.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            bits = np.frombuffer(data[8 + size + start : 8 + size + end], dtype=np.uint16).astype(np.uint32) << 16
            found[name] = bits.view(np.float32).reshape(entry["shape"])
    return found


def test_every_weight_comes_back_under_its_name_in_its_order(
    checkpoint: Path, original: dict[str, np.ndarray[Any, Any]]
) -> None:
    found = tensors(checkpoint / "model.safetensors")
    names = {name: subject.hf_name(f"{name}.weight") for name in original}
    assert found.keys() == set(names.values())
    for name, weight in original.items():
        np.testing.assert_array_equal(found[names[name]], weight, err_msg=name)


def test_the_config_says_the_models_shape(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    expected = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}
    assert expected.items() <= config.items()
    assert config["tie_word_embeddings"] is True
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)


def test_the_tokenizer_merges_and_keeps_control_tokens_whole(checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab a<|im_end|>").ids == [1, 5, 6, 3, 2]
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }}"
    assert settings["eos_token"] == "<|im_end|>"
