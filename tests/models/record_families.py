"""Records what others make of the models in tests/oracles/families:
`python -m tests.models.record_families [NAME ...]`.

Of each: config.json, names and shapes as transformers writes them (or, where it has no class, as they are published),
the reference converter's tensors and keys, and where a case says so what transformers 5 holds in memory ("hf5"; "hf5s":
and beside it what it leaves unread) and what mlx-lm holds ("mlx"). The numbers of a tensor follow from its name
(`values`), so a digest tells whether another's tensor is made of the same numbers in the same order.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

HEAD, TOKENS, SLOPES = "lm_head.weight", "d2t", "relative_pe.slopes"
CONSTANTS = ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")  # of 64 bits
GOLDEN = Path(__file__).parent / "golden" / "families"
UNTRAINED = [5, 700]  # tokens without an embedding, where the reference looks for these
Recorded = dict[str, dict[str, Any]]
_FUSED = {"qwen3_5_moe"}  # whose experts mlx-lm knows in the fused form alone, in which they are published

# what mlx-lm calls otherwise than the published files, and renames nowhere
_MLX_NAMES = {"nemotron-nas": ("self_attn.linear_attn.", "self_attn.linear."), "gpt2": ("transformer.", "")}
# what published configs of a type say and transformers doesn't write, and mlx-lm's class requires
_MLX_SAID: dict[str, dict[str, Any]] = {
    "mimo_v2_flash": {"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False}
    | {"sliding_window_size": 24, "swa_rope_theta": 500.0, "n_shared_experts": None},
    "gemma4_unified": {"hidden_size_per_layer_input": 0},
}
_NO_FURTHER = {"bailing_moe"}  # of which mlx-lm loads no folder that has a layer behind the others


def values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The numbers of a Hugging Face tensor: its name's own."""
    if name.endswith("tid2eid"):
        return np.random.default_rng(crc32(name.encode())).integers(0, 6, shape).astype(np.float32)
    if name.endswith("layer_multipliers"):
        return np.random.default_rng(crc32(name.encode())).integers(1 << 60, 1 << 62, shape)  # type: ignore[return-value]
    if name.endswith(CONSTANTS):
        sizes = np.array([53, 59, 61, 67, 71, 73, 79, 83])[: shape[0]]
        return sizes if name.endswith("vocab_sizes") else np.cumsum(sizes) - sizes
    if name.endswith(SLOPES):
        from tests.oracles.models import alibi

        return np.array(alibi(shape[0]), np.float32).reshape(shape)
    if name.endswith(TOKENS):
        return np.arange(*shape, dtype=np.float32)  # every other token
    return np.random.default_rng(crc32(name.encode())).standard_normal(shape, np.float32)


def digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array, "<f4").tobytes()).hexdigest()[:12]


def sample(array: NDArray[Any]) -> list[float]:
    """Some of the numbers of a tensor whose last bits depend on the reference's processor."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return [float(value) for value in flat[np.linspace(0, flat.size - 1, 32, dtype=int)]]


def read(folder: Path) -> Recorded:
    """What a folder has recorded, a file a case, in the order of the cases."""
    from tests.oracles.families import CASES

    paths = {name: folder / f"{name}.json" for name in CASES}
    return {name: json.loads(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}


def write(folder: Path, name: str, recorded: dict[str, Any]) -> None:
    """A line for each key: small changes show as such."""
    folder.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items())
    (folder / f"{name}.json").write_text("{\n" + lines + "\n}\n", "utf-8")


def main(names: list[str]) -> None:
    from tests.oracles import tree
    from tests.oracles.families import CASES

    root = str(tree.require())
    sys.path[:0] = [root, f"{root}/gguf-py"]
    for name in names or (name for name, case in CASES.items() if case.golden):
        with tempfile.TemporaryDirectory() as parent:
            write(GOLDEN, name, _record(CASES[name], Path(parent)))


def _record(case: Any, parent: Path) -> dict[str, Any]:
    import transformers
    from tests.oracles import folded, models
    from tests.oracles.families import CASES
    from tests.oracles.families.drafts import TARGETS

    from weighbridge.conversion.gguf.drafts import facts_of
    from weighbridge.models.arch.registry import family_of_hf

    folder = models.build(case, parent / case.name)
    arrays = _renumber(folder)
    config = json.loads((folder / "config.json").read_text())
    out: dict[str, Any] = {"config": config, "hf": {n: list(a.shape) for n, a in arrays.items()}}
    given = {name: folded.at_length_1(a) if case.unit and name == HEAD else a for name, a in arrays.items()}
    _save(folder, {name: a for name, a in given.items() if name not in case.beyond})
    if case.target:
        target = models.build(TARGETS[case.target], parent / "target")
        theirs = json.loads((target / "config.json").read_text())
        out["config"] = config | {"target": facts_of(theirs, family_of_hf(theirs))}
    out |= _reference(folder, parent, case)
    _save(folder, arrays)
    model_class: Any = getattr(transformers, config["architectures"][0], None)
    if "hf5" in case.recorded:
        held = {n: t.numpy() for n, t in model_class.from_pretrained(folder, dtype="float32").state_dict().items()}
        tied = config.get("tie_word_embeddings")
        out["hf5"] = {n: _brief(a) for n, a in held.items() if not (tied and n == "lm_head.weight")}
    if "hf5s" in case.recorded:
        kept = {n: a for n, a in arrays.items() if n.startswith("mtp.")}
        held = {n: t.numpy() for n, t in model_class.from_pretrained(folder, dtype="float32").state_dict().items()}
        out["hf5s"] = {n: _brief(a) for n, a in (held | kept).items()}
    if "mlx" in case.recorded:
        given = held if config["model_type"] in _FUSED else arrays
        if config["model_type"] in _NO_FURTHER:
            given = {n: a for n, a in given.items() if not n.startswith(f"model.layers.{config['num_hidden_layers']}.")}
        out["mlx"] = {n: _brief(a) for n, a in _mlx(config, given).items()}
    if "types" in case.recorded:
        out["types"] = _types(CASES[f"{case.name}-published"], parent)
    if "mxfp4" in case.recorded:
        out["mxfp4"] = {n: _brief(a) for n, a in _as_blocks(arrays).items()}
    defaults = model_class.config_class().to_dict() if model_class and not case.shapes else case.defaults
    text = writing(config)
    if (
        not defaults or text != config or case.part_type
    ):  # of the class of the part that writes, over those of the whole
        kinds = (config["model_type"], case.part_type or text["model_type"])
        defaults = {k: v for kind in kinds for k, v in _silent(kind).items()} | case.defaults
    out["defaults"] = {k: v for k, v in defaults.items() if k not in ("transformers_version", "_name_or_path")}
    return out


def _silent(model_type: str) -> dict[str, Any]:
    """What transformers' config of a model type says where a file says nothing; without parts."""
    import transformers
    from huggingface_hub.errors import StrictDataclassClassValidationError

    known = model_type in transformers.CONFIG_MAPPING and model_type != "bailing_hybrid"  # whose class reads others
    try:
        told = transformers.AutoConfig.for_model(model_type).to_dict() if known else {}
    except StrictDataclassClassValidationError:  # its defaults are at odds with one another
        told = {}
    return {key: value for key, value in told.items() if not (key.endswith("_config") and isinstance(value, dict))}


def writing(config: dict[str, Any]) -> dict[str, Any]:
    """What a config says of the part that writes, where it is one of several."""
    parts = (config.get(part) for part in ("text_config", "llm_config", "lfm", "transformer_layer_config"))
    return dict(next(filter(None, parts), None) or _thinking(config) or config)


def _thinking(config: dict[str, Any]) -> Any:
    return config.get("thinker_config", {}).get("text_config")


def _brief(array: NDArray[Any]) -> list[Any]:
    return [list(array.shape), digest(array)]


def _renumber(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the folder given its own numbers."""
    from safetensors.numpy import load_file

    arrays = {name: values(name, a.shape) for name, a in sorted(load_file(folder / "model.safetensors").items())}
    _save(folder, arrays)
    return arrays


def _save(folder: Path, arrays: dict[str, NDArray[np.float32]]) -> None:
    from safetensors.numpy import save_file

    save_file(arrays, folder / "model.safetensors", {"format": "pt"})


def _reference(folder: Path, parent: Path, case: Any) -> dict[str, Any]:
    import gguf
    import torch
    from conversion import (  # type: ignore[import-not-found]
        ModelBase,
        ModelType,
        get_model_architecture,
        get_model_class,
    )
    from tests.models.record_reference import _keys
    from tests.oracles import twins
    from tests.oracles.reference_converter import with_exact_mean, with_hparams, with_narrow_plamo

    twin = twins.STAND_INS[case.config.replace("Config", "ForCausalLM")] if case.twin else None
    if twin is not None:
        (parent / "twin").mkdir()
        twin.write(folder, parent / "twin")
        folder = parent / "twin"
    with_narrow_plamo()
    with_exact_mean()
    names = dict(gguf.TensorNameMap.block_mappings_cfg)
    files = {}
    for dtype, number in (("f32", 0), ("f16", 1)):
        files[dtype] = parent / f"{dtype}.gguf"
        known = with_hparams(ModelBase.load_hparams(folder, False), case.hparams)
        model = get_model_class(get_model_architecture(known, ModelType.TEXT))
        model.no_mtp = "--no-mtp" in case.flags
        model.lerp_weights = {}  # RWKV's classes keep them from one conversion to the next
        leaves = ("Ministral3Model", "Mistral4Model")  # to which Mistral3Model leaves the work
        for cls in (model, *(getattr(model, name, model) for name in leaves)):
            cls.set_vocab = lambda self: None
        model._get_suppress_tokens = lambda self: UNTRAINED  # MiniMax's, which asks the tokenizer for them
        with torch.inference_mode(), _exact_exp(), _without_recursion(), _of_floats(), _head_by_head():
            # some classes read config.json in a way of their own
            given: dict[str, Any] = {"hparams": known} if case.hparams else {}
            given |= {"target_model_dir": parent / "target"} if case.target else {}
            given |= {"eager": True} if "--no-lazy" in case.flags else {}
            model(folder, gguf.LlamaFileType(number), files[dtype], **given).write()
        gguf.TensorNameMap.block_mappings_cfg = names  # to which Arctic's adds its own for all models
    plain, half = (gguf.GGUFReader(path) for path in files.values())
    made = [t for t in plain.tensors if t.name in case.computed]
    computed = {"computed": {t.name: sample(t.data) for t in made}} if made else {}
    tensors = [
        [t.name, h.tensor_type.name, [int(n) for n in reversed(t.shape)], digest(t.data)]
        for t, h in zip(plain.tensors, half.tensors, strict=True)
        if twin is None or not t.name.endswith(twin.beyond)
    ]
    named = ("general.file_type", "general.quantization_version", "general.architecture")
    keys = [k for k in _keys(plain) if not k[0].startswith(("general.", "tokenizer.chat")) or k[0] in named]
    return {"gguf": tensors, "keys": keys, **computed}


def _types(case: Any, parent: Path) -> dict[str, Any]:
    """The types of a model as it is published and of what the reference makes of it: f16 is asked for."""
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    from safetensors import safe_open
    from tests.oracles import models

    folder, path = models.build(case, parent / case.name), parent / "types.gguf"
    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT)
    model = get_model_class(architecture)
    model.set_vocab = lambda self: None
    with torch.inference_mode():
        model(folder, gguf.LlamaFileType(1), path).write()
    with safe_open(folder / "model.safetensors", "np") as source:
        stored = {name: source.get_slice(name).get_dtype() for name in source.keys()}  # noqa: SIM118
    return {"hf": stored, "gguf": {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}}


@contextmanager
def _without_recursion() -> Iterator[None]:
    """b11549's BaichuanModel hands what isn't W_pack to itself, and so on without end; it means the class below."""
    from conversion.baichuan import BaichuanModel  # type: ignore[import-not-found]
    from conversion.base import TextModel  # type: ignore[import-not-found]

    plain = BaichuanModel.modify_tensors
    BaichuanModel.modify_tensors = lambda self, data, name, bid: (
        plain if "W_pack" in name else TextModel.modify_tensors
    )(self, data, name, bid)
    try:
        yield
    finally:
        BaichuanModel.modify_tensors = plain


@contextmanager
def _of_floats() -> Iterator[None]:
    """b11549's DeepseekV4Model takes experts in MXFP4 alone, and gives matrices the type of their source. Here it
    writes the experts' floats in the same places, and what it writes is in the type that is asked for."""
    from conversion.base import LazyTorchTensor, TextModel
    from conversion.deepseek import DeepseekV4Model  # type: ignore[import-not-found]

    replaced = ("_write_mxfp4_expert_tensor", "tensor_force_quant", "prepare_tensors")
    plain = {key: getattr(DeepseekV4Model, key) for key in replaced}

    def write(self: Any, layer: int, part: str, key: Any) -> list[str]:
        names = [f"layers.{layer}.ffn.experts.{e}.{part}.weight" for e in range(self.hparams["n_routed_experts"])]
        experts = np.stack([LazyTorchTensor.to_eager(self.model_tensors[n]()).numpy() for n in names])
        halves = self.ftype.name == "MOSTLY_F16"
        self.gguf_writer.add_tensor(self.format_tensor_name(key, layer), experts.astype("f2") if halves else experts)
        return names

    DeepseekV4Model._write_mxfp4_expert_tensor = write
    DeepseekV4Model.tensor_force_quant = lambda *_: False
    DeepseekV4Model.prepare_tensors = TextModel.prepare_tensors  # without a file type of its own
    try:
        yield
    finally:
        for key, method in plain.items():
            setattr(DeepseekV4Model, key, method)


@contextmanager
def _head_by_head() -> Iterator[None]:
    """b11549's ChameleonModel writes the norm of the first head for all; here each head has its own."""
    from conversion.chameleon import ChameleonModel  # type: ignore[import-not-found]

    plain = ChameleonModel._reverse_hf_permute
    ChameleonModel._reverse_hf_permute = staticmethod(
        lambda data, heads, width: data.reshape(heads, 2, -1).transpose(1, 2).reshape(data.shape)
    )
    try:
        yield
    finally:
        ChameleonModel._reverse_hf_permute = staticmethod(plain)


@contextmanager
def _exact_exp() -> Iterator[None]:
    """torch's exp rounded to the nearest F32, whatever this machine's own makes of the last bit."""
    import torch

    plain = torch.exp
    torch.exp = lambda t: plain(t.double()).float()
    try:
        yield
    finally:
        torch.exp = plain


def _as_blocks(arrays: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """The values of a gpt-oss whose experts come in MXFP4, under the names of their codes: each expert lies [out, in]
    (transformers.integrations.mxfp4.convert_moe_packed_tensors transposes what it has decoded)."""
    experts = ("experts.gate_up_proj", "experts.down_proj")
    return {
        f"{n}_blocks" if n.endswith(experts) else n: a.swapaxes(-1, -2) if n.endswith(experts) else a
        for n, a in arrays.items()
    }


def _words(array: NDArray[Any]) -> NDArray[Any]:
    """Numbers as the codes of MXFP4, 16 bytes at a time: mlx-lm's gpt-oss takes these apart, and floats wrongly."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape[:-1], -1, 16)


def _spelled_twice(config: dict[str, Any]) -> dict[str, Any]:
    """In the words of both versions: mlx-lm's Ministral 3 knows the newer ones alone."""
    from tests.oracles.models import respelled

    text = config.get("text_config")
    return {**config, **respelled(config)} | ({"text_config": _spelled_twice(text)} if text else {})


def _mlx(config: dict[str, Any], arrays: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
    """The parameters that mlx-lm's model makes of a folder's tensors."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm import utils
    from tests.oracles import folded
    from tests.oracles.models import respelled

    if config["model_type"] == "falcon_h1":  # of whose multipliers `sanitize` leaves some out
        arrays, config = folded.with_ones(arrays, config)
    newer = any(
        kind in str(config) for kind in ("ministral3", "mistral4", "glm_moe_dsa", "mellum", "spark2_5")
    )  # which wants `rope_parameters`
    config = _spelled_twice(config) if newer else respelled(config)
    config.get("text_config", config).update(_MLX_SAID.get(config["model_type"], {}))
    model_class, args = utils._get_classes(config)
    model = model_class(args.from_dict(config))
    if config["model_type"] == "gpt_oss":
        blocks = _as_blocks(arrays)
        arrays = {n: _words(a) if n.endswith("_blocks") else a for n, a in blocks.items()}
    theirs = _MLX_NAMES.get(config["model_type"], ("", ""))
    weights = {name.replace(*theirs): mx.array(a) for name, a in arrays.items()}
    weights = model.sanitize(weights) if hasattr(model, "sanitize") else weights
    model.load_weights(list(weights.items()), strict=False)  # there may be more, biases that it doesn't know
    parameters = dict(tree_flatten(model.parameters()))
    assert parameters.keys() <= weights.keys(), parameters.keys() - weights.keys()
    held = {name: np.array(value) for name, value in parameters.items()}
    return {name: a.view(np.float32) if a.dtype == np.uint32 else a for name, a in held.items()}


if __name__ == "__main__":
    main(sys.argv[1:])
