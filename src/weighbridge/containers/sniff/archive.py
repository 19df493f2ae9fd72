"""Recognisers of archives, and of what model formats put into them. A zip's central directory and a tar's headers are
walked by hand within bounds; nothing is unpacked except the first bytes of a compressed stream.

References: PKWARE APPNOTE 6.3 (4.3.12, 4.3.14-16, 4.5.3), POSIX ustar; torch's member names as torch 2.13 writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from weighbridge.base.limits import SNIFF_HEAD, SNIFF_TAR_MEMBERS, SNIFF_WHOLE, SNIFF_ZIP_MEMBERS
from weighbridge.containers.sniff.probe import Hit, Probe
from weighbridge.io.decompress import BROKEN, CODECS, codec_of


class Member(NamedTuple):
    """One central directory entry; `offset` is that of its local header, from the start of the file."""

    name: str
    method: int
    offset: int
    packed: int
    size: int


class Directory(NamedTuple):
    """A zip's central directory. `shift`: bytes in front of the archive that its offsets don't count."""

    members: list[Member]
    shift: int
    cut: bool


def directory(probe: Probe) -> Directory | None:
    """The central directory that the last end-of-central-directory record tells of; None where there is none."""
    end = probe.tail.rfind(b"PK\x05\x06")
    if end < 0 or len(probe.tail) - end < 22:
        return None
    plain = struct.unpack("<H2I", probe.tail[end + 10 : end + 20])
    count, length, start, end = _zip64(probe, end + probe.size - len(probe.tail), plain)
    if length > end:
        return None
    # Junk in front (an executable): the directory stands right before its end record, whatever its offset says.
    shift = max(end - length - start, 0)
    data = probe.at(start + shift, min(length, SNIFF_WHOLE))
    members = _entries(data, SNIFF_ZIP_MEMBERS, shift)  # by the directory's size, whatever the count says, as zipfile
    return Directory(members, shift, cut=len(members) != count)


def _zip64(probe: Probe, end: int, plain: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Count, length, start and end position from the zip64 record, or the plain ones where it is not there.

    torch writes the record always, other writers only for big archives. It stands where its locator says, or (bytes
    in front of the archive) right before the locator."""
    locator = probe.at(end - 20, 20)
    places = (struct.unpack("<Q", locator[8:16])[0], end - 76) if locator[:4] == b"PK\x06\x07" else ()
    for at in places:
        record = probe.at(at, 56)
        if len(record) == 56 and record[:4] == b"PK\x06\x06":
            count, length, start = struct.unpack("<3Q", record[32:56])
            return count, length, start, at
    count, length, start = plain
    return count, length, start, end


def _entries(data: bytes, count: int, shift: int) -> list[Member]:
    out: list[Member] = []
    at = 0
    while len(out) < count and data[at : at + 4] == b"PK\x01\x02" and len(data) - at >= 46:
        (method,) = struct.unpack_from("<H", data, at + 10)
        packed, size, n_name, n_extra, n_comment = struct.unpack_from("<IIHHH", data, at + 20)
        (offset,) = struct.unpack_from("<I", data, at + 42)
        name = data[at + 46 : at + 46 + n_name]
        extra = data[at + 46 + n_name : at + 46 + n_name + n_extra]
        size, packed, offset = _zip64_extra(extra, size, packed, offset)
        out.append(Member(name.decode("utf-8", "replace"), method, offset + shift, packed, size))
        at += 46 + n_name + n_extra + n_comment
    return out


def _zip64_extra(extra: bytes, *fields: int) -> tuple[int, ...]:
    """The fields (size, packed, offset) that are saturated, from extra field 1, in that order (4.5.3)."""
    at, values = 0, list(fields)
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            value = extra[at + 4 : at + 4 + length]  # which may be cut off
            wide = struct.iter_unpack("<Q", value[: len(value) // 8 * 8])
            return tuple(next(wide, (v,))[0] if v == 0xFFFFFFFF else v for v in values)
        at += 4 + length
    return tuple(values)


def payload(probe: Probe, member: Member) -> int | None:
    """Where a member's bytes start (its local header has its own name and extra lengths); None where it is broken."""
    head = probe.at(member.offset, 30)
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        return None
    start: int = member.offset + 30 + sum(struct.unpack("<HH", head[26:30]))
    return start if start + member.packed <= probe.size else None


# ---- what a zip holds ----

_Test = Callable[[list[str], list[str]], bool]  # (member names, names without their first folder)


def _has(*wanted: str) -> _Test:
    return lambda names, inner: all(w in names or w in inner for w in wanted)


def _any_ends(suffix: str) -> _Test:
    return lambda names, inner: any(n.endswith(suffix) for n in names)


class _Zip(NamedTuple):
    format: str
    variant: str
    test: _Test
    words: str


# First row that fits wins, so the more special ones come first.
_ZIPS: Final = (
    _Zip("keras", "v3", _has("config.json", "model.weights.h5"), "zip with config.json and model.weights.h5 (Keras 3)"),
    _Zip("torch-zip", "pt2", _has("archive_format"), "zip with archive_format (torch.export .pt2)"),
    _Zip("torch-zip", "package", _has(".data/extern_modules"), "zip with .data/extern_modules (torch.package)"),
    _Zip("torchscript", "", _has("constants.pkl", "data.pkl"), "zip with constants.pkl and data.pkl (TorchScript)"),
    _Zip("torchscript", "1.0", lambda n, i: "model.json" in i and any(x.startswith("code/") for x in i),
         "zip with model.json and code/ (TorchScript of torch 1.0)"),
    _Zip("torchscript", "mobile", _has("bytecode.pkl"), "zip with bytecode.pkl (TorchScript lite interpreter)"),
    _Zip("torch-zip", "", lambda n, i: "data.pkl" in i, "zip with <root>/data.pkl (torch.save)"),
    _Zip("torchserve", "", _has("MAR-INF/MANIFEST.json"), "zip with MAR-INF/MANIFEST.json (TorchServe)"),
    _Zip("coreml", "mlpackage", lambda n, i: any(x.endswith(".mlmodel") for x in n), "zip with a .mlmodel (Core ML)"),
    _Zip("npz", "", lambda n, i: bool(n) and all(x.endswith(".npy") for x in n), "zip whose members are all .npy"),
    _Zip("nemo", "", _any_ends("model_config.yaml"), "zip with model_config.yaml (NeMo)"),
    _Zip("zip", "safetensors-inside", _any_ends(".safetensors"), "zip with .safetensors members"),
    _Zip("npz", "mixed", lambda n, i: any(x.endswith(".npy") for x in n), "zip with .npy members among others"),
    _Zip("zip", "gguf-inside", _any_ends(".gguf"), "zip with .gguf members"),
)  # fmt: skip


def archive(probe: Probe) -> Hit | None:
    """A file that starts as a zip."""
    if probe.head[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
        return None
    found = directory(probe)
    if found is None:
        lack = "truncated: the directory at a zip's end is missing"
        name = probe.head[30 : 30 + min(int.from_bytes(probe.head[26:28], "little"), 256)].decode("utf-8", "replace")
        first = f"zip signature PK\\3\\4, first member {name!r}"
        # torch.save puts data.pkl first, numpy.savez only .npy members
        kind = "torch-zip" if name.endswith("/data.pkl") else "npz" if name.endswith(".npy") else "zip"
        return Hit(kind, evidence=(first,), confidence="likely", damage=(lack,))
    return contents(found)


def contents(found: Directory) -> Hit:
    """What a zip directory's names say."""
    names = [m.name for m in found.members]
    inner = [n.partition("/")[2] for n in names]
    detail = {"members": len(names)}
    damage = ("the zip directory is cut or larger than what is read of it",) if found.cut else ()
    for row in _ZIPS:
        if row.test(names, inner):
            return Hit(row.format, row.variant, ("zip signature PK\\3\\4", row.words), detail=detail, damage=damage)
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
    """A program; with a zip at its end that holds a stored GGUF it is a llamafile."""
    words = next((w for magic, w in _EXECUTABLES if probe.head.startswith(magic)), None)
    if words is None:
        return None
    found = directory(probe)
    models = [m for m in found.members if m.name.lower().endswith(".gguf")] if found else []
    for member in models:
        at = payload(probe, member)
        if member.method == 0 and at is not None and probe.at(at, 4) == b"GGUF":
            detail = {"gguf": {"name": member.name, "offset": at, "size": member.size}, "members": len(models)}
            holds = f"a zip at its end holds {member.name} at byte {at:,}"
            return Hit("llamafile", "", (words, holds), detail=detail)
    if found and any(m.name == ".args" or m.name.startswith("llama") for m in found.members):
        return Hit("llamafile", "no-weights", (words, "a zip at its end, without a GGUF inside"), "likely")
    return Hit("executable", evidence=(words,), confidence="likely" if words.startswith("DOS") else "certain")


def prefixed_zip(probe: Probe) -> Hit | None:
    """A zip behind other bytes. Python's zipfile and torch's reader open it; torch.load doesn't."""
    found = directory(probe)
    if found is None or not found.members or payload(probe, found.members[0]) is None:
        return None
    hit = contents(found)
    words = f"a zip directory at the end, behind {found.members[0].offset:,} other bytes"
    return Hit(hit.format, hit.variant, (words, *hit.evidence[1:]), "likely", hit.detail, hit.damage)


# ---- tar ----

_TARS: Final = (
    (
        "torch-tar",
        {"pickle", "storages", "tensors", "sys_info"},
        3,
        "tar with sys_info, pickle, storages, tensors (torch 0.1)",
    ),
    ("nemo", {"model_config.yaml"}, 1, "tar with model_config.yaml (NeMo)"),
    ("tf-hub", {"saved_model.pb"}, 1, "tar with saved_model.pb (TensorFlow)"),
)


def tar(probe: Probe) -> Hit | None:
    """ustar magic or, for older tars, a header whose checksum is right."""
    if not _tar_header(probe.head[:512]):
        return None
    names = _tar_names(probe)
    bases = {n.rstrip("/").split("/")[-1] for n in names}
    for kind, wanted, least, words in _TARS:
        if len(wanted & bases) >= least:
            return Hit(kind, evidence=("tar header", words))
    return Hit("tar", evidence=("tar header", f"members: {', '.join(names[:4])}"), detail={"members_seen": len(names)})


def _tar_header(block: bytes) -> bool:
    if len(block) < 512 or not block[0]:
        return False
    said = block[148:156].strip(b" \0")
    if not said or any(c not in b"01234567" for c in said):
        return False
    return int(said, 8) == sum(block[:148]) + 8 * 32 + sum(block[156:])


def _tar_names(probe: Probe) -> list[str]:
    names: list[str] = []
    at = 0
    while len(names) < SNIFF_TAR_MEMBERS and _tar_header(block := probe.at(at, 512)):
        names.append(block[:100].split(b"\0")[0].decode("utf-8", "replace"))
        octal = block[124:136].strip(b" \0")
        size = int(octal, 8) if octal and all(c in b"01234567" for c in octal) else 0
        at += 512 + (size + 511) // 512 * 512
    return names


# ---- compressed streams ----


def compressed(probe: Probe) -> tuple[str, bytes] | None:
    """The codec of a stream with a sure sign, and the first bytes inside (empty where they can't be had)."""
    name = codec_of(probe.head)
    if name not in _SURE or (name == "bz2" and probe.head[4:10] != b"1AY&SY"):
        return None
    try:
        return name, CODECS[name].decoder().decompress(probe.head, SNIFF_HEAD)
    except BROKEN:
        return name, b""


# The others begin with two bytes that anything may begin with.
_SURE: Final = ("gzip", "bz2", "xz")
