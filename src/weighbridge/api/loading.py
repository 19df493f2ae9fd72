"""`load` and `from_pretrained` fill models of torch and transformers from any format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from weighbridge.api.objects import Model, open
from weighbridge.base.dtypes import DTypeLike, requested_dtype
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.conversion.options import Path
from weighbridge.models.open import SourceOptions

if TYPE_CHECKING:
    import torch

    from weighbridge.adapters.modules import LoadReport

Class = TypeVar("Class")
#: The config of weights without one.
Config = Path | Mapping[str, Any]


def load(
    path: Path, *, into: torch.nn.Module, dtype: DTypeLike | None = None, device: str | None = None,
    strict: bool = True, names: str | None = None, config: Config | None = None,
) -> LoadReport:  # fmt: skip
    """Fills a torch module from a file or folder of any format. On the CPU its parameters share the file's pages if the
    types agree.

    `into`: a module, which may be on the meta device. `dtype`: of floating point values; None keeps the module's types.
    `names`: the style of the module's names; None: the file's names, or Hugging Face's for a GGUF. `strict`: raise
    UsageError if names differ. The report lists missing and unexpected names. `config`: of weights without one: a dict,
    a config.json, or a folder or hf:// name.
    """
    from weighbridge.adapters.engines.transformers import module_names
    from weighbridge.adapters.modules import load_module

    with _open_for_module(path, names, config) as model:
        renamed = module_names(into, model)
        nodes = {renamed.get(name, name): model[name].node for name in model}
        # buffers that older classes saved and newer ones compute
        dropped = model.source.resolved.report.dropped if model.source.described else ()
        idle = frozenset(renamed.get(name, name) for name in dropped)
        return load_module(into, nodes, dtype=requested_dtype(dtype), device=device, strict=strict, idle=idle)


def from_pretrained(
    kind: type[Class], path: Path, *, dtype: DTypeLike | None = None, packed: bool = False, strict: bool = True,
    config: Any = None, **options: Any,
) -> Class:  # fmt: skip
    """Loads a model of a transformers class (`LlamaForCausalLM`, not an Auto class) from a file or folder of any format
    with a config: a GGUF, an MLX folder, a quantized or a plain one. Values are read on demand, and packed ones are
    decoded. `packed`: keep packed weights in transformers' modules if it supports the method in config.json
    (compressed-tensors, GPTQ, AWQ, FP8 ...; their libraries must be installed). `dtype`: of the weights, or with
    `packed` of the unpacked ones; None: the file's type, F32 for quantized ones. `strict`: raise FormatError if the
    file lacks weights of the class, which transformers would initialize randomly. `config`: instead of the folder's, or
    of weights without one: a transformers config, a dict, a config.json, a folder or an hf:// name. `options`: of
    transformers' `from_pretrained`."""
    from weighbridge.adapters.engines.transformers import transformers_model

    config = config.to_dict() if hasattr(config, "to_dict") else config
    with open(path, names="stored", config=config) if packed else _hub_model(path, config) as model:
        nodes = {name: model[name].node for name in model}
        loaded: Class = transformers_model(
            kind, model.config, nodes, requested_dtype(dtype), options, packed=packed, strict=strict,
            metadata=model.metadata,
        )  # fmt: skip
        return loaded


def _hub_model(path: Path, config: Config | None) -> Model:
    """Opens a model under hub names. transformers accepts all spellings of these; the family's table renames a GGUF or
    an MLX model. Without a table, the names are the hub's unless MLX wrote the file."""
    model = open(path, config=config)
    try:
        try:
            hub = model.source.dialect.startswith("hf")
        except (UnsupportedError, FormatError):
            hub = model.metadata.get("format") != "mlx" and "quantization" not in model.config
        return model if hub and model.format != "gguf" else Model(model.source, "hf", SourceOptions())
    except BaseException:
        model.close()
        raise


def _open_for_module(path: Path, names: str | None, config: Config | None) -> Model:
    """Opens a model under `names`, or by default a GGUF under hub names and others under the file's names."""
    if names is not None:
        return open(path, names=names, config=config)  # type: ignore[arg-type]
    model = open(path, config=config)
    if model.format != "gguf":
        return model
    model.close()
    try:
        return open(path, names="hf")
    except UnsupportedError:
        return open(path)
