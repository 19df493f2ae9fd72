"""Records how mlx-vlm converts the models of `mlx_vlm_cases.py`, and checks that it loads ours, strictly.

pip install --no-deps mlx-vlm==0.7.10 mlx-audio==0.6.2
python -m tests.models.record_mlx_vlm [--check] [CASE...]
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_vlm.models
import numpy as np
import torch
import transformers
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_vlm.models import nemotron_parse
from mlx_vlm.models.deepseekocr import deepseekocr
from mlx_vlm.models.deepseekocr.config import SAMViTConfig
from mlx_vlm.models.deepseekocr_2 import deepseekocr_2
from mlx_vlm.models.deepseekocr_2 import vision as deepseekocr_2_vision
from mlx_vlm.models.falcon_perception import falcon_perception as perception
from mlx_vlm.models.fastvlm.config import VisionConfig as FastViT
from mlx_vlm.models.gemma3n import vision
from mlx_vlm.models.granite4_vision import downsampling
from mlx_vlm.models.nemotron_parse.config import VisionConfig as NemotronParseVision
from mlx_vlm.models.paddleocr_vl import vision as paddleocr
from mlx_vlm.models.phi3_v import phi3_v
from mlx_vlm.models.phi3_v.vision import ClipVModel
from mlx_vlm.quant_utils import quantize_model
from mlx_vlm.utils import (
    get_model_and_args,
    get_model_type,
    load_model,
    save_weights,
    skip_multimodal_module,
    update_module_configs,
)
from safetensors.numpy import load_file, save_file
from tests.models.mlx_vlm_cases import (
    ALL,
    DROPPED,
    FORMS,
    GEMMA3N_DIVISOR,
    GOLDEN,
    GROUP,
    MODULES,
    NAMES,
    NEAR,
    RECORDED,
    RESPELLED,
    SAM,
    case,
    recorded,
    respelled,
    summary,
    with_output,
)
from tests.models.mlx_vlm_configs import CONFIGS
from tests.models.projector_cases import write_folder

import weighbridge as wb
from weighbridge.models.mlxlm.towers import table, tower_names


def _narrow_projector(kind: Any, *args: Any, **options: Any) -> Any:
    return kind(*args, **{**options, "context_dim": 64})


def _narrow_sam(kind: Any, **options: Any) -> Any:
    first, second = SAM["net"]
    model = kind(**options)
    model.net_2, model.net_3 = nn.Conv2d(256, first, 3, bias=False), nn.Conv2d(first, second, 3, bias=False)
    return model


def _narrow_ocr() -> None:
    """Gives DeepSeek-OCR's towers the sizes of the cases."""
    sam = functools.partial(_narrow_sam, deepseekocr.SAMEncoder)
    config = functools.partial(SAMViTConfig, **{key: value for key, value in SAM.items() if key != "net"})
    for module, pixels in ((deepseekocr, 64), (deepseekocr_2, 96)):
        module.SAMEncoder, module.SAMViTConfig = sam, functools.partial(config, image_size=pixels)
    encoder = deepseekocr_2_vision.Qwen2EncoderConfig
    sizes = {"layers": 4, "heads": 4, "intermediate_size": 96}
    deepseekocr_2_vision.Qwen2EncoderConfig = lambda **given: encoder(**{**given, **sizes})


def _narrow_clip(class_: Any) -> Any:
    """Phi-3 Vision's tower with another width, and a projector of it."""
    sizes = vars(class_.CLIP_VIT_LARGE_PATCH14_336_CONFIG)
    narrow = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "image_size": 56}
    config = SimpleNamespace(**{**sizes, **narrow, "num_attention_heads": 4})

    class Narrow(class_):  # type: ignore[misc]
        def __init__(self, given: Any) -> None:
            nn.Module.__init__(self)
            self.model_type, self.image_dim_out = given.model_type, 64
            self.img_processor = ClipVModel(config)
            self.glb_GN, self.sub_GN = mx.zeros([1, 1, 256]), mx.zeros([1, 1, 1, 256])
            width = given.hidden_size
            self.img_projection = [nn.Linear(256, width), nn.GELU(), nn.Linear(width, width)]

    return Narrow


def _narrow_towers() -> None:
    """Divides the widths of the towers of Gemma 3n, PaddleOCR-VL, Phi-3 Vision, Nemotron Parse and FastVLM, which no
    config sets."""
    _narrow_ocr()
    radio = {"hidden_size": 32, "num_heads": 2, "mlp_ratio": 2.0, "num_layers": 2, "neck_dim": 64}
    nemotron_parse.VisionConfig.from_dict = lambda _: NemotronParseVision(**radio)
    FastViT.layers, FastViT.embed_dims, FastViT.mlp_ratios = [1] * 5, [16, 16, 32, 32, 64], [2] * 5
    qformer = downsampling.QFormerConfig
    downsampling.QFormerConfig = lambda **given: qformer(**{**given, "intermediate_size": 96})
    upsampler = perception.AnyUp
    perception.AnyUp = lambda **_: upsampler(3, 32, 4)
    paddleocr.PaddleOCRProjector = functools.partial(_narrow_projector, paddleocr.PaddleOCRProjector)
    phi3_v.VisionModel = _narrow_clip(phi3_v.VisionModel)
    stem, fusion, blocks = vision.ConvNormAct, vision.MobileNetV5MultiScaleFusionAdapter, vision.gemma3n_mobilenet_def

    def divided(block: Any) -> Any:
        key = "kv_dim" if hasattr(block, "kv_dim") else "filters"
        return dataclasses.replace(block, **{key: getattr(block, key) // GEMMA3N_DIVISOR})

    vision.gemma3n_mobilenet_def = lambda: [list(map(divided, stage)) for stage in blocks()]
    vision.ConvNormAct = lambda kind, in_chs, out_chs, **k: stem(
        kind, in_chs, out_chs // GEMMA3N_DIVISOR if in_chs == 3 else out_chs, **k
    )
    vision.MobileNetV5MultiScaleFusionAdapter = lambda *, in_chs, out_chs, **k: fusion(
        in_chs=[n // GEMMA3N_DIVISOR for n in in_chs], out_chs=out_chs // GEMMA3N_DIVISOR, **k
    )


def named_for_mlx_vlm(folder: Path) -> None:
    """Replaces a model_type that mlx-vlm takes for another model's, as users of its converter do. Checks that mlx-vlm
    doesn't load the folder as it is."""
    config = json.loads((folder / "config.json").read_text())
    row = tower_names(config)
    if row is None or not row.published or config["model_type"] == row.kind:
        return
    try:
        load_model(folder)
    except (KeyError, TypeError, ValueError) as error:
        print(f"{config['architectures'][0]} as {config['model_type']}: {str(error).splitlines()[0]}")
    else:
        raise AssertionError(f"mlx-vlm loads {folder}")
    (folder / "config.json").write_text(json.dumps({**config, "model_type": row.kind}))


def theirs(folder: Path, form: str, out: Path) -> tuple[Any, dict[str, str]]:
    """The model as mlx_vlm.convert changes it, and its tensors."""
    named_for_mlx_vlm(folder)
    model = load_model(folder)
    rules = model.language_model if model.config.model_type in OWN_RULES else model
    own = getattr(rules, "quant_predicate", None) or (lambda *_: True)
    if model.config.model_type in REORDERED:
        own = _readable
    if form == "quantized":
        config = {"vision_config": {}, **json.loads((folder / "config.json").read_text())}
        model, _ = quantize_model(
            model, config, GROUP, 4, quant_predicate=lambda p, m: not skip_multimodal_module(p) and own(p, m)
        )
    if form == "bfloat16":
        casts = getattr(rules, "cast_predicate", lambda _: True)
        model.update(
            tree_map_with_path(
                lambda k, v: v.astype(mx.bfloat16) if casts(k) and mx.issubdtype(v.dtype, mx.floating) else v,
                model.parameters(),
            )
        )
    out.mkdir()
    save_weights(out, model, donate_weights=False)
    return model, summary({k: v for path in out.glob("*.safetensors") for k, v in load_file(path).items()})


#: Kinds whose class changes names and layouts at each load, those of a folder of its converter, too, which is another
#: model then, or isn't loaded. The record has the tensors of our folder, which loads as the published one does.
REORDERED = ("falcon_ocr", "falcon_perception")


def _readable(path: str, _module: Any) -> bool:
    """Whether the class reads a quantized matrix: it drops those of Falcon Perception's upsampler."""
    return not path.startswith("itok_upsampler.")


def check_reordered(source: Path, folder: Path, model: Any) -> None:
    """A folder of mlx-vlm's own converter isn't loaded as the model that it was made of."""
    (folder / "config.json").write_bytes((source / "config.json").read_bytes())
    try:
        again = dict(tree_flatten(load_model(folder).parameters()))
    except ValueError as error:
        print(f"{folder.name}: {str(error).splitlines()[0]}")
        return
    made = dict(tree_flatten(model.parameters()))
    assert not all(mx.array_equal(again[key], made[key]) for key in made), f"mlx-vlm loads {folder}"


#: Kinds whose language model knows which modules stay floats, which the whole model doesn't ask.
OWN_RULES = ("kimi_k3",)
#: Kinds whose class in transformers isn't that of published folders.
REMOTE = ("florence2", "molmo2")
#: Kinds whose class of transformers has other names than the folders that it saves, which are as published.
RENAMED = ("inkling_mm_model",)
#: Kinds whose folders were published under the names of transformers 5.
NEWER = ("idefics2", "minicpmv4_7", "cohere_compass", "diffusion_gemma")
#: Starts of names in transformers 5's classes, and in the folders that were published.
_PUBLISHED = {"model.vision_tower.": "vision_tower.vision_model.", "model.language_model.": "language_model.model.",
              "lm_head.": "language_model.lm_head.", "model.": ""}  # fmt: skip


def _single_experts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, list[int]]]:
    """A tensor of transformers 5's class; of a stack, the experts of published folders."""
    count, *shape = tensor.shape or [1]
    start, _, part = name.rpartition(".experts.")
    if not start:
        yield name, list(tensor.shape)
        return
    for number in range(count):
        if part == "gate_up_proj":
            for end in ("gate_proj", "up_proj"):
                yield f"{start}.experts.{number}.{end}.weight", [shape[0] // 2, *shape[1:]]
        else:
            yield f"{start}.experts.{number}.{part}.weight", shape


def _thinker(name: str) -> str:
    """The published name of a tensor of Qwen 3-Omni."""
    part = name.removeprefix("thinker.model.")
    if part == name:
        return name
    return f"thinker.{part.replace('language_model.', 'model.', 1)}"


def names_of(config: dict[str, Any]) -> dict[str, list[int]]:
    """The published names and shapes of a class of transformers, without tied outputs; of others, the names that our
    table gives to the parameters of mlx-vlm's class."""
    class_ = getattr(transformers, config["architectures"][0], None)
    if class_ is None or class_.config_class.model_type != config["model_type"] or config["model_type"] in REMOTE:
        return names_by_row(config)
    kind = transformers.AutoConfig.for_model(config["model_type"]).from_dict(copy.deepcopy(config))
    if config["model_type"] in RENAMED:
        with tempfile.TemporaryDirectory() as place:
            class_(kind).save_pretrained(place)
            files = [load_file(path) for path in Path(place).glob("*.safetensors")]
        return {name: list(array.shape) for stored in files for name, array in sorted(stored.items())}
    with torch.device("meta"):
        model = class_(kind)
    if "text_config" not in config:
        whole = {name: shape for stored in model.state_dict().items() for name, shape in _single_experts(*stored)}
        return {_thinker(name): shape for name, shape in whole.items()}
    text = config["text_config"]
    tied = text["model_type"] in ("gemma", "cohere2", "granite") or text.get("tie_word_embeddings") is True
    out = {}
    if config["model_type"] in NEWER:
        copies = model.all_tied_weights_keys if config["text_config"].get("tie_word_embeddings", True) else {}
        return {name: list(tensor.shape) for name, tensor in model.state_dict().items() if name not in copies}
    for name, tensor in model.state_dict().items():
        start = next(start for start in (*_PUBLISHED, "") if name.startswith(start))
        new = _PUBLISHED.get(start, "") + name.removeprefix(start)
        if not (tied and start == "lm_head."):
            out[new] = list(tensor.shape)
    return out


def _published(parameters: dict[str, np.ndarray], computed: list[str]) -> dict[str, np.ndarray]:
    """Parameters of a Falcon that sees, with those of the upsampler under their published names, by the class's map."""
    start, attention = "itok_upsampler.", "cross_decode.cross_attn."
    blocks = [f"{at}.block.{part}.{end}" for at in (1, 2) for part in (0, 2, 3, 5) for end in ("weight", "bias")]
    encoders = ("image_encoder", "key_encoder", "query_encoder", "aggregation", "key_features_encoder")
    names = [f"{encoder}.{end}" for encoder in encoders for end in ("0.weight", "0.basis", *blocks)]
    names += ["cross_decode.conv2d.weight", f"{attention}norm_q.weight", f"{attention}norm_k.weight", "rope.freqs"]
    mapped = {f"{start}{name}": f"{start}{perception.Model._remap_anyup_key(name)}" for name in names}
    out = {name: array for name, array in parameters.items() if not name.startswith(start) and name not in computed}
    out |= {name: parameters[new] for name, new in mapped.items() if new in parameters}
    for end in ("weight", "bias"):
        if (query := parameters.get(f"{start}{attention}q_proj.{end}")) is not None:
            out[f"{start}{attention}attention.in_proj_{end}"] = np.concatenate([query] * 3)
    return {name: np.moveaxis(array, -1, 1) if array.ndim == 4 else array for name, array in out.items()}


def names_by_row(config: dict[str, Any]) -> dict[str, list[int]]:
    config = json.loads(json.dumps(config))
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(config))
        row = tower_names(config)
        if row is not None and row.published:
            config["model_type"] = row.kind
        class_, _ = get_model_and_args(config)
        config = {"text_config": config.pop("llm_config", {}), "vision_config": {}, "audio_config": {}} | config
        model_config = class_.ModelConfig.from_dict(config)
        parts = ["text", "vision", "perceiver", "projector", "audio"]
        model = class_.Model(update_module_configs(model_config, class_, config, parts))
        copies = row.head[1:] if row is not None and config.get("tie_word_embeddings") is not False else []
        stored = {name: np.array(value) for name, value in tree_flatten(model.parameters()) if name not in copies}
        if row is not None and row.kind in REORDERED:
            stored = _published(stored, row.reordered)
        save_file(stored, Path(place) / "model.safetensors", {"format": "mlx"})
        wb.convert(place, Path(place) / "hf", to="hf")
        files = (Path(place) / "hf").glob("*.safetensors")
        return {name: list(array.shape) for path in files for name, array in load_file(path).items()}


def check_own_rules(folder: Path) -> None:
    """mlx-vlm's own converter quantizes matrices of one row whose floats the class multiplies, which then fails."""
    model = load_model(folder)
    config = json.loads((folder / "config.json").read_text())
    model, _ = quantize_model(model, config, GROUP, 4, quant_predicate=lambda p, _: not skip_multimodal_module(p))
    try:
        mx.eval(model.language_model(mx.array([[1, 2]])).logits)
    except ValueError as error:
        print(f"{folder.name}, quantized by mlx-vlm: {error}")
    else:
        raise AssertionError(f"mlx-vlm computes with {folder}")


def check_float32(folder: Path) -> None:
    """Both converters store some tensors of a folder of halves in 32 bits."""
    halves, ours = folder.with_name(f"{folder.name}-halves"), folder.with_name(f"{folder.name}-halves-ours")
    wb.convert(folder, halves, to="hf", dtype="bf16")
    wb.convert(halves, ours, to="mlx", towers=True)
    made = dict(tree_flatten(load_model(halves).parameters()))
    with wb.open(ours) as stored:
        wide = {name for name in stored if stored[name].dtype == "F32"}
    assert wide == {name for name, array in made.items() if array.dtype == mx.float32}


def modules() -> dict[str, Any]:
    """The modules of mlx_vlm/models, and those of our model types."""
    folders = [path.parent.name for path in Path(mlx_vlm.models.__path__[0]).glob("*/__init__.py")]
    left = [kind for group in table().without.values() for kind in group.kinds]
    types = {
        field: {kind: get_model_type({"model_type": kind}) for kind in kinds}
        for field, kinds in (("of", table().model), ("without", left))
    }
    return {"modules": sorted(folders), **types}


def _equal(name: str, one: mx.array, other: mx.array) -> bool:
    return bool(mx.allclose(one, other, rtol=1e-6)) if NEAR in name else bool(mx.array_equal(one, other))


def untied() -> list[str]:
    """The model types whose class has an output of its own even if config.json ties it to the embedding."""
    kinds: dict[str, bool] = {}
    for name in ALL:
        found = with_output(name)
        kind = tower_names(case(name)["config"])
        if kind is None or kind.kind in kinds or kind.head or found is None:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = write_folder(found, Path(place, "m"))
            named_for_mlx_vlm(folder)
            try:
                model = load_model(folder)
            except (TypeError, ValueError) as error:
                kinds[kind.kind] = False
                print(f"{name}, tied: {str(error).splitlines()[0]}")
            else:
                names = (key for key, _ in tree_flatten(model.parameters()))
                kinds[kind.kind] = any(key.endswith("lm_head.weight") for key in names)
            ours = Path(place, "ours")
            wb.convert(folder, ours, to="mlx", towers=True)
            read = [key for key, _ in tree_flatten(load_model(ours).parameters())]
            assert any(key.endswith("lm_head.weight") for key in read) == kinds[kind.kind], kind.kind
    return sorted(kind for kind, has in kinds.items() if has)


def main(check: bool, only: list[str]) -> None:
    _narrow_towers()
    if not check:
        known = json.loads(NAMES.read_text("utf-8"))
        known |= {name: names_of(config) for name, config in CONFIGS.items() if not only or name in only}
        NAMES.write_text(json.dumps({name: known[name] for name in CONFIGS if name in known}, indent=0) + "\n")
    record: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for name, form in RECORDED:
            if only and name not in only:
                continue
            folder = write_folder(case(name), Path(place, name))
            of_theirs = Path(place, f"{name}-{form}-theirs")
            model, record.setdefault(name, {})[form] = theirs(folder, form, of_theirs)
            ours = Path(place, f"{name}-{form}")
            wb.convert(folder, ours, to="mlx", towers=True, **FORMS[form])
            read, made = (dict(tree_flatten(m.parameters())) for m in (load_model(ours), model))
            assert read.keys() == made.keys(), (name, form)
            assert all(_equal(key, read[key], made[key]) for key in made), (name, form)
            print(name, form, len(made), "parameters: loaded, equal")
            if model.config.model_type in REORDERED:
                record[name][form] = summary(
                    {k: v for path in ours.glob("*.safetensors") for k, v in load_file(path).items()}
                )
                if form == "plain":
                    check_reordered(folder, of_theirs, model)
        for name, dropped in DROPPED.items():
            if name not in record:
                continue
            found = case(name)
            found["names"] |= dropped
            folder = write_folder(found, Path(place, f"{name}-dropped"))
            assert theirs(folder, "plain", Path(place, f"{name}-theirs"))[1] == record[name]["plain"]
        for name in record:
            kind = tower_names(case(name)["config"])
            if kind is not None and kind.kind in OWN_RULES:
                check_own_rules(Path(place, name))
            if kind is not None and kind.float32:
                check_float32(Path(place, name))
        for name in RESPELLED:
            if name not in record:
                continue
            ours = Path(place, f"{name}-respelled")
            wb.convert(write_folder(respelled(name), Path(place, f"{name}-5")), ours, to="mlx", towers=True)
            read = dict(tree_flatten(load_model(ours).parameters()))
            expected = dict(tree_flatten(load_model(Path(place, f"{name}-plain")).parameters()))
            assert all(mx.array_equal(read[key], expected[key]) for key in expected), name
            print(name, "with the config of transformers 5: loaded, equal")
    of_folders = json.loads(MODULES.read_text("utf-8"))
    outputs = {"untied": of_folders["untied"] if only else untied()}
    if check:
        assert modules() | outputs == of_folders
        assert record == {name: forms for name, forms in recorded().items() if name in record}
    else:
        MODULES.write_text(json.dumps(modules() | outputs, indent=0) + "\n")
        for name, forms in record.items():
            (GOLDEN / f"{name}.json").write_text(json.dumps(forms, indent=0, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main("--check" in sys.argv, [word for word in sys.argv[1:] if word != "--check"])
