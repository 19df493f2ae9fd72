"""`load` and `from_pretrained`: models of torch and transformers filled from any format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from weighbridge.api.keywords import Path
from weighbridge.api.objects import Model, open
from weighbridge.base.dtypes import dtype as _dtype
from weighbridge.base.errors import FormatError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from weighbridge.adapters.modules import LoadReport

Class = TypeVar("Class")


def load(
    path: Path, *, into: torch.nn.Module, dtype: str | None = None, device: str | None = None, strict: bool = True,
    names: str | None = None,
) -> LoadReport:  # fmt: skip
    """Fill a torch module from a file or folder of any format, by assignment: on the CPU its parameters share the
    file's pages where types agree.

    `into`: a module, also one on the meta device. `dtype`: of floating point values; None keeps the module's types.
    `names`: of which style the module's names are; None: the file's own, of a GGUF those of Hugging Face. `strict`: a
    UsageError where names differ. The report lists what was missing and unexpected.
    """
    from weighbridge.adapters.modules import load_module

    with _model(path, names) as model:
        kind = None if dtype is None else _dtype(dtype)
        return load_module(into, {n: model[n].node for n in model}, dtype=kind, device=device, strict=strict)


def from_pretrained(
    kind: type[Class], path: Path, *, dtype: str | None = None, packed: bool = False, **options: Any
) -> Class:  # fmt: skip
    """A model of a transformers class (`LlamaForCausalLM`, no Auto class) from a file or folder of any format that has
    its config: a GGUF, an MLX folder, a quantized or a plain one. Values are read as transformers asks for them, and
    packed ones are decoded. `packed`: keep them as they are in transformers' own modules, where config.json names a
    method that it has (compressed-tensors, GPTQ, AWQ, FP8 ...; their libraries must be installed). `dtype`: of the
    weights, with `packed` of those that aren't; None: the file's, F32 of quantized ones. `options`: those of
    transformers' `from_pretrained`."""
    from weighbridge.adapters.engines.transformers import transformers_model

    with open(path, names="stored") if packed else _hub_model(path) as model:
        wanted = None if dtype is None else _dtype(dtype)
        nodes = {name: model[name].node for name in model}
        found: Class = transformers_model(
            kind, model.config, nodes, wanted, options, packed=packed, metadata=model.metadata
        )
        return found


def _hub_model(path: Path) -> Model:
    """The model under hub names: by its family's table, else as the file has them, if they aren't a GGUF's or MLX's.
    transformers knows what its own older classes called their weights."""
    try:
        return open(path, names="hf")
    except (UnsupportedError, FormatError):
        model = open(path)
        if model.format == "gguf" or model.metadata.get("format") == "mlx" or "quantization" in model.config:
            model.close()
            raise
        return model


def _model(path: Path, names: str | None) -> Model:
    """The model under the names of modules: hub names where the file has others."""
    if names is not None:
        return open(path, names=names)  # type: ignore[arg-type]
    model = open(path)
    if model.format != "gguf":
        return model
    model.close()
    try:
        return open(path, names="hf")
    except UnsupportedError:
        return open(path)
