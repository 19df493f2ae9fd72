"""Trains the small models of quality.toml on the documentation that is installed: their weights have structure.

    python benchmarks/trained_models.py OUT texts
    python benchmarks/trained_models.py OUT NAME [--seconds 1800] [--dense FOLDER]

`texts` writes OUT/train.txt, calibration.txt and heldout.txt: manual pages, and the docs, licences and docstrings of
Python packages. A paragraph is in one of the three, all with equal letters in the same one. Models are trained on
train.txt by Muon (matrices of layers) and AdamW, in one thread, for SECONDS of the processor; OUT/NAME is then a folder
like published ones. Some start from a Llama, --dense FOLDER.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "benchmarks" / "quality.toml"
#: Tokens of a sequence, and sequences of a step.
CONTEXT, BATCH = 512, 2
#: Of 64 paragraphs, those of each text; the others are for training.
SHARES: Final = {"calibration": range(2), "heldout": range(2, 4)}
#: A shorter paragraph is a heading or a boilerplate line.
LEAST: Final = 120
MANUALS: Final = Path("/usr/share/man")
ROFF: Final = (
    (r"\\f[BIPR1-4]|\\f\(..|\\&|\\[|^/]", ""),
    (r"\\-|\\\(en", "-"),
    (r"\\\(aq|\\\(cq", "'"),
    (r"\\e", r"\\"),
)


def manual(path: Path) -> str:
    """The text of a manual page: lines of text, and arguments of macros that format words."""
    lines = []
    for line in gzip.decompress(path.read_bytes()).decode("utf-8", "replace").splitlines():
        macro = re.match(r"[.'](\w*)\s*(.*)", line)
        if macro is None:
            lines.append(line)
        elif macro[1] in ("B", "I", "BR", "IR", "RB", "BI", "SH", "SS"):
            lines.append(macro[2].replace('"', ""))
        elif macro[1] in ("PP", "P", "LP", "sp", "TP", "IP"):
            lines.append("")
    text = "\n".join(lines)
    for pattern, replacement in ROFF:
        text = re.sub(pattern, replacement, text)
    return text


def docstrings(path: Path) -> str:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(filter(None, found))


def documents() -> Iterator[str]:
    for section in "1578":
        yield from map(manual, sorted((MANUALS / f"man{section}").glob("*.gz")))
    site = Path(next(p for p in sys.path if p.endswith("site-packages")))
    for path in sorted(site.rglob("*")):
        if path.suffix in (".rst", ".md") or path.name.startswith(("LICENSE", "METADATA")):
            yield path.read_text("utf-8", "replace") if path.is_file() else ""
        elif path.suffix == ".py" and path.stat().st_size > 8192:
            yield docstrings(path)


def write_texts(out: Path) -> None:
    """Each paragraph once. What it is for depends on its letters alone, so equal paragraphs never are in two texts."""
    texts: dict[str, list[str]] = {"train": [], **{name: [] for name in SHARES}}
    seen = set()
    for document in documents():
        for paragraph in re.split(r"\n\s*\n", document):
            letters = re.sub(r"[^a-z]", "", paragraph.lower()).encode()
            digest = hashlib.sha256(letters).digest()
            if len(letters) < LEAST or len(letters) < len(paragraph) / 2 or digest in seen:
                continue
            seen.add(digest)
            name = next((name for name, share in SHARES.items() if digest[0] % 64 in share), "train")
            texts[name].append(paragraph.strip("\n"))
    for name, paragraphs in texts.items():
        (out / f"{name}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
        print(f"{name}: {len(paragraphs):,} paragraphs, {sum(map(len, paragraphs)):,} characters")


def learn_tokenizer(out: Path, vocabulary: int) -> None:
    """Byte-level BPE with Qwen 2's pre-tokenizer, learned from a part of the training text; the tokens of that text."""
    import numpy as np
    from tests.oracles.vocabularies import QWEN_PATTERN
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - 1, initial_alphabet=alphabet, show_progress=False)
    paragraphs = (out / "train.txt").read_text("utf-8").split("\n\n")
    tokenizer.train_from_iterator(paragraphs[::16], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"eos_token": "<|endoftext|>"})
    fast.save_pretrained(out / "tokenizer")
    config = json.loads((out / "tokenizer" / "tokenizer_config.json").read_text())
    (out / "tokenizer" / "tokenizer_config.json").write_text(
        json.dumps({**config, "tokenizer_class": "Qwen2Tokenizer"})
    )
    ids = [np.array(tokenizer.encode(paragraph + "\n\n").ids, np.uint16) for paragraph in paragraphs[::3]]
    np.save(out / "train.npy", np.concatenate(ids))


def orthogonal(update: Any) -> Any:
    """The nearest orthogonal matrix, by five Newton-Schulz steps (K. Jordan, Muon)."""
    x = update / (update.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    for _ in range(5):
        product = x @ x.mT
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
    return x.mT if flip else x


class Muon:
    """Momentum, made orthogonal. Matrices of experts are the last two axes."""

    def __init__(self, parameters: list[Any], decay: float = 0.05) -> None:
        import torch

        self.parameters, self.decay = parameters, decay
        self.momenta = [torch.zeros_like(p) for p in parameters]

    def step(self, rate: float) -> None:
        for parameter, momentum in zip(self.parameters, self.momenta, strict=True):
            momentum.lerp_(parameter.grad, 0.05)
            update = orthogonal(parameter.grad.lerp(momentum, 0.95))
            scale = max(1, parameter.shape[-2] / parameter.shape[-1]) ** 0.5
            parameter.mul_(1 - rate * self.decay).add_(update, alpha=-rate * scale)
            parameter.grad = None


def untrained(recipe: dict[str, Any]) -> Any:
    import torch
    import transformers

    torch.manual_seed(1)
    config = getattr(transformers, recipe["class"] + "Config")(**recipe["config"])
    model = getattr(transformers, recipe["class"] + "ForCausalLM")(config).float()
    if outliers := recipe.get("outliers"):
        for name, parameter in model.named_parameters():
            if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
                channels = torch.randperm(len(parameter))[: outliers["channels"]]
                parameter.data[channels] = outliers["factor"]
    return model


def upcycled(dense: Any, recipe: dict[str, Any]) -> Any:
    """A Mixtral whose experts are copies of a Llama's network with noise, for further training."""
    import torch
    import transformers

    torch.manual_seed(1)
    settings = {k: v for k, v in dense.config.to_dict().items() if k not in ("architectures", "model_type")}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**(settings | recipe["config"]))).float()
    weights = dense.state_dict()
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.data.copy_(weights[name])
            continue
        head, _, tail = name.partition(".mlp.")
        parts = {"experts.gate_up_proj": ("gate_proj", "up_proj"), "experts.down_proj": ("down_proj",)}.get(tail)
        if parts is not None:
            network = torch.cat([weights[f"{head}.mlp.{part}.weight"] for part in parts])
            parameter.data.copy_(network.expand_as(parameter))
            parameter.data += torch.randn_like(parameter) * network.std() * recipe["noise"]
    return model


def with_outliers(model: Any, channels: int, factor: float) -> Any:
    """The same function of a Llama with channels of large activations: some weights of norms, and rows of `up`, times a
    power of two, and the columns that they meet divided by it."""
    import torch

    random = torch.Generator().manual_seed(1)

    def plant(source: Any, *readers: Any) -> None:
        chosen = torch.randperm(len(source.weight), generator=random)[:channels]
        source.weight.data[chosen] *= factor
        for reader in readers:
            reader.weight.data[:, chosen] /= factor

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        plant(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
        plant(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)
        plant(mlp.up_proj, mlp.down_proj)
    plant(model.model.norm, model.lm_head)
    return model


def tokens_of(out: Path, folder: Path) -> Any:
    """The tokens of a part of the training text, by the tokenizer.model of a folder."""
    import numpy as np
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    paragraphs = (out / "train.txt").read_text("utf-8").split("\n\n")[::24]
    return np.concatenate([processor.encode(paragraph + "\n\n") for paragraph in paragraphs])


def optimize(model: Any, ids: Any, recipe: dict[str, Any], seconds: float) -> None:
    """Trains for some seconds of the processor; the rates fall to zero over the second half."""
    import numpy as np
    import torch

    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and "layers." in n and ".gate.weight" not in n]
    ours = {id(p) for p in matrices}
    muon, others = Muon(matrices), [p for p in model.parameters() if id(p) not in ours]
    adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    random, begun, step, losses = np.random.default_rng(1), time.process_time(), 0, []
    while (part := (time.process_time() - begun) / seconds) < 1:
        starts = random.integers(0, len(ids) - CONTEXT, BATCH)
        batch = torch.from_numpy(np.stack([ids[at : at + CONTEXT] for at in starts]))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, **recipe.get("call", {})).loss
        loss.backward()
        rate = recipe["rate"] * min(1.0, (step + 1) / 20) * min(1.0, (1 - part) / 0.5)
        for group in adam.param_groups:
            group["lr"] = rate / 5
        adam.step()
        adam.zero_grad()
        with torch.no_grad():
            muon.step(rate)
        losses.append(loss.item())
        step += 1
        if step % 20 == 0:
            spent = time.process_time() - begun
            print(f"{step} steps, {spent:.0f} s, loss {np.mean(losses[-20:]):.3f}", flush=True)


def train(out: Path, name: str, seconds: float, dense: Path | None) -> None:
    import numpy as np
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    recipe = tomllib.loads(TABLE.read_text("utf-8"))["trained"][name]
    if recipe["start"] == "random":
        model, tokenizer = untrained(recipe), out / "tokenizer"
        optimize(model, np.load(out / "train.npy").astype(np.int64), recipe, seconds)
    elif dense is None:
        raise SystemExit(f"{name} starts from a Llama: --dense FOLDER")
    else:
        model, tokenizer = LlamaForCausalLM.from_pretrained(dense, dtype=torch.float32), dense
        if recipe["start"] == "experts":
            model = upcycled(model, recipe)
            optimize(model, tokens_of(out, dense), recipe, seconds)
        else:
            model = with_outliers(model, **recipe["outliers"])
    model.to(torch.bfloat16).save_pretrained(out / name)
    for file in tokenizer.glob("tokenizer*"):
        shutil.copyfile(file, out / name / file.name)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--dense", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(ROOT))
    if given.name == "texts":
        write_texts(given.out)
        learn_tokenizer(given.out, tomllib.loads(TABLE.read_text("utf-8"))["vocabulary"])
    else:
        train(given.out, given.name, given.seconds, given.dense)


if __name__ == "__main__":
    main()
