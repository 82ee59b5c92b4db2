"""Weightless checkpoints for `--load-format dummy`: a dense 8B, a 7B with an MTP layer, DSpark drafters for the 8B.

    python3 benchmarks/gpu/checkpoints.py DIRECTORY

The tokenizer has one token a byte, so a prompt has about five tokens a word.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCABULARY = 151936
TAPPED = [1, 9, 17, 25, 33]
COMMON = {
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 1,
}


def drafter(block: int) -> dict[str, Any]:
    return {
        **COMMON,
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 5,
        "intermediate_size": 12288,
        "attention_bias": False,
        "markov_rank": 256,
        "block_size": block,
        "mask_token_id": VOCABULARY - 2,
        "target_layer_ids": TAPPED,
        "num_target_layers": 36,
        "dflash_config": {"mask_token_id": VOCABULARY - 2, "target_layer_ids": TAPPED},
    }


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "dense8b": {
        **COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "intermediate_size": 12288,
        "attention_bias": False,
    },
    "mtp7b": {
        **COMMON,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 36,
        "intermediate_size": 11008,
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
    },
    "dspark3": drafter(3),
    "dspark7": drafter(7),
}


def main(out: Path) -> None:
    # Bytes first, so that any tokenizer class reads it; the rest fills the vocabulary, so that any id has a text.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"t{number}" for number in range(len(alphabet), VOCABULARY))]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": f"t{VOCABULARY - 1}",
        "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    }
    for name, config in CHECKPOINTS.items():
        place = out / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(config, indent=1))
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        (place / "generation_config.json").write_text("{}")
        tokenizer.save(str(place / "tokenizer.json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
