"""Weighbridge: one tool for files of model weights.

    import weighbridge as wb

Look. Each function gives a report, a dataclass; `bool(report)` is whether all is well.

    wb.identify(path)       what a file or folder is       wb.verify(path)   everything that is wrong with it
    wb.inspect(path)        what is inside                 wb.scan(path)     what it would do when it is loaded
    wb.diff(a, b)           what differs                   wb.hash(path)     digests of files or tensors
    wb.anatomy(path)        every byte                     wb.explain(path)  a pickle, step by step
    wb.fit(path)            whether it fits on a device    wb.choose(path)   format, type and commands
    wb.view(path)           a page in a browser            wb.prove(a, b)    whether both are the same model
    wb.stats(path)          statistics of the values       wb.ls()           the models of this machine
    wb.get("FILE::TENSOR")  one tensor as an array         wb.sbom(path)     its bill of materials
    wb.lineage([a, b])      which model is made from which

Vouch. `wb.verify(path, signature=..., key=...)` checks it.

    wb.sign("model/", key="key.pem")                          model.sig: who signed which files

Read. Any format, lazily: names to tensors.

    model = wb.open("model/")                 headers only
    model["lm_head.weight"].numpy()           one tensor, a view of the file where that is possible
    model["lm_head.weight"][0:10].torch()     some rows, without reading the rest
    wb.open("a.gguf", names="canonical")["layers.0.attention.q.weight"]

Serve an engine. The same names, config and layouts whatever the format.

    weights = wb.provider("model/")                                 weights.config.rope.theta
    weights.fuse("layers.0.mlp.gate.weight", "layers.0.mlp.up.weight").tensor
    weights.buffer("layers.0.attention.q.weight", layout="mlx")     one block: words, scales, biases

Write. `wb.plan_convert(...)` says what would happen (`plan.losses`), `plan.run()` does it, `wb.convert(...)` is both;
the same for every verb. Keywords are the options of the command.

    wb.convert("model/", "model.gguf", dtype="q8_0")          wb.split(src, dst, max_shard_size=5 * 10**9)
    wb.quantize("model/", "model.gguf", "Q4_K_M")             wb.merge(src, dst)
    wb.rename(src, dst, strip_prefix="module.")               wb.strip(checkpoint, dst)
    wb.slice(src, dst, layers="0-15")                         wb.edit(file, set={"general.name": "Mine"})
    wb.extract_lora(base, tuned, adapter, rank=32)
    wb.pack("model/", "packed/")                              wb.unpack("packed/", "model/")
    wb.ship("ollama", "model.gguf", "my-model")
    wb.save({"w": array}, "out.gguf", dtype="q8_0", metadata={"general.architecture": "mine"})
    wb.save_checkpoint(folder, model=model, optimizer=opt)    wb.load_checkpoint(folder, model=model)

Importing the package loads nothing else: each name is fetched on first use.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from weighbridge.api.comparing import compare_quantized
    from weighbridge.api.copying import fetch, pack, plan_fetch, plan_pack, plan_unpack, unpack
    from weighbridge.api.editing import edit, plan_edit
    from weighbridge.api.extracting import extract_lora, plan_extract_lora
    from weighbridge.api.loading import from_pretrained, load
    from weighbridge.api.looking import get, ls, stats
    from weighbridge.api.objects import Model, Tensor, open
    from weighbridge.api.provider import provider
    from weighbridge.api.saving import plan_save, save
    from weighbridge.api.training import load_checkpoint, save_checkpoint
    from weighbridge.api.writing import (
        convert,
        merge,
        plan_convert,
        plan_merge,
        plan_quantize,
        plan_rename,
        plan_slice,
        plan_split,
        plan_strip,
        quantize,
        rename,
        slice,
        split,
        strip,
    )
    from weighbridge.base import errors
    from weighbridge.conversion.archive.pack import PackPlan, PackReport
    from weighbridge.conversion.extraction.plan import ExtractPlan, ExtractReport
    from weighbridge.conversion.options import (
        AdapterOptions,
        CheckpointOptions,
        DcpOptions,
        GgufOptions,
        GraphOptions,
        HfOptions,
        MlxOptions,
        NumpyOptions,
        QuantizeOptions,
        SafetensorsOptions,
        SchemeOptions,
        TorchFolderOptions,
        TorchOptions,
        WriteOptions,
    )
    from weighbridge.conversion.plan.model import Plan
    from weighbridge.conversion.quantize.imatrix_report import inspect_imatrix
    from weighbridge.conversion.result import Loss, Move, Result
    from weighbridge.fitting.report import FitReport, fit
    from weighbridge.forward.imatrix import CalibrationPlan, CalibrationReport, imatrix, plan_imatrix
    from weighbridge.forward.quality import TextQualityReport, quality
    from weighbridge.forward.scores import SampleMean
    from weighbridge.models.model import SourceOptions
    from weighbridge.page.viewing import ServedPage, export_view, view, widget
    from weighbridge.reports.anatomy import anatomy
    from weighbridge.reports.diff.model import DiffReport
    from weighbridge.reports.diff.report import diff
    from weighbridge.reports.explain import explain
    from weighbridge.reports.hash.digests import HashReport, hash
    from weighbridge.reports.identify import identify
    from weighbridge.reports.inspect.report import InspectReport, inspect
    from weighbridge.reports.lineage.model import LineageReport
    from weighbridge.reports.lineage.report import lineage
    from weighbridge.reports.prove.model import ProveReport
    from weighbridge.reports.prove.report import prove
    from weighbridge.reports.sbom.report import SbomReport, sbom
    from weighbridge.reports.scan.engine import scan
    from weighbridge.reports.scan.model import ScanReport
    from weighbridge.reports.signature.sign import SignReport, sign
    from weighbridge.reports.verify.report import VerifyReport, verify
    from weighbridge.shipping.choose import Choice, choose
    from weighbridge.shipping.plan import ShipPlan, ShipReport
    from weighbridge.shipping.ship import plan_ship, ship

__version__ = "0.1.0"
__all__ = [
    "AdapterOptions", "CalibrationPlan", "CalibrationReport", "CheckpointOptions", "Choice", "DcpOptions", "DiffReport",
    "ExtractPlan", "ExtractReport", "FitReport", "GgufOptions", "GraphOptions", "HashReport", "HfOptions",
    "InspectReport", "LineageReport", "Loss", "MlxOptions", "Model", "Move", "NumpyOptions", "PackPlan", "PackReport",
    "Plan", "ProveReport", "QuantizeOptions", "Result", "SafetensorsOptions", "SampleMean", "SbomReport", "ScanReport",
    "SchemeOptions", "ServedPage", "ShipPlan", "ShipReport", "SignReport", "SourceOptions", "Tensor",
    "TextQualityReport", "TorchFolderOptions", "TorchOptions", "VerifyReport", "WriteOptions", "__version__", "anatomy",
    "choose", "compare_quantized", "convert", "diff", "edit", "errors", "explain", "export_view", "extract_lora",
    "fetch", "fit", "from_pretrained", "get", "hash", "identify", "imatrix", "inspect", "inspect_imatrix", "lineage",
    "load", "load_checkpoint", "ls", "merge", "open", "pack", "plan_convert", "plan_edit", "plan_extract_lora",
    "plan_fetch", "plan_imatrix", "plan_merge", "plan_pack", "plan_quantize", "plan_rename", "plan_save", "plan_ship",
    "plan_slice", "plan_split", "plan_strip", "plan_unpack", "prove", "provider", "quality", "quantize", "rename",
    "save", "save_checkpoint", "sbom", "scan", "ship", "sign", "slice", "split", "stats", "strip", "unpack", "verify",
    "view", "widget",
]  # fmt: skip

# Module -> the public names in it.
_MODULES: Final = {
    "api.comparing": "compare_quantized",
    "api.editing": "edit plan_edit",
    "api.extracting": "extract_lora plan_extract_lora",
    "api.copying": "fetch pack plan_fetch plan_pack plan_unpack unpack",
    "api.loading": "from_pretrained load",
    "api.looking": "get ls stats",
    "api.objects": "Model Tensor open",
    "api.provider": "provider",
    "api.saving": "plan_save save",
    "page.viewing": "ServedPage export_view view widget",
    "api.training": "load_checkpoint save_checkpoint",
    "api.writing": "convert merge plan_convert plan_merge plan_quantize plan_rename plan_slice plan_split plan_strip "
    "quantize rename slice split strip",
    "conversion.archive.pack": "PackPlan PackReport",
    "conversion.extraction.plan": "ExtractPlan ExtractReport",
    "conversion.options": "AdapterOptions CheckpointOptions DcpOptions GgufOptions GraphOptions HfOptions MlxOptions "
    "NumpyOptions QuantizeOptions SafetensorsOptions SchemeOptions TorchFolderOptions TorchOptions WriteOptions",
    "conversion.plan.model": "Plan",
    "conversion.quantize.imatrix_report": "inspect_imatrix",
    "conversion.result": "Loss Move Result",
    "forward.imatrix": "CalibrationPlan CalibrationReport imatrix plan_imatrix",
    "forward.quality": "TextQualityReport quality",
    "forward.scores": "SampleMean",
    "models.model": "SourceOptions",
    "fitting.report": "FitReport fit",
    "shipping.choose": "Choice choose",
    "shipping.plan": "ShipPlan ShipReport",
    "shipping.ship": "plan_ship ship",
    "reports.anatomy": "anatomy",
    "reports.diff.model": "DiffReport",
    "reports.diff.report": "diff",
    "reports.explain": "explain",
    "reports.hash.digests": "HashReport hash",
    "reports.identify": "identify",
    "reports.inspect.report": "InspectReport inspect",
    "reports.lineage.model": "LineageReport",
    "reports.lineage.report": "lineage",
    "reports.prove.model": "ProveReport",
    "reports.prove.report": "prove",
    "reports.scan.engine": "scan",
    "reports.scan.model": "ScanReport",
    "reports.sbom.report": "SbomReport sbom",
    "reports.signature.sign": "SignReport sign",
    "reports.verify.report": "VerifyReport verify",
}
_HOME: Final = MappingProxyType({name: module for module, names in _MODULES.items() for name in names.split()})


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "errors":
        value: Any = import_module("weighbridge.base.errors")
    elif name in _HOME:
        value = getattr(import_module(f"weighbridge.{_HOME[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
