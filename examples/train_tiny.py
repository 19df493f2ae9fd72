"""Trains a small Llama on the sources of Python's standard library, to have one whose weights were learnt.

    python examples/train_tiny.py tiny-llama [--steps 1000]

Takes torch, transformers and tokenizers, and time by the steps; the loss is shown as it falls. A hundred steps teach it
no more than how frequent each token is (a loss near 6), which tells types of 8 bits and of 2 apart by KL alone.
The folder is one as Hugging Face has them: `wb convert` and `wb quantize` read it. Every twentieth module is kept from
it, and lies in the folder as heldout.txt:

    python benchmarks/quantize_quality.py tiny-llama tiny-llama/heldout.txt

4.2 million weights in rows of 256 and 768, which every type of ggml takes. The same steps, versions and processor give
the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import torch

VOCABULARY: Final = 2048
CONTEXT: Final = 512
BATCH: Final = 4
RATE: Final = 2e-3
END: Final = "<|endoftext|>"
HELD_OUT: Final = 20  # one module of so many
TRAINING_BYTES: Final = 4_000_000
HELD_OUT_BYTES: Final = 300_000
SHAPE: Final = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2 * CONTEXT,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


class Texts(NamedTuple):
    """Modules to train on, and others that the model never sees."""

    training: list[str]
    held_out: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    loss = make(args.folder, args.steps)
    print(f"{args.folder}: loss {loss:.3f} nats a token after {args.steps} steps")
    return 0


def make(folder: Path, steps: int, most: int = TRAINING_BYTES) -> float:
    """The folder of a model trained so many steps, on at most so many bytes; the loss of its last step."""
    import torch

    torch.manual_seed(0)
    texts = standard_library(most)
    tokenizer = tokenizer_of(texts.training)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heldout.txt").write_text("".join(texts.held_out), encoding="utf-8")
    tokenizer.save_pretrained(folder)
    modules = tokenizer(texts.training, verbose=False)["input_ids"]
    ids = torch.tensor([token for module in modules for token in (*module, tokenizer.eos_token_id)])
    model = new_model(tokenizer)
    loss = train(model, ids, steps)
    model.save_pretrained(folder)
    return loss


def standard_library(most: int) -> Texts:
    """Its modules, in an order and a division that follow from their names."""
    root = Path(sysconfig.get_path("stdlib"))
    files = (p for p in root.rglob("*.py") if not {"site-packages", "test", "tests"} & set(p.parts))
    ranked = sorted((hashlib.sha256(p.relative_to(root).as_posix().encode()).digest(), p) for p in files)
    kept = [p for rank, p in ranked if rank[0] % HELD_OUT]
    held = [p for rank, p in ranked if not rank[0] % HELD_OUT]
    return Texts(list(read(kept, most)), list(read(held, HELD_OUT_BYTES)))


def read(files: list[Path], most: int) -> Iterator[str]:
    """Their texts, until so many characters have been given; empty ones aren't."""
    for path in files:
        text = path.read_text(encoding="utf-8", errors="ignore")[:most]
        most -= len(text)
        if text:
            yield text


def tokenizer_of(texts: list[str]) -> Any:
    """Byte-level BPE, as GPT-2 splits text, trained on these."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=END, eos_token=END)


def new_model(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**SHAPE, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    return LlamaForCausalLM(config)


def train(model: Any, ids: torch.Tensor, steps: int) -> float:
    """AdamW on random pieces of the text, the rate rising over the first steps and falling along a cosine."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=max(steps, 2), pct_start=0.1)
    began, loss = time.monotonic(), float("nan")
    for step in range(steps):
        starts = torch.randint(len(ids) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([ids[at : at + CONTEXT] for at in starts])
        error = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        error.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        loss = error.item()
        if step % 10 == 9:
            print(f"step {step + 1} of {steps}: loss {loss:.3f}, {time.monotonic() - began:.0f} s", flush=True)
    return loss


if __name__ == "__main__":
    raise SystemExit(main())
