"""Recognises the content of a GGUF (model, adapter, projector ...) by its keys up to the first list of strings."""

from __future__ import annotations

from typing import Any

from weighbridge.containers.gguf.read import MAGIC, VERSION, peek
from weighbridge.containers.sniff.probe import Hit, Probe


def recognise(probe: Probe) -> Hit | None:
    """Magic, version in either byte order, then the kind by `general.*`."""
    if probe.head[:4] != MAGIC:
        return None
    if probe.size < 8:
        return Hit("gguf", evidence=("GGUF magic",), damage=("the file ends inside its first 8 bytes",))
    header = peek(probe.source)
    order = "big" if header.order == ">" else "little"
    sign = f"GGUF magic, version {header.version}, {order}-endian"
    detail: dict[str, Any] = {"version": header.version, "byte_order": order}
    if not 1 <= header.version <= VERSION:
        return Hit("gguf", "", (sign,), detail=detail, damage=(f"unknown version {header.version}",))
    values = {pair.key: pair.kv.value for pair in header.pairs}
    detail |= {"tensors": header.n_tensors, "keys": header.n_kv}
    detail |= {n: values[f"general.{n}"] for n in ("architecture", "type", "name") if values.get(f"general.{n}")}
    if any(key.startswith("tokenizer.ggml.") for key in values):
        detail["has_vocab"] = True
    elif len(values) == header.n_kv:  # else the walk ended before them, and it is unknown
        detail["has_vocab"] = False
    if values.get("split.count"):
        detail["split"] = (values.get("split.no"), values["split.count"])
    if isinstance(values.get("adapter.type"), str):
        detail["adapter"] = values["adapter.type"]
    evidence = [sign, *(f"general.{key} = {detail[key]!r}" for key in ("architecture", "type") if key in detail)]
    if detail["tensors"] == 0:
        evidence.append("no tensors" + (", but a vocabulary" if detail.get("has_vocab") else ""))
    if "split" in detail:
        evidence.append(f"part {(detail['split'][0] or 0) + 1} of {detail['split'][1]} (split.no, split.count)")
    damage: tuple[str, ...] = ()
    if header.broken is not None:
        damage = (f"its header is cut or broken: {header.broken.reason} at byte {header.end:,}",)
    return Hit("gguf", _kind(detail), tuple(evidence), detail=detail, damage=damage)


def _kind(detail: dict[str, Any]) -> str:
    """`general.type` decides; older files are recognised by architecture (clip = projector) or by having no tensors."""
    kind, architecture, adapter = detail.get("type"), detail.get("architecture"), detail.get("adapter")
    if kind == "adapter":
        return "lora-adapter" if adapter in (None, "lora") else "adapter"
    if kind in ("mmproj", "imatrix", "vocab"):
        return str(kind)
    if architecture == "clip":
        return "mmproj"
    if adapter:
        return "lora-adapter"
    if architecture == "controlvector":
        return "control-vector"
    if detail["tensors"] == 0 and detail.get("has_vocab"):
        return "vocab"
    return "model" if kind == "model" or architecture else ""
