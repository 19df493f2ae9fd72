"""LyCORIS' networks merged into a model: judged by PEFT's formulas, by convolutions, and by torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models.test_picture_lora import both, kohya, load
from tests.oracles import pictures, pipelines

import weighbridge as wb
from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.models.lora import lycoris
from weighbridge.models.lora import pictures as ours

torch = pytest.importorskip("torch")
Tensors = dict[str, Any]
RANK, ALPHA = 2, 3.0


def draw(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def shapes(kind: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The parts of each kind for a weight. A core of a convolution has its kernel."""
    rows, inputs, *kernel = shape
    columns = inputs * int(torch.tensor(kernel).prod()) if kernel else inputs
    core, low, high = (RANK, RANK, *kernel), (rows, RANK), (RANK, columns)
    half = {"lokr_w1": (4, 2), "lokr_w2": (rows // 4, inputs // 2, *kernel)}
    factored = {"lokr_w2_a": (rows // 4, RANK), "lokr_w2_b": (RANK, columns // 2)}
    pair = {"lokr_w2_a": (RANK, rows // 4), "lokr_w2_b": (RANK, inputs // 2)}
    found: dict[str, dict[str, tuple[int, ...]]] = {
        "Tucker": {
            "lora_down.weight": (RANK, inputs, 1, 1), "lora_up.weight": (rows, RANK, 1, 1), "lora_mid.weight": core,
        },
        "LoHa": {"hada_w1_a": low, "hada_w1_b": high, "hada_w2_a": low, "hada_w2_b": high},
        "LoHa core": {
            "hada_t1": core, "hada_w1_a": (RANK, rows), "hada_w1_b": (RANK, inputs),
            "hada_t2": core, "hada_w2_a": (RANK, rows), "hada_w2_b": (RANK, inputs),
        },
        "LoKr": half,
        "LoKr w1": {"lokr_w1_a": (4, RANK), "lokr_w1_b": (RANK, 2), "lokr_w2": half["lokr_w2"]},
        "LoKr w2": {"lokr_w1": (4, 2), **factored},
        "LoKr core": {"lokr_w1": (4, 2), "lokr_t2": core, **pair},
        "full": {"diff": shape, "diff_b": (rows,)},
        "norm": {"w_norm": shape, "b_norm": (rows,)},
    }  # fmt: skip
    return found[kind]


def expected(kind: str, parts: Tensors, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The changes of weight and bias."""
    loha = pytest.importorskip("peft.tuners.loha.layer")
    lokr = pytest.importorskip("peft.tuners.lokr.layer")
    scale = torch.tensor(ALPHA / RANK)
    if kind == "Tucker":  # the three convolutions one after the other, of each input
        basis = torch.eye(shape[1]).reshape(shape[1], shape[1], 1, 1)
        conv = torch.nn.functional.conv2d
        padded = torch.nn.functional.pad(conv(basis, parts["lora_down.weight"]), [shape[2] - 1] * 4)
        response = conv(conv(padded, parts["lora_mid.weight"]), parts["lora_up.weight"])
        return scale * response.flip(-1, -2).transpose(0, 1), None
    if kind == "LoHa":
        factors = [parts[name] for name in ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")]
        return loha.make_weight(*factors, scale=scale).reshape(shape), None
    if kind == "LoHa core":
        factors = [parts[f"hada_{name}"] for name in ("t1", "w1_a", "w1_b", "t2", "w2_a", "w2_b")]
        return loha.make_weight_cp(*factors, scale=scale), None
    if kind.startswith("LoKr"):
        first = parts["lokr_w1"] if "lokr_w1" in parts else parts["lokr_w1_a"] @ parts["lokr_w1_b"]
        if "lokr_w2" in parts:
            second = parts["lokr_w2"]
        elif "lokr_t2" in parts:
            second = lokr.make_weight_cp(parts["lokr_t2"], parts["lokr_w2_a"], parts["lokr_w2_b"])
        else:
            second = (parts["lokr_w2_a"] @ parts["lokr_w2_b"]).reshape(
                first.new_empty(shape[0] // 4, shape[1] // 2, *shape[2:]).shape
            )
        whole = kind == "LoKr"  # without a factored matrix there is no rank, and the factor is 1
        return lokr.make_kron(first, second, 1.0 if whole else float(scale)).reshape(shape), None
    return tuple(parts.values())


MODULES = {"linear": "double_blocks.0.img_attn.proj", "convolution": "input_blocks.1.0.in_layers.2"}
CASES = [
    (kind, layer)
    for kind, layer in itertools.product(
        ("Tucker", "LoHa", "LoHa core", "LoKr", "LoKr w1", "LoKr w2", "LoKr core", "full"), MODULES
    )
    if layer == "convolution" or kind not in ("Tucker", "LoHa core", "LoKr core")
]


def convicts(path: Path, kind: str, layer: str, weight: float = 1.0) -> str | None:
    model = "flux" if layer == "linear" else "sd1"
    tensors, module = both(model)["original"], MODULES[layer]
    shape = tuple(tensors[f"{module}.weight"].shape)
    parts = {end: draw(*size) for end, size in shapes(kind, shape).items()}
    key = f"lora_unet_{module.replace('.', '_')}"
    lora = {f"{key}.{end}": t for end, t in parts.items()} | {f"{key}.alpha": torch.tensor(ALPHA)}
    base = pictures.save(path / "base.safetensors", tensors)
    pictures.save(path / "lora.safetensors", lora)
    try:
        wb.convert(base, path / "m.safetensors", lora=f"{path / 'lora.safetensors'}:{weight}", overwrite=True)
    except WeighbridgeError as error:
        return error.message
    found = load(path / "m.safetensors")
    change, bias = expected(kind, parts, shape)
    wanted = {**tensors, f"{module}.weight": tensors[f"{module}.weight"] + weight * change}
    if bias is not None:
        wanted[f"{module}.bias"] = tensors[f"{module}.bias"] + weight * bias
    wrong = [name for name in wanted if not torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5)]
    return wrong[0] if wrong else None


@pytest.mark.parametrize(("kind", "layer"), CASES)
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_merge_is_peft_s(kind: str, layer: str, weight: float, tmp_path: Path) -> None:
    assert convicts(tmp_path, kind, layer, weight) is None


def test_norms(tmp_path: Path) -> None:
    tensors = both("sd1")["original"]
    name = "input_blocks.1.0.in_layers.0"
    parts = {end: draw(*tensors[f"{name}.{part}"].shape) for end, part in (("w_norm", "weight"), ("b_norm", "bias"))}
    base = pictures.save(tmp_path / "base.safetensors", tensors)
    pictures.save(tmp_path / "l.safetensors", {f"lora_unet_{name.replace('.', '_')}.{e}": t for e, t in parts.items()})
    wb.convert(base, tmp_path / "m.safetensors", lora=tmp_path / "l.safetensors")
    found = load(tmp_path / "m.safetensors")
    for end, part in (("w_norm", "weight"), ("b_norm", "bias")):
        assert torch.allclose(found[f"{name}.{part}"], tensors[f"{name}.{part}"] + parts[end])


ENDS = {end: kind for kind in ("norm", "full", "Tucker", "LoHa", "LoHa core", "LoKr", "LoKr w1", "LoKr w2", "LoKr core")
        for end in shapes(kind, (8, 4, 3, 3))}  # fmt: skip


@pytest.mark.parametrize("end", lycoris.ENDS)
def test_each_end_is_needed(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ENDS[end.removeprefix(".")]
    monkeypatch.setattr(ours, "ENDS", {key: part for key, part in ours.ENDS.items() if key != end})
    if kind == "norm":
        with pytest.raises(WeighbridgeError):
            test_norms(tmp_path)
        return
    assert convicts(tmp_path, kind, "convolution") is not None


def damaged(change: Mapping[str, Any]) -> Tensors:
    parts = {end: draw(*size) for end, size in shapes("LoHa", (64, 64)).items()}
    return {
        f"lora_unet_double_blocks_0_img_attn_proj.{end}": t for end, t in {**parts, **change}.items() if t is not None
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hada_w1_a": None}, "has no hada_w1_a"),
        ({"hada_w1_a": torch.ones(64, 3)}, "different ranks"),
        ({"hada_w1_a": torch.ones(63, 2)}, "different shapes"),
        ({"hada_t1": torch.ones(2, 2)}, "doesn't fit"),
        ({"hada_w1_b": torch.ones(0, 64)}, "no rows"),
        ({"hada_w1_b": torch.tensor(1.0)}, "has no rows|isn't"),
        ({"hada_w1_a": torch.tensor(1.0)}, "isn't the product"),
        ({"lokr_w1": torch.ones(2, 2)}, "besides the parts of a LoHa"),
    ],
)
def test_damaged_parts_are_refused(change: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    base = pictures.save(tmp_path / "base.safetensors", both("flux")["original"])
    pictures.save(tmp_path / "lora.safetensors", damaged(change))
    with pytest.raises(FormatError, match=message):
        wb.convert(base, tmp_path / "m.safetensors", lora=tmp_path / "lora.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("to", ["single.safetensors", "out/"])
def test_a_pipeline_gets_the_changes_of_all_parts(flat: bool, to: str, tmp_path: Path) -> None:
    """The denoiser and the text encoders, also those that transformers 5 saved."""
    parts = pipelines.PIPELINES["sdxl"]()
    folder = pipelines.write(tmp_path / "p", pipelines.flattened(parts) if flat else parts)
    generator = torch.Generator().manual_seed(1)
    unet = "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q"
    text = "text_model.encoder.layers.1.mlp.fc1"
    lora: Tensors = {}
    changed = {"unet": (unet, "lora_unet_"), "text_encoder": (text, "lora_te1_"), "text_encoder_2": (text, "lora_te2_")}
    wanted = {part: dict(tensors) for part, tensors in parts.items()}
    for part, (module, prefix) in changed.items():
        rows, columns = parts[part][f"{module}.weight"].shape
        down, up = torch.randn(2, columns, generator=generator), torch.randn(rows, 2, generator=generator)
        lora |= {key.replace("lora_unet_", prefix): t for key, t in kohya({module: (down, up)}, None).items()}
        wanted[part][f"{module}.weight"] = wanted[part][f"{module}.weight"] + up @ down
    path = pictures.save(tmp_path / "lora.safetensors", lora)
    wb.convert(folder, f"{tmp_path}/{to}", lora=path)
    if to.endswith("/"):
        found = {
            part: {(f"text_model.{n}" if flat and part.startswith("text") and not n.startswith("text_") else n): t
                   for n, t in load(next((tmp_path / "out" / part).glob("*.safetensors"))).items()}
            for part in parts
        }  # fmt: skip
    else:
        found = pipelines.read_single_file("sdxl", load(tmp_path / to))
    for part, tensors in wanted.items():
        for name, tensor in tensors.items():
            assert torch.allclose(found[part][name], tensor, atol=1e-5), f"{part}.{name}"
