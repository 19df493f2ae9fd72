"""NeMo's archives: a tar with a configuration and weights, which are read in place.

    model_config.yaml                       the settings
    model_weights.ckpt                      a file of torch.save: the state_dict
    mp_rank_01/model_weights.ckpt           that of tensor-parallel rank 1; tp_rank_01_pp_rank_002/ of pipeline rank 2
    model_weights/.metadata, __0_0.distcp   or a distributed checkpoint
    b36ae8fc_tokenizer.model ...            the tokenizer's files

Names may begin with `./`. A member outside the archive's folder is refused, as is a link: NeMo unpacks archives.
Archives before 2024 are compressed with gzip. They have to be unpacked first, because tensors are read in any order.
Reference: nemo/core/connectors/save_restore_connector.py of NeMo 2.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import CONFIG_JSON, FOLDER_FILES
from weighbridge.base.records import dataclass
from weighbridge.containers.archive import tar as tars
from weighbridge.containers.base import Entry, Index, Region
from weighbridge.containers.torch import dcp
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.decompress import codec_of
from weighbridge.io.source import Source, Window

NAME: Final = "nemo"
#: The settings, the weights, and the folder of a distributed checkpoint.
CONFIG, WEIGHTS, FOLDER = "model_config.yaml", "model_weights.ckpt", "model_weights/"
_METADATA: Final = FOLDER + ".metadata"
_ZARR: Final = ".zarray"
_OUTSIDE: Final = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)|^[/\\]|^[A-Za-z]:")
_SETTING: Final = re.compile(r"^(?P<key>[a-z_]+): *(?P<value>[^\s#]+) *(?:#.*)?$", re.MULTILINE | re.ASCII)
_GATED: Final = frozenset({"swiglu", "fast-swiglu", "geglu", "reglu", "fast-geglu", "fast-reglu"})


@dataclass(frozen=True)
class NemoArchive:
    """The files of an archive, by their names without `./`."""

    source: Source
    members: Mapping[str, tars.TarMember]

    def window(self, name: str) -> Window:
        member = self.members[name]
        return self.source.window(member.start, member.size, f"{self.source.name}::{name}")

    @property
    def weights(self) -> tuple[str, ...]:
        """The files of torch.save with weights, one for each rank."""
        return tuple(sorted(name for name in self.members if name.rpartition("/")[2] == WEIGHTS))

    def indexes(self) -> dict[str, Index]:
        """The tensors of the files with weights, by the files' names."""
        return {name: torch_zip.parse(self.window(name)) for name in self.weights}

    @property
    def config(self) -> str:
        """The settings as text; empty if there are none."""
        member = self.members.get(CONFIG)
        if member is None:
            return ""
        if member.size > CONFIG_JSON:
            raise FormatError("the settings are too large", path=self.source.name, offset=member.at,
                              expected=f"at most {CONFIG_JSON} bytes", found=member.size)  # fmt: skip
        return self.source.read(member.start, member.size).decode("utf-8", "replace")

    @property
    def chunks(self) -> dcp.DcpMetadata | None:
        """The content of a distributed checkpoint's `.metadata`; None without one. FormatError if a data file is
        missing."""
        if _METADATA not in self.members:
            return None
        metadata = dcp.read(self.window(_METADATA))
        if missing := [name for name in metadata.files if FOLDER + name not in self.members]:
            raise FormatError("a data file is missing", path=self.source.name, expected=FOLDER + missing[0])
        return metadata


def read(source: Source) -> NemoArchive:
    """The files of an archive. FormatError for a member that isn't inside its folder, and for two of one name."""
    if (codec := codec_of(source.head(16))) is not None and not tars.begins(source):
        raise UnsupportedError(f"{source.name}: compressed with {codec}, so tensors can't be read in any order",
                               hint=f"gzip -dc {source.name} > NEW.nemo")  # fmt: skip
    members: dict[str, tars.TarMember] = {}
    for member in tars.members(source):
        name = member.name.removeprefix("./")
        if _OUTSIDE.search(name) or member.kind not in ("file", "folder"):
            raise FormatError("a member leads out of the archive, or isn't a file", path=source.name, offset=member.at,
                              field=repr(member.name)[:200], found=member.link[:200] or member.kind)  # fmt: skip
        if member.kind == "folder":
            continue
        if name in members or len(members) >= FOLDER_FILES:
            raise FormatError("two members have one name, or there are too many", path=source.name, offset=member.at,
                              field=repr(name)[:200])  # fmt: skip
        members[name] = member
    return NemoArchive(source, members)


def settings(config: str) -> dict[str, Any]:
    """The settings of a configuration by the names of Megatron-LM's: its plain numbers and truth values."""
    values = {m["key"]: m["value"] for m in _SETTING.finditer(config)}
    args: dict[str, Any] = {key: int(value) for key, value in values.items() if re.fullmatch(r"\d{1,9}", value)}
    if values.get("share_embeddings_and_output_weights") in ("true", "false"):
        args["untie_embeddings_and_output_weights"] = values["share_embeddings_and_output_weights"] == "false"
    if "activation" in values:
        args["swiglu"] = values["activation"] in _GATED
    return args


def parse(source: Source) -> Index:
    """Every tensor as it is stored; if there are several ranks, a name begins with the rank's folder. The tensors of a
    distributed checkpoint are at their first chunks."""
    archive = read(source)
    metadata = {CONFIG: archive.config} if CONFIG in archive.members else {}
    if (chunks := archive.chunks) is not None:
        items = {name: t.chunks[0].item for name, t in chunks.tensors.items() if t.chunks}
        starts = {name: archive.members[FOLDER + item.file].start + item.offset for name, item in items.items()}
        specs = {name: tensor.spec for name, tensor in chunks.tensors.items()}
        entries = (Entry(n, spec.dtype, spec.shape, starts.get(n, 0), spec.nbytes) for n, spec in specs.items())
        return Index(NAME, (source,), tuple(entries), metadata, findings=chunks.findings)
    if not archive.weights:
        found = sorted(archive.members)[:4]
        if any(name.rpartition("/")[2] == _ZARR for name in archive.members):
            raise UnsupportedError(f"{source.name}: a distributed checkpoint of zarr arrays",
                                   hint="convert it to torch_dist with NeMo")  # fmt: skip
        raise FormatError("the archive has no weights", path=source.name, expected=WEIGHTS, found=found)
    return _stored(archive, metadata)


def _stored(archive: NemoArchive, metadata: dict[str, Any]) -> Index:
    """The tensors of all files of torch.save."""
    files: list[Source] = [archive.source]
    entries: list[Entry] = []
    indexes = archive.indexes()
    for name, index in indexes.items():
        front, start = name.removesuffix(WEIGHTS).replace("/", "."), archive.members[name].start
        for entry in index:
            file, offset = (len(files) + entry.file - 1, entry.offset) if entry.file else (0, start + entry.offset)
            entries.append(msgspec.structs.replace(entry, name=front + entry.name, offset=offset, file=file))
        files += index.files[1:]
    if len({index.byte_order for index in indexes.values()}) > 1:
        raise UnsupportedError(f"{archive.source.name}: ranks of different byte orders")
    first, findings = indexes[archive.weights[0]], tuple(f for index in indexes.values() for f in index.findings)
    return replace(first, format=NAME, files=tuple(files), entries=tuple(entries), findings=findings,
                   metadata={**metadata, **first.metadata}, data_start=(0,) * len(files))  # fmt: skip


def pickles(source: Source) -> list[tuple[str, Source, int]]:
    """Every pickle of the archive: its name, bytes, and offset in the file (-1: deflated)."""
    archive = read(source)
    out: list[tuple[str, Source, int]] = []
    if _METADATA in archive.members:
        out.append((_METADATA, archive.window(_METADATA), archive.members[_METADATA].start))
    for name in archive.weights:
        start = archive.members[name].start
        inner = torch_zip.pickles(archive.window(name))
        out += [(f"{name}::{title}", data, at if at < 0 else start + at) for title, data, at in inner]
    return out


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; unreadable bytes are "unknown"."""
    try:
        archive = read(source)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    named = [Region(m.at, m.start, "header", f"tar header of {name}") for name, m in archive.members.items()]
    for name, member in archive.members.items():
        if name in archive.weights:
            inner = torch_zip.regions(archive.window(name))
            named += [replace(r, start=r.start + member.start, end=r.end + member.start) for r in inner]
        elif member.size:
            named.append(Region(member.start, member.start + member.size, "value", name))
    return tars.filled(source, named)
