"""A GGUF as the reference's own Python package sees it: read whole, compared, changed by a fault, written again.

No code of ours takes part, so a fault seeded here is a fault in the file and not in our reader or writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class Field:
    """A key's value with its exact types; `item` is the element type of an array."""

    type: Any
    item: Any
    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field) or (self.type, self.item) != (other.type, other.item):
            return False
        return _bits(self.value) == _bits(other.value)


def _bits(value: Any) -> Any:
    """Floats by their bits, so that -0.0 and NaN are told apart and equal to themselves."""
    if isinstance(value, float):
        return np.float64(value).tobytes()
    return [_bits(v) for v in value] if isinstance(value, list) else value


@dataclass
class Tensor:
    """`data` as gguf gives it: numbers for plain floats, rows of bytes for block types; `type` is the ggml name."""

    type: str
    shape: tuple[int, ...]
    data: NDArray[Any]


@dataclass
class File:
    fields: dict[str, Field]
    tensors: dict[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.fields["general.architecture"].value)


def read(path: Path) -> File:
    """Everything, copied out of the mapping."""
    reader = _reader()(path)
    fields = {
        key: Field(f.types[0], f.types[-1] if len(f.types) > 1 else None, f.contents())
        for key, f in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    tensors = {
        t.name: Tensor(t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), np.array(t.data))
        for t in reader.tensors
    }
    return File(fields, tensors)


@cache
def _reader() -> Any:
    """The reference's reader, with arrays of numbers read at once: it takes 8 s for the normalization map of a T5."""
    import gguf

    array = gguf.GGUFValueType.ARRAY

    class Reader(gguf.GGUFReader):  # type: ignore[misc]
        def _get_field_parts(self, at: int, kind: int) -> Any:
            if kind == array:
                item, count = int(self._get(at, np.uint32)[0]), int(self._get(at + 4, np.uint64)[0])
                dtype = self.gguf_scalar_to_np.get(gguf.GGUFValueType(item))
                if dtype is not None and count:
                    values = self._get(at + 12, dtype, count)
                    return 12 + int(values.nbytes), [values], [0], [array, gguf.GGUFValueType(item)]
            return super()._get_field_parts(at, kind)

    return Reader


def write(path: Path, file: File) -> Path:
    """The file through the reference's writer: keys and tensors in order."""
    import gguf

    writer = gguf.GGUFWriter(path, file.architecture)
    for key, field in file.fields.items():
        if key != "general.architecture" and not (field.item is not None and not field.value):
            writer.add_key_value(key, field.value, field.type, field.item)
    for name, tensor in file.tensors.items():
        kind = gguf.GGMLQuantizationType[tensor.type]
        writer.add_tensor(name, np.ascontiguousarray(tensor.data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def mutate(source: File, path: Path, fault: Callable[[File], None]) -> Path:
    """`source` with `fault` applied to a copy, written to `path`."""
    copy = File(dict(source.fields), {n: Tensor(t.type, t.shape, t.data.copy()) for n, t in source.tensors.items()})
    fault(copy)
    return write(path, copy)


def differences(found: File, expected: File, *, allowed: Callable[[str], bool] = lambda _: False) -> list[str]:
    """What differs, in words: keys and their order, types, values; tensors and their order, types, shapes, bytes (of
    `ROUNDED` ones: more than the last bit of an element)."""
    keys = [k for k in found.fields if not allowed(k)], [k for k in expected.fields if not allowed(k)]
    out = _order("key", *keys)
    for key in keys[1]:
        if key in found.fields and found.fields[key] != expected.fields[key]:
            out.append(f"{key}: {_brief(found.fields[key])}, the reference has {_brief(expected.fields[key])}")
    held = ([name for name in file.tensors if not allowed(name)] for file in (found, expected))
    out += _order("tensor", *held)
    for name, want in expected.tensors.items():
        if name in found.tensors and not allowed(name):
            near = name.endswith(ROUNDED)
            out += [f"{name}: {what}" for what in _tensor_differences(found.tensors[name], want, near)]
    return out


def sorted_by_name(file: File) -> File:
    """For a comparison without order."""
    return File(dict(sorted(file.fields.items())), dict(sorted(file.tensors.items())))


def differs_at(found: File, expected: File, name: str) -> bool:
    """Whether the two differ in this key or tensor."""
    if name in found.tensors and name in expected.tensors:
        return bool(_tensor_differences(found.tensors[name], expected.tensors[name]))
    return found.fields.get(name) != expected.fields.get(name) or (name in found.tensors) != (name in expected.tensors)


def _order(what: str, found: list[str], expected: list[str]) -> list[str]:
    out = [f"{what} {name} is missing" for name in expected if name not in found]
    out += [f"{what} {name} is ours alone" for name in found if name not in expected]
    if not out and found != expected:
        first = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        out.append(f"{what}s are in another order from #{first}: {found[first]}, the reference has {expected[first]}")
    return out


# A = -exp(A_log) of state-space layers: ours is the nearest F32, torch's mostly (see docs/reference-differences.md).
ROUNDED = (".ssm_a",)


def _one_step(a: Tensor, b: Tensor) -> bool:
    """Whether two F32 tensors differ by no more than neighbouring numbers do."""
    steps = a.data.view(np.int32).astype(np.int64) - b.data.view(np.int32)
    return bool(np.abs(steps).max() <= 1)


def _tensor_differences(found: Tensor, want: Tensor, near: bool = False) -> list[str]:
    if (found.type, found.shape) != (want.type, want.shape):
        return [f"{found.type}{found.shape}, the reference has {want.type}{want.shape}"]
    if found.data.tobytes() == want.data.tobytes() or (near and _one_step(found, want)):
        return []
    wrong = np.flatnonzero(found.data.reshape(-1).view(np.uint8) != want.data.reshape(-1).view(np.uint8))
    return [f"{wrong.size} of {want.data.nbytes} bytes differ, the first at {wrong[0]}"]


def _brief(field: Field) -> str:
    text = repr(field.value)
    return f"{field.type.name} {text if len(text) <= 80 else text[:77] + '...'}"
