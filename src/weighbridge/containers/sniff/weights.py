"""Recognisers of the formats made for weights: safetensors, GGUF, the GGML family, legacy imatrix files.

A first look only: a safetensors header is decoded when it is short enough, a GGUF's key-values are walked up to its
first array. Whole parsing (and its verdict) is the container's job.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SAFETENSORS_HEADER, SNIFF_KEYS, SNIFF_STRING, SNIFF_WHOLE
from weighbridge.containers.sniff import tensor_names as names
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.cursor import Cursor

_SPACE: Final = b" \t\r\n"


def safetensors(probe: Probe) -> Hit | None:
    """`u64 N, N bytes of a JSON object`: any text's first 8 bytes are a number far above the header cap."""
    length = probe.number(0, "<Q")
    if length is None or not 2 <= length <= SAFETENSORS_HEADER:
        return None
    start = probe.at(8, 4096).lstrip(_SPACE)
    if start[:1] != b"{" or start[1:].lstrip(_SPACE)[:1] not in (b'"', b"}", b""):
        return None
    evidence = (f"bytes 0-7 are a header length ({length:,}), and a JSON object follows",)
    if 8 + length > probe.size:
        lack = f"the header ends at byte {8 + length:,} but the file has {probe.size:,}"
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=(lack,))
    if length > SNIFF_WHOLE:
        return Hit("safetensors", evidence=evidence)
    header = _json_object(probe.at(8, length))
    if header is None:
        return Hit("safetensors", evidence=evidence, confidence="likely", damage=("the header is not valid JSON",))
    return _safetensors_header(header, evidence, 8 + length, probe.size)


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):  # msgspec.DecodeError is a ValueError
        return None
    return value if isinstance(value, dict) else None


def _safetensors_header(header: dict[str, Any], evidence: tuple[str, ...], start: int, size: int) -> Hit:
    meta = header.pop("__metadata__", None)
    made = meta.get("format") if isinstance(meta, dict) else None
    tensors = list(header)
    detail: dict[str, Any] = {"tensors": len(tensors)}
    if isinstance(made, str):
        detail["metadata_format"] = made
        evidence += (f'__metadata__ says format "{made}"',)
    adapter, family = names.first(names.ADAPTERS, tensors), names.first(names.FAMILIES, tensors)
    packings = names.every(names.PACKINGS, tensors)
    evidence += tuple(look.words for look in (adapter, family, *packings) if look)
    detail |= ({"family": family.what} if family else {}) | (
        {"packings": [look.what for look in packings]} if packings else {}
    )
    variant = adapter.what if adapter else "mlx" if made == "mlx" else ""
    return Hit("safetensors", variant, evidence, detail=detail, damage=_size_damage(header, start, size))


def _size_damage(header: dict[str, Any], start: int, size: int) -> tuple[str, ...]:
    ends = [_end(entry) for entry in header.values()]
    expected = start + max(ends, default=0)
    if expected == size:
        return ()
    if expected > size:
        lost = sum(start + end > size for end in ends)
        return (
            f"truncated: has {size:,} of {expected:,} bytes, {lost} of {len(ends)} tensors are incomplete or missing",
        )
    return (f"{size - expected:,} bytes follow the last tensor",)


def _end(entry: Any) -> int:
    """Where a header entry's bytes end (0 where the entry is not one)."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else entry[2:3] if isinstance(entry, list) else None
    if isinstance(entry, list) and offsets:
        offsets = offsets[0]
    end = offsets[1] if isinstance(offsets, list) and len(offsets) == 2 else 0
    return end if isinstance(end, int) and end > 0 else 0


# ---- GGUF ----

# Sizes of the scalar value types (id -> struct code); 8 is a string, 9 an array (`gguf_metadata_value_type`).
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def gguf(probe: Probe) -> Hit | None:
    """Magic, version in either byte order, then what `general.*` says it holds."""
    version = probe.number(4, "<I")
    if probe.head[:4] != b"GGUF":
        return None
    if version is None:
        return Hit("gguf", evidence=("GGUF magic",), damage=("the file ends inside its first 8 bytes",))
    # gguf.cpp: the low 16 bits of the version are zero when the file has the other byte order.
    order = ">" if version & 0xFFFF == 0 and version else "<"
    number = int.from_bytes(probe.head[4:8], "big" if order == ">" else "little")
    words = f"GGUF magic, version {number}, {'big' if order == '>' else 'little'}-endian"
    detail: dict[str, Any] = {"version": number, "byte_order": "big" if order == ">" else "little"}
    damage: tuple[str, ...] = () if 1 <= number <= 3 else (f"version {number} is not known",)
    if not damage:
        damage = _gguf_keys(probe, order, number, detail)
    return Hit("gguf", _gguf_kind(detail), (words, *_gguf_evidence(detail)), detail=detail, damage=damage)


def _gguf_keys(probe: Probe, order: str, version: int, detail: dict[str, Any]) -> tuple[str, ...]:
    """Walk the key-values up to the first array of strings; put what matters into `detail`. Words of damage."""
    cursor = Cursor(probe.source, 8, ">" if order == ">" else "<", chunk=64 * 1024)
    wide = "I" if version == 1 else "Q"
    values: dict[str, Any] = {}
    try:
        detail["tensors"], detail["keys"] = cursor.number(wide, "tensor count"), cursor.number(wide, "key count")
        for _ in range(min(detail["keys"], SNIFF_KEYS)):
            key = cursor.take(_bounded(cursor.number(wide, "key length")), "key").decode("utf-8", "replace")
            kind = cursor.number("I", "type")
            values[key] = None
            if kind == 9 and not _skip_array(cursor, wide):
                break
            if kind != 9:
                values[key] = _scalar(cursor, kind, wide)
    except FormatError as error:
        damage: tuple[str, ...] = (f"its header is cut or broken: {error.reason} at byte {cursor.offset:,}",)
    else:
        damage = ()
    detail |= {
        name: values[f"general.{name}"] for name in ("architecture", "type", "name") if values.get(f"general.{name}")
    }
    if any(key.startswith("tokenizer.ggml.") for key in values):
        detail["has_vocab"] = True
    elif len(values) == detail.get("keys"):  # else the walk ended before them, and nothing is known
        detail["has_vocab"] = False
    if values.get("split.count"):
        detail["split"] = (values.get("split.no"), values["split.count"])
    if isinstance(values.get("adapter.type"), str):
        detail["adapter"] = values["adapter.type"]
    return damage


def _bounded(length: int) -> int:
    if length > SNIFF_STRING:
        raise FormatError("a string is implausibly long", found=length)
    return length


def _scalar(cursor: Cursor, kind: int, wide: str) -> Any:
    if kind == 8:
        length = cursor.number(wide, "string length")
        if length > SNIFF_STRING:  # a chat template is shorter; whatever it is, its content is of no use here
            return cursor.skip(length, "string")
        return cursor.take(length, "string").decode("utf-8", "replace")
    if kind not in _SCALARS:
        raise FormatError("a value has an unknown type", found=kind)
    return struct.unpack(cursor.order + _SCALARS[kind], cursor.take(struct.calcsize("=" + _SCALARS[kind]), "value"))[0]


def _skip_array(cursor: Cursor, wide: str) -> bool:
    """Step over an array of fixed-size elements; False at any other (walking 260,000 tokens is not worth it here)."""
    kind, count = cursor.number("I", "element type"), cursor.number(wide, "element count")
    if kind not in _SCALARS:
        return False
    cursor.skip(count * struct.calcsize("=" + _SCALARS[kind]), "array")
    return True


def _gguf_kind(detail: dict[str, Any]) -> str:
    """`general.type` decides; older files are told by architecture (clip = projector) and by having no tensors."""
    kind = detail.get("type")
    if kind in ("adapter", "mmproj", "imatrix", "vocab"):
        return {"adapter": "lora-adapter" if detail.get("adapter", "lora") == "lora" else "adapter"}.get(
            kind, str(kind)
        )
    if detail.get("architecture") == "clip":
        return "mmproj"
    if detail.get("adapter"):
        return "lora-adapter"
    if detail.get("architecture") == "controlvector":
        return "control-vector"
    if detail.get("tensors") == 0 and detail.get("has_vocab"):
        return "vocab"
    return "model" if kind == "model" or detail.get("architecture") else ""


def _gguf_evidence(detail: dict[str, Any]) -> tuple[str, ...]:
    said = [f"general.{key} = {detail[key]!r}" for key in ("architecture", "type") if key in detail]
    if detail.get("tensors") == 0:
        said.append("no tensors" + (", but a vocabulary" if detail.get("has_vocab") else ""))
    if "split" in detail:
        said.append(f"part {(detail['split'][0] or 0) + 1} of {detail['split'][1]} (split.no, split.count)")
    return tuple(said)


# ---- before GGUF ----

# u32 magics as they lie on disk, what they are, and their versions (llama.cpp, March to August 2023; None: no field).
_GGML: Final = {
    b"lmgg": ("ggml", None),
    b"fmgg": ("ggmf", (1,)),
    b"tjgg": ("ggjt", (1, 2, 3)),
    b"algg": ("ggla", (1,)),
    b"nsgg": ("ggsn", None),
}


def ggml(probe: Probe) -> Hit | None:
    """GGML, GGMF, GGJT; GGLA is a LoRA of that time, GGSN a saved session."""
    row = _GGML.get(probe.head[:4])
    if row is None:
        return None
    kind, versions = row
    words = f"magic {kind.upper()} (a format before GGUF)"
    version = probe.number(4, "<I")
    if versions is None or version is None:
        return Hit("ggml", kind, (words,))
    known = version in versions
    evidence, detail = (f"{words}, version {version}",), {"version": version}
    if known:
        return Hit("ggml", f"{kind}-v{version}", evidence, detail=detail)
    return Hit("ggml", kind, evidence, "likely", detail, (f"{kind} version {version} is not known",))


def imatrix_dat(probe: Probe) -> Hit | None:
    """llama-imatrix before GGUF: i32 count; each i32 length, name, i32 calls, i32 values, f32 values[]."""
    count, at, seen = probe.number(0, "<i"), 4, []
    if count is None or not 1 <= count <= 100_000:
        return None
    for _ in range(min(count, 2)):
        length = probe.number(at, "<i") or 0
        name = probe.at(at + 4, length) if 0 < length <= 256 else b""
        values = probe.number(at + 4 + length + 4, "<i") or 0
        at += 4 + length + 8 + 4 * values
        if not name.isascii() or not name.decode("ascii").isprintable() or values <= 0 or at > probe.size:
            return None
        seen.append(name.decode("ascii"))
    evidence = (f"a count ({count}), then named vectors of floats ({', '.join(seen)} ...)",)
    return Hit("imatrix-dat", evidence=evidence, confidence="likely", detail={"entries": count})
