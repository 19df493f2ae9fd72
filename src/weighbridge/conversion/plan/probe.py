"""The reads of data that a plan depends on: scales, biases and vectors; matrices only for `smallest_exact`.

block_for       are a packed tensor's parameters exact in a block type?
rounding        how far are they from it?
smallest_exact  what is the narrowest type of each float tensor? (reads all of them, on request only)
narrowest       does the type of the matrices hold every vector exactly too?
is_zero         is a vector all zeros?
zero_rows       which rows of a matrix are zero?
numbers         the values of a tensor that becomes a key of a GGUF
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from weighbridge.base.dtypes import BF16, F16, F32, F64, I64, DType, Kind
from weighbridge.base.errors import FormatError
from weighbridge.base.limits import SLAB
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.tensors import np
from weighbridge.tensors.nodes import Const, LogicalTensor, Node, QuantizedTensor, cast, is_stored_as

# The most bytes of a vector that is read while planning. Norms and biases are smaller.
_LONGEST = 1 << 22


def block_for(node: QuantizedTensor, candidates: Iterable[DType]) -> tuple[DType | None, str]:
    """The smallest block type that stores a packed tensor's values exactly, and "".

    Without one, returns the smallest block type that can store its codes (None if there is none), and why that isn't
    exact. Reads the scales and biases.
    """
    allowed, first_reason, near = set(candidates), "", None
    for block in node.packing.blocks:
        if block in allowed:
            reason = node.packing.inexact(node.members, block)
            if not reason:
                return block, ""
            near, first_reason = near or block, first_reason or reason
    return near, first_reason or f"no block type has the codes of {node.packing.name}"


def rounding(node: QuantizedTensor) -> float:
    """The largest relative distance of a packed tensor's scales and biases from f16 numbers; Inf if one overflows."""
    return max((relative_error(node.members[member]) for member in node.packing.parameters), default=0.0)


def relative_error(part: Node) -> float:
    """The largest relative distance of a tensor's finite values from f16 numbers; Inf if one overflows."""
    values, rounded = (n.read_all().view(np.float32) for n in (cast(part, F32), cast(cast(part, F16), F32)))
    with np.errstate(all="ignore"):
        error = np.abs(rounded - values) / np.maximum(np.abs(values), np.finfo(np.float32).tiny)
    return float(error[np.isfinite(values)].max(initial=0))


def narrowest(tensors: Mapping[str, LogicalTensor]) -> dict[str, DType]:
    """The 16-bit type of the float matrices, for each F32 tensor whose values it holds exactly.

    A GGUF keeps vectors in F32 whatever the model's type. A model of a single type returns to a single type if that
    loses nothing.
    """
    matrices = Counter[DType]()
    for node in tensors.values():
        if len(node.spec.shape) > 1 and node.spec.dtype.kind is Kind.FLOAT:
            matrices[node.spec.dtype] += node.spec.elements
    main = matrices.most_common(1)[0][0] if matrices else F32
    if main not in (BF16, F16):
        return {}

    short = ((n, node) for n, node in tensors.items() if is_stored_as(node, F32) and node.spec.nbytes <= _LONGEST)
    return {name: main for name, node in short if main in exact_types(node)}


def smallest_exact(
    tensors: Mapping[str, LogicalTensor], storable: Collection[str], notes: list[str]
) -> dict[str, DType]:
    """The narrowest type, of those in `storable`, for each F32 and F64 tensor that has exactly its values. Reads all of
    them, and adds a note on this. Of F16 and BF16 the one that fits more tensors comes first."""
    wide = {n: node for n, node in tensors.items() if isinstance(node, Node) and node.spec.dtype in (F32, F64)}
    exact = {name: [t for t in exact_types(node) if t.name in storable] for name, node in wide.items()}
    votes = Counter(dtype for fits in exact.values() for dtype in fits)
    chosen = {name: min(fits, key=lambda t: (t.size, -votes[t], t.name)) for name, fits in exact.items() if fits}
    nbytes = sum(node.spec.nbytes for node in wide.values())
    moves = Counter(f"{wide[name].spec.dtype} to {dtype}" for name, dtype in chosen.items())
    text = ", ".join(f"{count:,} {move}" for move, count in sorted(moves.items())) or "none can be narrower"
    notes.append(f"smallest-exact: {nbytes:,} bytes of {plural(len(wide), 'tensor')} were read to plan: {text}")
    return chosen


def exact_types(node: Node) -> list[DType]:
    """The narrower float types that hold a tensor's values exactly, bit by bit. Reads slabs until none is left."""
    types = {F64: [F32, F16, BF16], F32: [F16, BF16]}[node.spec.dtype]
    step = max(SLAB // max(node.spec.row_bytes, 1), 1)
    for low in range(0, node.spec.rows, step):
        data = node.read(low, min(low + step, node.spec.rows)).tobytes()
        slab = Const(Spec((len(data) // node.spec.dtype.size,), node.spec.dtype), data)
        types = [dtype for dtype in types if cast(cast(slab, dtype), node.spec.dtype).read_all().tobytes() == data]
        if not types:
            break
    return types


def is_zero(node: LogicalTensor) -> bool:
    """Whether a tensor is a vector of zeros."""
    return isinstance(node, Node) and node.spec.nbytes <= _LONGEST and not any(node.read_all())


def zero_rows(node: LogicalTensor, first: int) -> list[int]:
    """The rows from `first` on that are all zeros. Reads them in slabs."""
    floats, rows = cast(node, F32), node.spec.rows
    step = max(SLAB // max(floats.spec.row_bytes, 1), 1)
    found: list[int] = []
    for low in range(first, rows, step):
        slab = floats.read(low, min(low + step, rows)).view(np.float32).reshape(-1, node.spec.shape[-1])
        found += (low + np.flatnonzero(~slab.any(axis=1))).tolist()
    return found


def numbers(name: str, node: LogicalTensor, *, integers: bool) -> list[float] | list[int] | float:
    """A short vector's integers, or its values in F32, or a scalar's. Raises FormatError if it is too long for a key,
    or has no integers."""
    if node.spec.nbytes > _LONGEST:
        raise FormatError(
            "is too long for a key", field=name, expected=f"at most {_LONGEST} bytes", found=str(node.spec)
        )
    if integers and node.spec.dtype.kind is not Kind.INT:
        raise FormatError("is not a tensor of integers", field=name, expected="I64", found=str(node.spec))
    if integers:
        whole: list[int] = cast(node, I64).read_all().view(np.int64).tolist()
        return whole
    values: list[float] = cast(node, F32).read_all().view(np.float32).tolist()
    return values if node.spec.shape else values[0]
