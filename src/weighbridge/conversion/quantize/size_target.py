"""Chooses types for a target size that minimize the error of the whole model.

1. Probe. Rows spread over each tensor are encoded as every candidate and decoded again. The error is the sum of squared
   differences relative to the sum of squares; with an importance matrix each column is weighted, which gives the
   expected relative error of the tensor's output.
2. Weigh. With a text, each error counts by how much it changes what the model predicts (forward/effects.py).
3. Allocate bytes to the tensors (allocation.py).

The same model, matrix and size give the same types.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from weighbridge.base.dtypes import BY_NAME, F32, DType
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FileType
from weighbridge.base.words import plural
from weighbridge.containers.gguf.container import KV
from weighbridge.containers.gguf.read import padded
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize.allocation import Allocation, Offer, allocate, hull
from weighbridge.conversion.quantize.inputs import QuantizeInputs
from weighbridge.tensors import kernels, np
from weighbridge.tensors.nodes import Node, cast

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[np.float32]"

# The candidates, if a tensor's rows are whole blocks of them. The first ones need an importance matrix.
CANDIDATES: Final = (
    "IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_K", "Q4_1",
    "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16",
)  # fmt: skip
# Other sizes whose expected effect is reported, as parts of the one that was asked for.
_CURVE: Final = (0.7, 0.8, 0.9, 1.1, 1.25)
# Probed elements of a tensor: enough to estimate the error to a few percent.
_SAMPLE: Final = 1 << 15


#: The inputs and the candidates of each tensor -> the candidates with the change of the output as their errors.
Effects = Callable[[QuantizeInputs, Mapping[str, Sequence[Offer]]], Mapping[str, list[Offer]]]


def types_for_size(
    inputs: QuantizeInputs,
    options: ftypes.TypeOptions,
    *,
    bits: float | None = None,
    size: int | None = None,
    overhead: int = 0,
    align: int = 1,
    effects: Effects | None = None,
) -> tuple[QuantizeInputs, ftypes.TypeChoice]:
    """Chooses types for `bits` per weight, or for a file of `size` bytes, `overhead` of them outside of tensors.
    Tensors are padded to a multiple of `align` bytes.

    `effects`: measures how much the model's output changes with the types of each tensor; without it, all errors count
    the same.
    Returns the inputs with the file type of most weights, and the choice. Raises RefusedError if no choice of types is
    small enough.
    """
    free = unset(inputs, options)
    if not free:
        raise UsageError("no tensor's type can be chosen: all are fixed by options or not quantizable")
    elements = sum(node.spec.elements for node in inputs.tensors.values())
    room = int(bits * elements / 8) if bits is not None else (size or 0) - overhead
    others = exact_choice(inputs, options).types
    kept = inputs.tensors.keys() - set(free)
    room -= sum(padded(inputs.tensors[name].spec.with_dtype(others[name]).nbytes, align) for name in kept)
    probed = offers = {
        name: [o._replace(nbytes=padded(o.nbytes, align)) for o in probe(inputs.tensors[name], inputs.weights(name))]
        for name in free
    }
    if effects is not None:
        offers = {**effects(inputs, probed)}
    allocation = allocate(offers, room)
    expected = () if effects is None else tuple(_expected(allocation, offers, room))
    notes = [*inputs.notes, *_notes(allocation, offers, room, expected)]
    choice = exact_choice(inputs, replace(options, chosen=allocation.types))
    errors = {n: o.error for n, rows in probed.items() for o in rows if o.dtype is choice.types[n]}
    named = with_file_type(replace(inputs, notes=tuple(notes)), choice.types)
    return named, replace(choice, errors=errors, expected=expected)


def types_of_recipe(inputs: QuantizeInputs, options: ftypes.TypeOptions) -> tuple[QuantizeInputs, ftypes.TypeChoice]:
    """The types of a recipe, whose patterns are among the options. Raises UsageError for a tensor without a type."""
    if missing := unset(inputs, options):
        raise UsageError(f"the recipe has no type for {plural(len(missing), 'tensor')}, first {missing[0]}",
                         hint="add a last line for all others, such as .*=q8_0")  # fmt: skip
    choice = exact_choice(inputs, options)
    return with_file_type(inputs, choice.types), choice


def unset(inputs: QuantizeInputs, options: ftypes.TypeOptions) -> list[str]:
    """The quantizable tensors whose type no option sets."""
    roles = {"embedding": options.embedding_type, "output": options.output_type}
    return [
        name for name in inputs.tensors
        if inputs.is_quantizable(name, options) and not (roles.get(ftypes.role(name)) or options.type_of(name))
    ]  # fmt: skip


def base_type() -> FileType | None:
    """The file type of a plan until its types are set: not COPY, which rounds the weights of image models first."""
    return ftypes.parse_ftype("Q8_0")


def exact_choice(inputs: QuantizeInputs, options: ftypes.TypeOptions) -> ftypes.TypeChoice:
    """The choice for types that the options set, with llama-quantize's fallbacks and refusals."""
    return inputs.choose(base_type(), options)


def with_file_type(inputs: QuantizeInputs, types: Mapping[str, DType]) -> QuantizeInputs:
    """The inputs with the file type of most weights."""
    counts = Counter[str]()
    for name, node in inputs.tensors.items():
        counts[types[name].name] += node.spec.elements
    ftype = ftypes.nearest_ftype(counts.most_common(1)[0][0])
    return replace(inputs, keys={**inputs.keys, gguf_keys.FILE_TYPE: KV("u32", ftype)})


def _expected(allocation: Allocation, offers: Mapping[str, Sequence[Offer]], room: int) -> Iterator[tuple[int, float]]:
    """The bytes and the expected effect of this choice, then of others."""
    yield allocation.nbytes, allocation.error
    least = sum(hull(rows)[0].nbytes for rows in offers.values())
    sizes = (int(room * factor) for factor in _CURVE)
    yield from ((at.nbytes, at.error) for at in (allocate(offers, size) for size in sizes if size >= least))


def _notes(
    allocation: Allocation,
    offers: Mapping[str, Sequence[Offer]],
    room: int,
    expected: Sequence[tuple[int, float]],
) -> Iterator[str]:
    """The expected effect at this size and at others, and that a smaller size would do."""
    if allocation.nbytes == sum(hull(rows)[-1].nbytes for rows in offers.values()):
        yield f"every tensor has the best type: {room - allocation.nbytes:,} bytes of the size aren't used"
    if expected:
        (nbytes, error), *others = expected
        yield f"expected KL divergence {error:.4f} nats with {nbytes:,} bytes of these tensors"
        yield f"and at other sizes: {'; '.join(f'{error:.4f} at {nbytes:,}' for nbytes, error in others)}"


def probe(node: Node, weights: Any) -> list[Offer]:
    """The expected error of each candidate, from evenly spaced rows of the tensor.

    `weights`: importance of the columns, f32[matrices, columns], or None.
    """
    source, columns = cast(node, F32), node.spec.shape[-1]
    count = min(node.spec.rows, max(1, _SAMPLE // columns))
    rows = np.linspace(0, node.spec.rows - 1, count).astype(np.int64)
    sample = np.stack([source.read(int(r), int(r) + 1).view(np.float32) for r in rows])
    # the matrix of each row, in order; rows of one are encoded together
    matrices = np.zeros(len(rows), np.int64) if weights is None else rows * len(weights) // node.spec.rows
    row_weights = None if weights is None else weights[matrices]
    power = _power(sample, row_weights)
    offers = []
    for dtype in map(BY_NAME.__getitem__, CANDIDATES):
        lacks_weights = weights is None and dtype.name in ftypes.table().needs_imatrix
        if columns % dtype.block or lacks_weights or not (kernels.encodes(dtype) or dtype.block == 1):
            continue
        parts = np.split(sample, np.flatnonzero(np.diff(matrices)) + 1)
        importance = [None] if weights is None else weights[np.unique(matrices)]
        found = np.concatenate([rounded(part, dtype, w) for part, w in zip(parts, importance, strict=True)])
        error = _power(sample - found, row_weights)
        offers.append(Offer(dtype, node.spec.with_dtype(dtype).nbytes, error / power if power else 0.0))
    return offers


def rounded(values: Floats, dtype: DType, weights: Floats | None = None) -> Floats:
    """What a type makes of a matrix f32[rows, columns]; `weights`: importance of the columns, f32[columns]."""
    if dtype.block == 1:
        return values.astype(np.float16).astype(np.float32)
    packed = np.empty(values.size // dtype.block * dtype.size, np.uint8)
    kernels.encode(dtype, np.ascontiguousarray(values).reshape(-1), packed,
                   None if weights is None else np.ascontiguousarray(weights))  # fmt: skip
    out = np.empty(values.shape, np.float32)
    kernels.decode(dtype, packed, out.reshape(-1))
    return out


def _power(values: Floats, weights: Floats | None) -> float:
    """The sum of squares, weighted by column; values and weights: f32[rows, columns]."""
    squares = values.astype(np.float64) ** 2
    return float((squares if weights is None else squares * weights).sum())
