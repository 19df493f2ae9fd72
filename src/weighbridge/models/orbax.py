"""Checkpoints of Orbax: a tree of arrays of zarr, in a database (`containers/zarr/ocdbt.py`) or as files.

    _METADATA            JSON: the tree (`tree_metadata`), `use_ocdbt`, `use_zarr3`
    manifest.ocdbt       the database, and its files d/..., ocdbt.process_0/d/...
    params.dense.kernel/ without a database: an array's folder

A tensor's name is its path in the tree, joined by dots. A step of several items has a folder for each.
Reference: orbax-checkpoint 0.12.8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import INDEX_JSON
from weighbridge.base.spec import c_strides
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.boxes import Box
from weighbridge.containers.formats import OCDBT_FILE, ORBAX, ORBAX_FORMAT
from weighbridge.containers.zarr.arrays import ARRAYS, ZarrArray, read_array
from weighbridge.containers.zarr.chunks import DecodedPieces, StoredPiece
from weighbridge.containers.zarr.ocdbt import StoredValue, read_database
from weighbridge.io.source import Source
from weighbridge.models.distributed import ChunkBytes, Chunked
from weighbridge.models.jsonfile import decode
from weighbridge.models.orbax_files import item_of
from weighbridge.models.stored_tensors import JoinedModel, JoinedTensors

if TYPE_CHECKING:
    from weighbridge.models.locate import Place

_AGAIN: Final = "copy the whole folder again, or use another step"
_ARRAY: Final = 1 << 20  # bytes of an array's metadata
_FILLED: Final = 1 << 16  # chunks that may be missing, of an array; inner chunks of a shard


def open_orbax(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The arrays of a checkpoint as tensors. `sources`: those of `place.weights`. Raises FormatError if an array of the
    tree, or a chunk of an array, is missing."""
    root = item_of(place.path)[0]
    files = {path.relative_to(root).as_posix(): source for path, source in zip(place.weights, sources, strict=True)}

    def file(name: str) -> Source:
        if name not in files:
            raise FormatError("a file of the checkpoint is missing", path=str(root / name), hint=_AGAIN)
        return files[name]

    metadata = file(ORBAX)
    tree: dict[str, Any] = decode(metadata.read(0, metadata.size), metadata.name, dict[str, Any], INDEX_JSON)
    if OCDBT_FILE in files:
        values = read_database(files[OCDBT_FILE], file)
    else:
        values = {name: StoredValue(name, 0, source.size) for name, source in files.items()}
    arrays = read_arrays(values, file, str(root))
    check_tree(tree, arrays, metadata.name)
    filled = not tree.get("store_array_data_equal_to_fill_value")
    layouts = {name: pieces_of(array, values, filled, str(root)) for name, array in arrays.items()}
    stored: list[StoredPiece] = []
    firsts = {name: place_pieces(layout, stored) for name, layout in layouts.items()}
    pieces = DecodedPieces(str(root), stored, file)
    tensors = {
        name: Chunked(array.spec, tuple(box for _, box in layouts[name]), partial(_find, array, pieces, firsts[name]))
        for name, array in arrays.items()
    }
    entries = tuple(entry_of(name, chunked, len(sources)) for name, chunked in tensors.items())
    index = Index(ORBAX_FORMAT, (*sources, pieces), entries, {}, (0,) * (len(sources) + 1))
    return JoinedModel(index, JoinedTensors(tensors, Chunked.node))


def place_pieces(layout: Sequence[tuple[StoredPiece, Box]], stored: list[StoredPiece]) -> int:
    """Adds pieces after those in `stored`; returns the number of the first."""
    first, start = len(stored), stored[-1].start + stored[-1].size if stored else 0
    for n, (piece, _) in enumerate(layout):
        stored.append(piece._replace(number=first + n, start=start + n * piece.size))
    return first


def _find(array: ZarrArray, pieces: DecodedPieces, first: int, number: int) -> ChunkBytes:
    """The bytes of a piece, which has the shape of a whole chunk also where the array ends in it."""
    piece = pieces.pieces[first + number]
    return ChunkBytes(pieces, piece.start, piece.size, c_strides(array.piece), array.swap)


def pieces_of(
    array: ZarrArray, values: Mapping[str, StoredValue], filled: bool, root: str
) -> list[tuple[StoredPiece, Box]]:
    """The pieces of an array, with their boxes. `filled`: whether chunks of zeros may be missing. Raises FormatError if
    others are, or if there are more pieces than the stored bytes can have."""
    count, inside, sharded = prod(array.grid), prod(array.pieces), array.inner is not None
    if count > len(values) + (_FILLED if filled else 0) or (sharded and inside > _FILLED):
        raise FormatError("an array has more chunks than the checkpoint", path=root, field=array.name, found=count)
    out: list[tuple[StoredPiece, Box]] = []
    for place, number, box in array.boxes():
        value = values.get(array.key(place))
        if value is None and not filled:
            raise FormatError("a chunk of an array is missing", path=root, field=array.key(place), hint=_AGAIN)
        if value is not None and sharded and value.length < 16 * inside:
            raise FormatError("a shard is shorter than its index", path=root, field=array.key(place))
        piece = StoredPiece(0, 0, array.piece_bytes, array.name, value, number, inside, array.codec, sharded)
        out.append((piece, box))
    return out


def entry_of(name: str, chunked: Chunked, file: int) -> Entry:
    offset = chunked.find(0).offset if chunked.boxes else 0
    return Entry(name, chunked.spec.dtype, chunked.spec.shape, offset, chunked.spec.nbytes, file)


def read_arrays(values: Mapping[str, StoredValue], file: Callable[[str], Source], root: str) -> dict[str, ZarrArray]:
    """The arrays by name."""
    arrays: dict[str, ZarrArray] = {}
    for key, value in values.items():
        ending = next((end for end in ARRAYS if key.endswith(end)), None)
        if ending is None or value.length > _ARRAY:
            continue
        data = value.inline if value.inline is not None else file(value.file).read(value.offset, value.length)
        name = key.removesuffix(ending)
        arrays[name] = read_array(name, data, root)
    return arrays


def check_tree(tree: Mapping[str, Any], arrays: Mapping[str, ZarrArray], path: str) -> None:
    """Raises FormatError if an array of the tree is missing."""
    listed = tree.get("tree_metadata")
    if not isinstance(listed, dict):
        raise FormatError("the tree of the checkpoint is missing", path=path, field="tree_metadata")
    for node in listed.values():
        keys = [str(part.get("key")) for part in node.get("key_metadata", ()) if isinstance(part, dict)]
        kind = (node.get("value_metadata") or {}).get("value_type")
        if kind in ("jax.Array", "np.ndarray", "scalar") and ".".join(keys) not in arrays:
            raise FormatError("an array of the tree is missing", path=path, field=".".join(keys), hint=_AGAIN)
