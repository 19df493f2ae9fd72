"""Shares of tensor-parallel ranks: the sum of what the ranks compute is what the model computes, fused tensors are cut
as transformers takes them apart, and together the ranks are the model again, byte for byte."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import folders, models

import weighbridge as wb

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]


def load(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    found: dict[str, Any] = load_file(path)
    return found


def save(tensors: dict[str, Any], path: Path, metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, path, metadata)


def shares(folder: Path, ranks: int) -> list[dict[str, Any]]:
    """Each rank's tensors, as safetensors' own reader gives them."""
    return [load(folder / f"model-rank-{rank}-of-{ranks}.safetensors") for rank in range(ranks)]


def rank_model(source: Path, split: Path, rank: int, ranks: int, folder: Path) -> Any:
    """A rank's model as transformers loads it, under a config of its own sizes."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // heads
    config |= {"num_attention_heads": heads // ranks, "num_key_value_heads": max(key_heads // ranks, 1)}
    for key in ("intermediate_size", "moe_intermediate_size", "vocab_size"):
        if key in config:
            config[key] //= ranks
    config |= {"tie_word_embeddings": False, "pad_token_id": None}
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(split / f"model-rank-{rank}-of-{ranks}.safetensors", folder / "model.safetensors")
    return models.load(folder)


def together(ranks: list[Any], ids: list[int], tied: bool) -> Any:
    """The logits of a decoder of which each rank has a share: partial results are added up, those of the vocabulary put
    side by side."""
    import torch

    tokens, first = torch.tensor([ids]), ranks[0]
    width = first.model.embed_tokens.weight.shape[0]
    hidden = sum(
        m.model.embed_tokens((tokens - n * width).clamp(0, width - 1)) * ((tokens // width) == n)[..., None]
        for n, m in enumerate(ranks)
    )
    positions = torch.arange(len(ids))[None]
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)[None, None]
    rotary = first.model.rotary_emb(hidden, positions)
    for layers in zip(*(m.model.layers for m in ranks), strict=True):
        x = layers[0].input_layernorm(hidden)
        hidden = hidden + sum(
            layer.self_attn(x, position_embeddings=rotary, attention_mask=mask)[0] for layer in layers
        )
        x = layers[0].post_attention_layernorm(hidden)
        hidden = hidden + sum(layer.mlp(x) for layer in layers)
    hidden = first.model.norm(hidden)
    heads = [m.model.embed_tokens if tied else m.lm_head for m in ranks]
    return torch.cat([hidden @ head.weight.T for head in heads], -1)[0].numpy()


# several with fewer key heads than ranks; biases, norms of heads, fused tensors, experts
COMPUTED = [
    ("llama", 2), ("llama", 4), ("llama3", 4), ("qwen2", 2), ("qwen3", 2), ("phi-mini", 2), ("qwen3moe", 2),
    ("qwen3moe-fused", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks"), COMPUTED)
def test_the_sum_of_the_ranks_is_the_model(name: str, ranks: int, folder_of: Maker, tmp_path: Path) -> None:
    import torch

    source, split = folder_of(name), tmp_path / "split"
    wb.split(source, split, tp=ranks)
    parts = [rank_model(source, split, rank, ranks, tmp_path / f"{rank}") for rank in range(ranks)]
    tied = "lm_head.weight" not in shares(split, ranks)[0]
    ids = list(models.probe_of(name))
    settings = models.CASES[name].settings
    expected = models.logits(source, ids, **settings)
    with torch.no_grad():
        assert models.relative_error(together(parts, ids, tied), expected) < 2e-5


ROUND = [
    ("llama3", 2), ("llama", 4), ("phi-mini", 2), ("gptneox", 2), ("gpt2", 4), ("falcon-new", 2),
    ("mixtral", 2), ("mixtral-fused", 4), ("qwen2moe", 2), ("deepseek-v3", 4), ("gemma2", 2), ("starcoder", 2),
    ("command-r", 2), ("bloom", 2), ("olmo2", 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranks"), ROUND)
def test_the_ranks_together_are_the_model(name: str, ranks: int, folder_of: Maker, tmp_path: Path) -> None:
    wb.convert(folder_of(name), source := tmp_path / "source")
    wb.split(source, tmp_path / "split", tp=ranks)
    wb.convert(tmp_path / "split", tmp_path / "back")
    before, after = (sorted(p for p in d.iterdir() if p.is_file()) for d in (source, tmp_path / "back"))
    assert [p.name for p in before] == [p.name for p in after]
    assert [p.name for p, q in zip(before, after, strict=True) if p.read_bytes() != q.read_bytes()] == []
    whole = folders.tensors(source)
    held = sum(t.numel() for t in shares(tmp_path / "split", ranks)[0].values())
    assert held < sum(t.numel() for t in whole.values()) * 0.75  # something was shared out


@pytest.mark.costly
def test_fused_tensors_are_cut_as_transformers_takes_them_apart(folder_of: Maker, tmp_path: Path) -> None:
    import torch

    for name, ranks in (("gptneox", 2), ("gpt2", 2), ("falcon-new", 2)):
        wb.split(folder_of(name), tmp_path / name, tp=ranks)
        config = json.loads((folder_of(name) / "config.json").read_text())
        whole, parts = folders.tensors(folder_of(name)), shares(tmp_path / name, ranks)
        heads = config.get("num_attention_heads") or config["n_head"]
        groups = config["num_kv_heads"] if name == "falcon-new" else heads
        key = next(k for k in whole if k.endswith(("query_key_value.weight", "c_attn.weight")))
        weight = whole[key].T if name == "gpt2" else whole[key]
        for rank, share in enumerate(parts):
            mine = slice(rank * groups // ranks, (rank + 1) * groups // ranks)
            if name == "gpt2":  # all queries, all keys, all values
                want = weight.view(3, heads, -1, weight.shape[1])[:, mine].reshape(-1, weight.shape[1]).T
            else:  # query, key and value of each head or group
                want = weight.view(groups, -1, weight.shape[1])[mine].reshape(-1, weight.shape[1])
            assert torch.equal(share[key], want), (name, rank)


# ------------------------------------------------------------------------------------------------ state spaces, experts


class Group:
    """Ranks in threads, which add up their partial results where a module's are partial."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks)
        self.slots: list[Any] = [None] * ranks

    def total(self, rank: int, value: Any) -> Any:
        self.slots[rank] = value
        self.barrier.wait(60)
        out = sum(self.slots)
        self.barrier.wait(60)
        return out

    def join(self, rank: int, model: Any, partial: tuple[str, ...], wide: bool) -> None:
        """Partial results are added up behind the modules called so; what is added to them counts once. `wide`: norms
        are over the channels of all ranks."""
        for name, module in model.named_modules():
            if name.endswith(("embed_tokens", "embeddings")):
                module.forward = functools.partial(self._embedded, rank, module)
            elif name.endswith(partial):
                module.register_forward_hook(functools.partial(self._summed, rank))
            elif wide and type(module).__name__ == "MambaRMSNormGated":
                module.forward = functools.partial(self._normed, rank, module)
        for name, parameter in model.named_parameters():
            if rank and name.endswith(("o_proj.bias", "out_proj.bias", "down_proj_bias", "down_proj.bias")):
                parameter.data.zero_()

    def _embedded(self, rank: int, module: Any, tokens: Any) -> Any:
        height = module.weight.shape[0]
        mine = module.weight[(tokens - rank * height).clamp(0, height - 1)]
        return self.total(rank, mine * (tokens // height == rank)[..., None])

    def _summed(self, rank: int, module: Any, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (self.total(rank, output[0]), *output[1:])
        return self.total(rank, output)

    def _normed(self, rank: int, module: Any, hidden: Any, gate: Any = None) -> Any:
        """A norm over the channels of all ranks, which are of one group."""
        import torch

        hidden = hidden * torch.nn.functional.silu(gate.float())
        squares = self.total(rank, hidden.pow(2).mean(-1, keepdim=True)) / len(self.slots)
        return module.weight * (hidden * torch.rsqrt(squares + module.variance_epsilon))


_HYBRID = ("linear_attn.out_proj", "self_attn.o_proj", "mamba.out_proj", ".mlp")
# case, ranks, what of its config is a rank's share of it, whose results are partial
TOGETHER: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "mamba": (2, ("intermediate_size",), ("x_proj", "out_proj")),
    "falcon-mamba": (4, ("intermediate_size",), ("x_proj", "out_proj")),
    "mamba2": (2, ("num_heads", "n_groups", "expand"), ("out_proj",)),
    "mamba2-tied": (2, ("num_heads", "expand"), ("out_proj",)),  # one group of states, on both ranks
    "qwen3next": (2, ("linear_num_key_heads", "linear_num_value_heads", "moe_intermediate_size",
                      "shared_expert_intermediate_size", "num_attention_heads"), _HYBRID),
    "qwen35": (2, ("linear_num_key_heads", "linear_num_value_heads", "intermediate_size", "num_attention_heads"),
               _HYBRID),
    "qwen35-odd": (2, ("linear_num_key_heads", "linear_num_value_heads", "intermediate_size", "num_attention_heads"),
                   _HYBRID),
    "gpt-oss": (2, ("num_attention_heads", "num_key_value_heads", "intermediate_size"), ("o_proj", ".mlp")),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_partial_results_add_up(name: str, folder_of: Maker, tmp_path: Path) -> None:
    import torch

    ranks, shared, partial = TOGETHER[name]
    source, split = folder_of(name), tmp_path / "split"
    wb.split(source, split, tp=ranks)
    config = json.loads((source / "config.json").read_text())
    config |= {key: _smaller(config, key, ranks) for key in (*shared, "vocab_size")}
    config |= {"tie_word_embeddings": False, "pad_token_id": None, "use_cache": False}
    group, parts = Group(ranks), []
    for rank in range(ranks):
        (folder := tmp_path / f"{rank}").mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        tensors = load(split / f"model-rank-{rank}-of-{ranks}.safetensors")
        embedding = next(n for n in tensors if n.endswith(("embed_tokens.weight", "embeddings.weight")))
        save({"lm_head.weight": tensors[embedding].clone()} | tensors, folder / "model.safetensors", {"format": "pt"})
        parts.append(models.load(folder, **models.CASES[name].settings))
        group.join(rank, parts[-1], partial, wide="n_groups" not in shared)

    def run(rank: int) -> Any:
        try:
            with torch.no_grad():
                return parts[rank](torch.tensor([ids]), use_cache=False).logits[0]
        except BaseException:
            group.barrier.abort()
            raise

    ids = list(models.probe_of(name))
    with ThreadPoolExecutor(ranks) as pool:
        logits = torch.cat(list(pool.map(run, range(ranks))), -1).numpy()
    assert models.relative_error(logits, models.logits(source, ids, **models.CASES[name].settings)) < 2e-4


def _smaller(config: dict[str, Any], key: str, ranks: int) -> int:
    usual = {"intermediate_size": 2 * config["hidden_size"], "expand": 2}
    return int((config.get(key) or usual[key]) // ranks)
