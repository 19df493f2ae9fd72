"""Records tiny models for test_ctranslate2_roles.py: as transformers saves them, and as CTranslate2's own converter
writes them.

    python -m tests.models.record_ctranslate2

Each case has `hf/` with the config and weights, and for each type `TYPE/` with the converter's model of these weights
and `TYPE-other/` with one of other weights of the same config. Needs ctranslate2 4.8 and transformers.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import transformers
from tokenizers import Tokenizer, models

GOLDEN = Path(__file__).with_name("golden") / "ctranslate2.zip"
TYPES = ("float32", "int8")
SIZES: dict[str, Any] = {"vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                         "intermediate_size": 12, "max_position_embeddings": 8}  # fmt: skip
# With the special tokens that classes of tokenizers would add.
TOKENS = ("t0", "t1", "t2", "<|endoftext|>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>")
GROUPED = {**SIZES, "num_key_value_heads": 1}
WHISPER = {
    "vocab_size": 12, "d_model": 8, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8,
    "max_source_positions": 6, "max_target_positions": 6, "pad_token_id": 4, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
CASES = {
    "llama": ("LlamaForCausalLM", {**GROUPED, "tie_word_embeddings": False}),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": None, "tie_word_embeddings": False}),
    "qwen2": ("Qwen2ForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 6, "tie_word_embeddings": False}),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": 12,
            "n_embd": 8,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "bert": ("BertModel", {**SIZES, "position_embedding_type": "absolute"}),
}


def saved(name: str, folder: Path, seed: int) -> None:
    """A model of random weights with a tokenizer, as the converter needs one."""
    kind, sizes = CASES[name]
    model_class = getattr(transformers, kind)
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**sizes))
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape) * 20).round() / 64  # few digits, so that the archive is small
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **sizes}))
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="t0"))
    special = {"bos_token": "t1", "eos_token": "t2", "unk_token": "t0"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
        for case in CASES:
            for seed, end in enumerate(("", "-other")):
                folder = Path(name, case, f"hf{end}")
                saved(case, folder, seed)
                for kind in TYPES:
                    converter = ctranslate2.converters.TransformersConverter(str(folder))
                    converter.convert(str(folder.with_name(kind + end)), quantization=kind)
            for path in sorted(Path(name, case).rglob("*")):
                if path.name in ("config.json", "model.safetensors", "model.bin") and "hf-other" not in path.parts:
                    member = zipfile.ZipInfo(str(path.relative_to(name)), (2026, 1, 1, 0, 0, 0))
                    archive.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
