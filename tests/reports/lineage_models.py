"""Models of known descent: a base, what is made from it by training and by our own commands, and strangers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.reports.lineage.model import LineageReport
from weighbridge.reports.lineage.words import WORDS

Arrays = dict[str, np.ndarray]
LAYERS, WIDTH, INNER = 4, 256, 512
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 80,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
BF16 = ml_dtypes.bfloat16


class Descent(NamedTuple):
    """`kind`: the expected relation to each parent."""

    kind: str
    parents: tuple[str, ...] = ()


def shapes(layers: int = LAYERS, inner: int = INNER) -> dict[str, tuple[int, ...]]:
    rows: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (80, WIDTH), "lm_head.weight": (80, WIDTH)}
    rows["model.norm.weight"] = (WIDTH,)
    for layer in range(layers):
        p = f"model.layers.{layer}."
        rows |= {p + f"{x}.weight": (WIDTH,) for x in ("input_layernorm", "post_attention_layernorm")}
        rows |= {p + f"self_attn.{x}_proj.weight": (WIDTH, WIDTH) for x in "qo"}
        rows |= {p + f"self_attn.{x}_proj.weight": (WIDTH // 2, WIDTH) for x in "kv"}
        rows |= {p + f"mlp.{x}_proj.weight": (inner, WIDTH) for x in ("gate", "up")}
        rows[p + "mlp.down_proj.weight"] = (WIDTH, inner)
    return rows


def random_model(seed: int, **sizes: int) -> Arrays:
    rng = np.random.default_rng(seed)
    found = {}
    for name, shape in shapes(**sizes).items():
        values = rng.normal(0, 0.1, shape) if len(shape) > 1 else rng.normal(1, 0.1, shape)
        found[name] = values.astype(np.float32)
    return found


def stored(arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {name: values.astype(BF16) for name, values in arrays.items()}


def wide(arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {name: values.astype(np.float32) for name, values in arrays.items()}


def trained(arrays: Arrays, seed: int, steps: int, rate: float) -> Arrays:
    """A few steps of AdamW on random tokens, in F32 as usual, stored in BF16."""
    import torch

    torch.manual_seed(seed)
    weights = {name: torch.from_numpy(values).requires_grad_() for name, values in wide(arrays).items()}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=rate)
    for _ in range(steps):
        tokens = torch.randint(0, 80, (2, 24))
        logits = _logits(weights, tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return stored({name: value.detach().numpy() for name, value in weights.items()})


def _logits(weights: Mapping[str, Any], tokens: Any) -> Any:
    """The forward pass of a Llama without positions."""
    from torch.nn import functional as f

    def norm(x: Any, name: str) -> Any:
        return f.rms_norm(x, (WIDTH,), weights[f"{name}.weight"])

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (-1, WIDTH // 8)).transpose(1, 2)

    hidden = weights["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        part = {name[len(p) : -len("_proj.weight")]: value for name, value in weights.items() if name.startswith(p)}
        x = norm(hidden, f"{p}input_layernorm")
        q, k, v = (heads(x @ part[f"self_attn.{name}"].T) for name in "qkv")
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        hidden = hidden + mixed.transpose(1, 2).flatten(2) @ part["self_attn.o"].T
        x = norm(hidden, f"{p}post_attention_layernorm")
        hidden = hidden + (f.silu(x @ part["mlp.gate"].T) * (x @ part["mlp.up"].T)) @ part["mlp.down"].T
    return norm(hidden, "model.norm") @ weights["lm_head.weight"].T


def with_lora(arrays: Arrays, seed: int, rank: int, targets: str, scale: float = 0.05) -> Arrays:
    rng, found = np.random.default_rng(seed), wide(arrays)
    for name, values in found.items():
        if values.ndim == 2 and any(f".{target}_proj." in name for target in targets.split()):
            rows, columns = values.shape
            change = rng.normal(0, scale, (rows, rank)) @ rng.normal(0, scale, (rank, columns))
            found[name] = values + change.astype(np.float32)
    return stored(found)


def permuted(arrays: Arrays, seed: int) -> Arrays:
    """The same function: the hidden units of each feed-forward part in another order."""
    rng, found = np.random.default_rng(seed), dict(arrays)
    for layer in range(LAYERS):
        order, p = rng.permutation(INNER), f"model.layers.{layer}.mlp."
        for name in ("gate_proj", "up_proj"):
            found[f"{p}{name}.weight"] = arrays[f"{p}{name}.weight"][order]
        found[f"{p}down_proj.weight"] = arrays[f"{p}down_proj.weight"][:, order]
    return found


def narrowed(arrays: Arrays, inner: int) -> Arrays:
    """Hidden units removed: those with the smallest norms, as structured pruning does."""
    found = dict(arrays)
    for layer in range(LAYERS):
        p = f"model.layers.{layer}.mlp."
        norms = np.linalg.norm(arrays[f"{p}up_proj.weight"].astype(np.float32), axis=1)
        kept = np.sort(np.argsort(-norms)[:inner])
        for name in ("gate_proj", "up_proj"):
            found[f"{p}{name}.weight"] = arrays[f"{p}{name}.weight"][kept]
        found[f"{p}down_proj.weight"] = arrays[f"{p}down_proj.weight"][:, kept]
    return found


def folder(path: Path, arrays: Arrays, **config: Any) -> None:
    make_folder(path, {**CONFIG, **config}, arrays, words=True)


def _models(*parts: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"model": name, "parameters": {"weight": weight}} for name, weight in parts]


def _slices(*parts: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"sources": [{"model": name, "layer_range": [lo, hi]}]} for name, lo, hi in parts]


#: By name: a recipe of `wb merge`, and the descent.
RECIPES: Mapping[str, tuple[dict[str, Any], Descent]] = {
    "linear": (
        {"merge_method": "linear", "models": _models(("tuned", 0.6), ("tuned-long", 0.4))},
        Descent("merged", ("tuned", "tuned-long")),
    ),
    "souped": (
        {"merge_method": "linear", "models": _models(("tuned", 1), ("tuned-long", 1), ("lora", 1))},
        Descent("merged", ("tuned", "tuned-long", "lora")),
    ),
    "task": (
        {"merge_method": "task_arithmetic", "base_model": "base",
         "models": _models(("tuned", 0.7), ("tuned-long", 0.5))},
        Descent("merged", ("base", "tuned", "tuned-long")),
    ),
    "beyond": (
        {"merge_method": "task_arithmetic", "base_model": "base", "models": _models(("tuned-long", 1.5))},
        Descent("merged", ("base", "tuned-long")),
    ),
    "slerped": (
        {"merge_method": "slerp", "base_model": "tuned", "models": [{"model": "tuned"}, {"model": "tuned-long"}],
         "parameters": {"t": 0.35}},
        Descent("merged", ("tuned", "tuned-long")),
    ),
    "slerped-by-layer": (
        {"merge_method": "slerp", "base_model": "tuned", "models": [{"model": "tuned"}, {"model": "tuned-long"}],
         "parameters": {"t": [{"filter": "self_attn", "value": [0, 0.5, 0.3, 0.7, 1]},
                              {"filter": "mlp", "value": [1, 0.5, 0.7, 0.3, 0]}, {"value": 0.5}]}},
        Descent("merged", ("tuned", "tuned-long")),
    ),
    "stock": (
        {"merge_method": "model_stock", "base_model": "base", "models": [{"model": "tuned"}, {"model": "tuned-twice"}]},
        Descent("merged", ("base", "tuned", "tuned-twice")),
    ),
    "karcher": (
        {"merge_method": "karcher", "models": [{"model": n} for n in ("tuned", "tuned-long", "lora-all")]},
        Descent("merged", ("tuned", "tuned-long", "lora-all")),
    ),
    "ties": (
        {"merge_method": "ties", "base_model": "base", "models": _models(("tuned", 0.7), ("tuned-long", 0.4)),
         "parameters": {"density": 0.4}},
        Descent("merged", ("base", "tuned", "tuned-long")),
    ),
    "dare-ties": (
        {"merge_method": "dare_ties", "base_model": "base", "models": _models(("tuned", 0.6), ("tuned-long", 0.5)),
         "parameters": {"density": 0.5}},
        Descent("merged", ("base", "tuned", "tuned-long")),
    ),
    "della-linear": (
        {"merge_method": "della_linear", "base_model": "base",
         "models": _models(("tuned", 0.4), ("tuned-long", 0.6), ("lora-all", 0.5)), "parameters": {"density": 0.6}},
        Descent("merged", ("base", "tuned", "tuned-long", "lora-all")),
    ),
    "breadcrumbs": (
        {"merge_method": "breadcrumbs_ties", "base_model": "base",
         "models": _models(("tuned", 0.6), ("tuned-long", 0.8)), "parameters": {"density": 0.6, "gamma": 0.02}},
        Descent("merged", ("base", "tuned", "tuned-long")),
    ),
    "repeated": (
        {"merge_method": "passthrough", "slices": _slices(("base", 0, 3), ("base", 1, 4))},
        Descent("repeated", ("base",)),
    ),
    "stacked": (
        {"merge_method": "passthrough", "slices": _slices(("tuned", 0, 3), ("stranger", 1, 4))},
        Descent("slices", ("tuned", "stranger")),
    ),
}  # fmt: skip
#: Quantized by `wb quantize`: name -> source, ftype.
FTYPES: Mapping[str, tuple[str, str]] = {
    "base-q8_0.gguf": ("base", "Q8_0"), "base-q2_k.gguf": ("base", "Q2_K"), "tuned-q4_k_m.gguf": ("tuned", "Q4_K_M"),
    "tuned-iq4_xs.gguf": ("tuned", "IQ4_XS"), "tuned-q5_k_m.gguf": ("tuned", "Q5_K_M"),
    "linear-q6_k.gguf": ("linear", "Q6_K"),
    "pruned-q4_0.gguf": ("pruned", "Q4_0"), "stranger-q3_k_m.gguf": ("stranger", "Q3_K_M"),
}  # fmt: skip


def write_family(root: Path) -> dict[str, Descent]:
    """Writes all models below `root`; returns the descent of each."""
    base = stored(random_model(0))
    made: dict[str, tuple[Arrays, Descent]] = {
        "base": (base, Descent("root")),
        "tuned": (trained(base, 1, 4, 5e-4), Descent("fine-tuned", ("base",))),
        "tuned-long": (trained(base, 2, 8, 8e-4), Descent("fine-tuned", ("base",))),
        "lora": (with_lora(base, 4, 4, "q v"), Descent("lora-merged", ("base",))),
        "lora-all": (with_lora(base, 5, 16, "q k v o gate up down"), Descent("lora-merged", ("base",))),
        "permuted": (permuted(base, 6), Descent("permuted", ("base",))),
        "stranger": (stored(random_model(7)), Descent("root")),
    }
    made["tuned-twice"] = trained(made["tuned"][0], 8, 4, 5e-4), Descent("fine-tuned", ("tuned",))
    for name, (arrays, _) in made.items():
        folder(root / name, arrays)
    folder(root / "narrowed", narrowed(base, 384), intermediate_size=384)
    folder(root / "other-size", stored(random_model(9, inner=320)), intermediate_size=320)
    descents = {name: descent for name, (_, descent) in made.items()}
    descents |= {"narrowed": Descent("pruned", ("base",)), "other-size": Descent("root")}
    for name, (recipe, descent) in RECIPES.items():
        wb.merge({**recipe, "dtype": "bfloat16"}, root / name)
        descents[name] = descent
    wb.slice(root / "base", root / "pruned", layers="0,1,3", renumber=True)
    descents["pruned"] = Descent("pruned", ("base",))
    for name, (source, ftype) in FTYPES.items():
        wb.quantize(root / source, root / name, ftype)
        descents[name] = Descent("quantized", (source,))
    wb.convert(root / "tuned", root / "tuned-mlx", to="mlx", q_bits=4, q_group_size=64)
    wb.convert(root / "base", root / "base-w8a8", to="hf", scheme="w8a8")
    wb.convert(root / "tuned-twice", root / "tuned-twice-f16.gguf", dtype="f16")
    descents |= {
        "tuned-mlx": Descent("quantized", ("tuned",)), "base-w8a8": Descent("quantized", ("base",)),
        "tuned-twice-f16.gguf": Descent("quantized", ("tuned-twice",)),
    }  # fmt: skip
    return descents


# ------------------------------------------------------------------------------------------ the truth of a pair


def ancestors(name: str, descents: Mapping[str, Descent]) -> set[str]:
    found: set[str] = set()
    for parent in descents[name].parents:
        found |= {parent, *ancestors(parent, descents)}
    return found


def truth(a: str, b: str, descents: Mapping[str, Descent]) -> str:
    """The kind of descent if one was made from the other, else "relatives" or "strangers"."""
    for child, parent in ((a, b), (b, a)):
        if parent in descents[child].parents:
            return descents[child].kind
    lines = [{name, *ancestors(name, descents)} for name in (a, b)]
    return "relatives" if lines[0] & lines[1] else "strangers"


def confusion(reports: Iterable[LineageReport], descents: Mapping[str, Descent]) -> str:
    """The table of the guide: pairs by their true relation and by the reported one, and the named parents."""
    counts: dict[str, Counter[str]] = {}
    parents: dict[str, Counter[str]] = {}
    for report in reports:
        for pair in report.pairs:
            kind = truth(pair.a, pair.b, descents)
            counts.setdefault(kind, Counter())[pair.relation] += 1
            if pair.parent is None:
                named = "unknown"
            else:
                right = pair.parent in ancestors(pair.counterpart(pair.parent), descents)
                named = "right" if right else "wrong"
            parents.setdefault(kind, Counter())[named] += 1
    columns = [name for name in WORDS if any(row[name] for row in counts.values())]
    lines = ["| truth | " + " | ".join(columns) + " | parent right | unknown | wrong |"]
    lines.append("|---|" + "--:|" * (len(columns) + 3))
    for kind in sorted(counts, key=lambda name: (name in ("relatives", "strangers"), name)):
        cells = [*(counts[kind][name] for name in columns), *(parents[kind][n] for n in ("right", "unknown", "wrong"))]
        lines.append(f"| {kind} | " + " | ".join(str(n or "") for n in cells) + " |")
    return "\n".join(lines) + "\n"
