"""Recognisers of archives, and of model formats in them by the names of their members. Nothing is unpacked except the
first bytes of a compressed stream. Reference: the member names of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SNIFF_HEAD, SNIFF_TAR_MEMBERS
from weighbridge.containers.archive import tar as tars
from weighbridge.containers.archive.zip_peek import Directory, begin_of, directory, payload
from weighbridge.containers.archive.zip_records import STARTS as ZIP_STARTS
from weighbridge.containers.formats import DISTRIBUTED_DATA, GGUF_MAGIC
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.decompress import BROKEN, CODECS, WITH_MAGIC, codec_of

# Names of members that only one kind of archive has.
TORCHSCRIPT: Final = ("constants.pkl", "model.json", "bytecode.pkl")
TORCHSERVE: Final = "MAR-INF/MANIFEST.json"
PACKAGE: Final = ".data/extern_modules"
EXPORTED: Final = "archive_format"
_NEMO: Final = "model_config.yaml"

# ---- zip ----

_Test = Callable[[list[str], list[str]], bool]  # (member names, names without their first folder)


def _has(*members: str) -> _Test:
    return lambda names, inner: all(m in names or m in inner for m in members)


def _any_ends(suffix: str) -> _Test:
    return lambda names, inner: any(n.endswith(suffix) for n in names)


class _Zip(NamedTuple):
    """A zip whose member names pass `test` has the format; `evidence` is reported."""

    format: str
    variant: str
    test: _Test
    evidence: str


# The first row that matches wins, so specific rows come first.
_ZIPS: Final = (
    _Zip("keras", "v3", _has("config.json", "model.weights.h5"), "zip with config.json and model.weights.h5 (Keras 3)"),
    _Zip("torch-exported", "", _has(EXPORTED), "zip with archive_format (torch.export .pt2)"),
    _Zip("torch-zip", "package", _has(PACKAGE), "zip with .data/extern_modules (torch.package)"),
    _Zip("torchscript", "", _has(TORCHSCRIPT[0], "data.pkl"), "zip with constants.pkl and data.pkl (TorchScript)"),
    _Zip("torchscript", "1.0", lambda n, i: TORCHSCRIPT[1] in i and any(x.startswith("code/") for x in i),
         "zip with model.json and code/ (TorchScript of torch 1.0)"),
    _Zip("torchscript", "mobile", _has(TORCHSCRIPT[2]), "zip with bytecode.pkl (TorchScript lite interpreter)"),
    _Zip("torch-zip", "", lambda n, i: "data.pkl" in i, "zip with <root>/data.pkl (torch.save)"),
    _Zip("torchserve", "", _has(TORCHSERVE), "zip with MAR-INF/MANIFEST.json (TorchServe)"),
    _Zip("zip", "mlpackage", lambda n, i: any(x.endswith(".mlmodel") for x in n), "zip with a .mlmodel (Core ML)"),
    _Zip("npz", "", lambda n, i: bool(n) and all(x.endswith(".npy") for x in n), "zip whose members are all .npy"),
    _Zip("nemo", "", _any_ends(_NEMO), "zip with model_config.yaml (NeMo)"),
    _Zip("zip", "safetensors-inside", _any_ends(".safetensors"), "zip with .safetensors members"),
    _Zip("npz", "mixed", lambda n, i: any(x.endswith(".npy") for x in n), "zip with .npy members among others"),
    _Zip("zip", "gguf-inside", _any_ends(".gguf"), "zip with .gguf members"),
)  # fmt: skip
#: The formats that a zip may have.
ZIPS: Final = frozenset({"zip", *(row.format for row in _ZIPS)})


def member_names(probe: Probe) -> list[str]:
    """The names of a zip's members; the first member's only if the directory is missing. [] if it isn't a zip."""
    if probe.head[:4] not in ZIP_STARTS:
        return []
    listed = directory(probe)
    return [m.name for m in listed.members] if listed else [_first_name(probe)]


def _first_name(probe: Probe) -> str:
    """The name in a zip's first local header."""
    return probe.head[30 : 30 + min(int.from_bytes(probe.head[26:28], "little"), 256)].decode("utf-8", "replace")


def zip_members(probe: Probe) -> Hit | None:
    """A file that starts as a zip."""
    if probe.head[:4] not in ZIP_STARTS:
        return None
    listed = directory(probe)
    if listed is None:
        lack = "truncated: the directory at a zip's end is missing"
        name = _first_name(probe)
        first = f"zip signature PK\\3\\4, first member {name!r}"
        # torch.save puts data.pkl first, numpy.savez only .npy members
        kind = "torch-zip" if name.endswith("/data.pkl") else "npz" if name.endswith(".npy") else "zip"
        return Hit(kind, evidence=(first,), confidence="likely", damage=(lack,))
    # Their offsets count from the beginning of each, so the directory may be found at the same place in the first.
    if _first_name(probe).endswith("/data.pkl") and (begin_of(probe.source, probe.size) or 0) > 0:
        evidence = ("zip signature PK\\3\\4", "several files of torch.save, one after the other")
        return Hit(DISTRIBUTED_DATA, evidence=evidence, confidence="likely")
    return _by_members(listed)


def _by_members(listed: Directory) -> Hit:
    """The format by the member names of a zip."""
    names = [m.name for m in listed.members]
    inner = [n.partition("/")[2] for n in names]
    detail = {"members": len(names)}
    damage = ("the zip directory is cut off, or larger than the part that is read",) if listed.cut else ()
    for row in _ZIPS:
        if row.test(names, inner):
            return Hit(row.format, row.variant, ("zip signature PK\\3\\4", row.evidence), detail=detail, damage=damage)
    few = ", ".join(names[:4]) or "none"
    return Hit("zip", evidence=("zip signature PK\\3\\4", f"members: {few}"), detail=detail, damage=damage)


_EXECUTABLES: Final = (
    (b"MZqFpD", "Actually Portable Executable (MZqFpD)"),
    (b"jartsr=", "Actually Portable Executable (jartsr)"),
    (b"\x7fELF", "ELF executable"),
    (b"MZ", "DOS/Windows executable (MZ)"),
    (b"\xcf\xfa\xed\xfe", "Mach-O executable"),
    (b"\xca\xfe\xba\xbe", "Mach-O universal executable"),
)


def executable(probe: Probe) -> Hit | None:
    """A program, or a llamafile if a zip at its end contains a stored GGUF."""
    sign = next((evidence for magic, evidence in _EXECUTABLES if probe.head.startswith(magic)), None)
    if sign is None:
        return None
    listed = directory(probe)
    models = [m for m in listed.members if m.name.lower().endswith(".gguf")] if listed else []
    for member in models:
        at = payload(probe, member)
        if member.method == 0 and at is not None and probe.at(at, 4) == GGUF_MAGIC:
            detail = {"gguf": {"name": member.name, "offset": at, "size": member.size}, "members": len(models)}
            holds = f"a zip at its end contains {member.name} at byte {at:,}"
            return Hit("llamafile", "", (sign, holds), detail=detail)
    if listed and any(m.name == ".args" or m.name.startswith("llama") for m in listed.members):
        return Hit("llamafile", "no-weights", (sign, "a zip at its end, without a GGUF inside"), "likely")
    return Hit("executable", evidence=(sign,), confidence="likely" if sign.startswith("DOS") else "certain")


def prefixed_zip(probe: Probe) -> Hit | None:
    """A zip after other bytes. Python's zipfile and torch's reader open it; torch.load doesn't."""
    listed = directory(probe)
    if listed is None or not listed.members or payload(probe, listed.members[0]) is None:
        return None
    hit = _by_members(listed)
    sign = f"a zip directory at the end, after {listed.members[0].offset:,} other bytes"
    return Hit(hit.format, hit.variant, (sign, *hit.evidence[1:]), "likely", hit.detail, hit.damage)


# ---- tar ----


class _Tar(NamedTuple):
    """A tar with at least `least` of these members has the format."""

    format: str
    members: frozenset[str]
    least: int
    evidence: str


_TARS: Final = (
    _Tar("torch-tar", frozenset({"pickle", "storages", "tensors", "sys_info"}), 3,
         "tar with sys_info, pickle, storages, tensors (torch 0.1)"),
    _Tar("nemo", frozenset({_NEMO}), 1, "tar with model_config.yaml (NeMo)"),
    _Tar("tf-hub", frozenset({"saved_model.pb"}), 1, "tar with saved_model.pb (TensorFlow)"),
)  # fmt: skip
#: The formats that a tar may have.
TARS: Final = frozenset({"tar", *(row.format for row in _TARS)})


def tar(probe: Probe) -> Hit | None:
    """A tar, by a header with a valid checksum, whatever its magic."""
    if not probe.head.strip(b"\0") or not probe.head[0] or not tars.begins(probe.source):
        return None
    names: list[str] = []  # of the first members, until the archive is damaged
    with suppress(FormatError, UnsupportedError):
        for member in islice(tars.members(probe.source, strict=False), SNIFF_TAR_MEMBERS):
            names.append(member.name)
    bases = {n.rstrip("/").split("/")[-1] for n in names}
    for row in _TARS:
        if len(row.members & bases) >= row.least:
            return Hit(row.format, evidence=("tar header", row.evidence))
    return Hit("tar", evidence=("tar header", f"members: {', '.join(names[:4])}"), detail={"members_seen": len(names)})


# ---- compressed streams ----


def first_bytes_inside(probe: Probe) -> tuple[str | None, bytes]:
    """The codec of a stream with a magic, and its first decompressed bytes (empty if it is damaged)."""
    name = codec_of(probe.head)
    if name not in WITH_MAGIC or (name == "bz2" and probe.head[4:10] != b"1AY&SY"):
        return None, b""
    try:
        return name, CODECS[name].decoder().decompress(probe.head, SNIFF_HEAD)
    except (*BROKEN, UnsupportedError):
        return name, b""
