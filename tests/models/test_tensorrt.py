"""Checkpoints of TensorRT-LLM: ranks, divided here as its documentation describes, are joined to the whole model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, WeighbridgeError
from weighbridge.models import tensorrt

Arrays = dict[str, np.ndarray[Any, Any]]
LAYERS, HEADS, KV, HEAD, HIDDEN, FFN, VOCAB = 4, 4, 2, 3, 12, 8, 16


def whole(kv: int = KV) -> Arrays:
    rng = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype("f4")

    out = {"transformer.vocab_embedding.weight": values(VOCAB, HIDDEN), "lm_head.weight": values(VOCAB, HIDDEN),
           "transformer.ln_f.weight": values(HIDDEN)}  # fmt: skip
    for number in range(LAYERS):
        layer = f"transformer.layers.{number}."
        rows = (HEADS + 2 * kv) * HEAD
        out |= {
            f"{layer}attention.qkv.weight": values(rows, HIDDEN), f"{layer}attention.qkv.bias": values(rows),
            f"{layer}attention.dense.weight": values(HIDDEN, HEADS * HEAD),
            f"{layer}mlp.fc.weight": values(FFN, HIDDEN), f"{layer}mlp.gate.weight": values(FFN, HIDDEN),
            f"{layer}mlp.proj.weight": values(HIDDEN, FFN), f"{layer}input_layernorm.weight": values(HIDDEN),
            f"{layer}mlp.proj.weights_scaling_factor": values(1),
        }  # fmt: skip
    return out


def share(name: str, array: np.ndarray[Any, Any], rank: int, ranks: int, kv: int, embedding: int | None) -> Any:
    """A tensor rank's share, written without the table under test."""
    part = name.rpartition(".layers.")[2]
    if "qkv" in part:
        q, k, v = np.split(array, [HEADS * HEAD, (HEADS + kv) * HEAD])
        if kv < ranks:
            k, v = (
                np.repeat(x.reshape(kv, HEAD, *x.shape[1:]), ranks // kv, 0).reshape(-1, *x.shape[1:]) for x in (k, v)
            )
        return np.concatenate([np.split(x, ranks)[rank] for x in (q, k, v)])
    if "dense.weight" in part or part[-11:] == "proj.weight":
        return np.split(array, ranks, 1)[rank]
    if "fc." in part or "gate." in part or "lm_head" in name:
        return np.split(array, ranks)[rank]
    if "vocab_embedding" in name and embedding is not None:
        return np.split(array, ranks, embedding)[rank]
    return array


def written(
    folder: Path,
    tensor: int,
    stages: int,
    *,
    kv: int = KV,
    embedding: int | None = None,
    local: bool = True,
    **more: Any,
) -> Path:
    arrays, each = whole(kv), LAYERS // stages
    for rank in range(tensor * stages):
        stage, number = divmod(rank, tensor)
        mine: Arrays = {}
        for name, array in arrays.items():
            parts = name.split(".")
            if "layers" in parts:
                layer = int(parts[2])
                if layer // each != stage:
                    continue
                parts[2] = str(layer - stage * each if local else layer)
            elif stage != (0 if "vocab" in name else stages - 1):
                continue
            mine[".".join(parts)] = np.ascontiguousarray(share(name, array, number, tensor, kv, embedding))
        wb.save(mine, folder / f"rank{rank}.safetensors")
    config = {
        "architecture": "LlamaForCausalLM", "dtype": "float32", "num_hidden_layers": LAYERS, "hidden_size": HIDDEN,
        "num_attention_heads": HEADS, "num_key_value_heads": kv, "vocab_size": VOCAB,
        "mapping": {"world_size": tensor * stages, "tp_size": tensor, "pp_size": stages},
        "use_parallel_embedding": embedding is not None, "embedding_sharding_dim": embedding or 0,
        "quantization": {"quant_algo": "FP8"},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def joined(folder: Path) -> Arrays:
    with wb.open(folder) as model:
        return {name: model[name].numpy() for name in model}


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 4), (1, 4)])
def test_the_ranks_are_joined_to_the_whole_model(tensor: int, stages: int, tmp_path: Path) -> None:
    assert same(joined(written(tmp_path, tensor, stages)), whole())


@pytest.mark.parametrize(
    "how", [{"kv": 1}, {"kv": 4}, {"embedding": 0}, {"embedding": 1}, {"local": False}], ids=lambda how: str(how)
)
def test_variants(how: dict[str, Any], tmp_path: Path) -> None:
    assert same(joined(written(tmp_path, 2, 2, **how)), whole(how.get("kv", KV)))


def test_the_folder_is_a_model_for_every_command(tmp_path: Path) -> None:
    folder = written(tmp_path, 2, 2)
    assert wb.identify(folder).format == "tensorrt-llm"
    assert wb.inspect(folder).tensor_count == len(whole())
    assert wb.verify(folder).ok
    plan = wb.plan_convert(folder, out := tmp_path / "out.safetensors")
    assert any("2 tensor ranks and 2 pipeline stages" in note for note in plan.notes)
    assert any("FP8: 4 tensors of scales" in note for note in plan.notes)
    wb.convert(folder, out)
    assert same(joined(out), whole())


@pytest.mark.mutation
@pytest.mark.parametrize("end", [end for end in tensorrt.SPLITS if any(name.endswith(end) for name in whole())])
def test_every_row_of_the_table_decides(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path, 2, 1, embedding=1)
    for other in {0, 1, None} - {tensorrt.SPLITS[end]}:
        monkeypatch.setattr(tensorrt, "SPLITS", {**tensorrt.SPLITS, end: other})
        try:
            differs = not same(joined(folder), whole())
        except WeighbridgeError:
            differs = True
        assert differs or (end == "vocab_embedding.weight" and other == 1)


def _removed(folder: Path) -> None:
    (folder / "rank3.safetensors").unlink()


def _renamed(folder: Path) -> None:
    wb.save({"transformer.layers.0.attention.other.weight": np.ones((2, 2), "f4")}, folder / "rank0.safetensors",
            overwrite=True)  # fmt: skip
    for number in range(1, 4):
        (folder / f"rank{number}.safetensors").write_bytes((folder / "rank0.safetensors").read_bytes())


def _reshaped(folder: Path) -> None:
    arrays = joined(folder / "rank1.safetensors")
    wb.save({n: a[:2] for n, a in arrays.items()}, folder / "rank1.safetensors", overwrite=True)


def _set(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


BAD: dict[str, tuple[Callable[[Path], None], type[WeighbridgeError], str]] = {
    "a missing rank": (_removed, FormatError, "4 ranks"),
    "no rule": (_renamed, UnsupportedError, "has no rule in the table of splits"),
    "other shapes": (_reshaped, FormatError, "shapes or types differ"),
    "no mapping": (_set(mapping=None), FormatError, "no mapping"),
    "a text": (_set(num_attention_heads="4"), FormatError, "not a positive number"),
    "other heads": (_set(num_attention_heads=8, head_size=3), FormatError, "don't fit the heads"),
    "other layers": (_set(num_hidden_layers=5), FormatError, "another number of layers"),
    "context ranks": (_set(mapping={"world_size": 4, "tp_size": 2}), UnsupportedError, "tensor and pipeline"),
    "packed weights": (_set(quantization={"quant_algo": "W4A16_AWQ"}), UnsupportedError, "packed for each tensor rank"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_ranks_that_do_not_fit_are_named_errors(name: str, tmp_path: Path) -> None:
    change, error, words = BAD[name]
    change(written(tmp_path, 2, 2))
    with pytest.raises(error, match=words):
        wb.open(tmp_path)
    (found,) = [f for f in wb.verify(tmp_path).findings if f.rule == "tensorrt/ranks"]
    assert words in found.message
