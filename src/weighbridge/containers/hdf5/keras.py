"""Keras 3 models: a zip with config.json, metadata.json and model.weights.h5, an uncompressed HDF5 file.

Its datasets are read in place. A dataset is named after its place in the model (`layers/dense/vars/0`); the code that
config.json may name is never run. Reference: keras/src/saving/saving_lib.py of Keras 3.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_records
from weighbridge.containers.base import Index, Region, Rule
from weighbridge.containers.frameworks.tensor_list import TensorList, tiled
from weighbridge.containers.hdf5 import container
from weighbridge.io.source import Source

NAME: Final = "keras"
RULES: Final[Mapping[str, Rule]] = MappingProxyType(dict(container.RULES))
_WEIGHTS: Final = "model.weights.h5"
_CONFIGS: Final = ("config.json", "metadata.json")


def parse(source: Source) -> Index:
    """The datasets of model.weights.h5; config.json and metadata.json as metadata."""
    members = {member.name: member for member in zips.read(source).members}
    weights = members.get(_WEIGHTS)
    if weights is None:
        raise UnsupportedError(f"{source.name}: a Keras model without {_WEIGHTS}",
                               hint="save it with Keras's default options")  # fmt: skip
    if weights.method != zip_records.STORED:
        raise UnsupportedError(f"{source.name}: {_WEIGHTS} is compressed", hint="unpack the zip and name that file")
    tensor_list = TensorList(NAME, source, RULES)
    index = container.read(tensor_list, source.window(0, weights.start + weights.size), weights.start)
    metadata: dict[str, str] = {
        name: zips.read_member(source, members[name], MIB).decode("utf-8", "replace")
        for name in _CONFIGS
        if name in members
    }
    return Index(NAME, index.files, index.entries, metadata, index.data_start, 1, index.byte_order, 3, index.findings)


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; the weights by their datasets."""
    try:
        entries = parse(source).entries
    except (FormatError, UnsupportedError):
        entries = ()
    inside = sorted((e for e in entries if not e.file and e.nbytes), key=lambda e: e.offset)

    def of_member(_: object, member: zips.ZipMember) -> list[Region]:
        out = list(tiled(member.start, inside if member.name == _WEIGHTS else (), "structure of the HDF5 file"))
        at, end = out[-1].end if out else member.start, member.start + member.packed
        return [*out, Region(at, end, "header" if out else "value", member.name)] if at < end else out

    return zips.regions(source, of_member)
