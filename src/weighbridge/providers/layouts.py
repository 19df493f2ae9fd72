"""A weight as one contiguous block in the layout of an engine.

    plain   the values, rows of one plain type
    ggml    blocks of a ggml type, as in a GGUF; plain types too
    mlx     [W | S | B]: words U32, then scales, then biases, without a gap
    gptq    [qweight | qzeros | scales | g_idx], format 1 or 2 as in vLLM and transformers
    awq     [qweight | qzeros | scales], GEMM
    codes   a packed weight's codes, scales and zero points, in this order: kept by moves and fusion
    parts   the stored tensors, unchanged, one after another

A quantized weight changes its layout only if its codes stay and its scales stay or are rounded (listed in
`rounded`); otherwise UnsupportedError states the reason. A plain weight is quantized if `dtype`, or `bits` and
`group`, request it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.numpy import mapped, numpy_dtype
from weighbridge.adapters.placing import place, reinterpret
from weighbridge.base.dtypes import F32, U8, U32, DType, Kind
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.packings import canonical, ggml_blocks
from weighbridge.packings.schema.affine import NAME as AFFINE_NAME
from weighbridge.packings.write import packers, schemes
from weighbridge.providers.dtypes import WeightType, packed_type, type_of
from weighbridge.tensors import nodes as n
from weighbridge.tensors.filling import fill_all
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes

#: Where a buffer starts: what JAX needs to share memory, and every vector unit to load whole lines.
ALIGNMENT: Final = 64


class Section(NamedTuple):
    """A stored tensor inside a buffer."""

    offset: int
    nbytes: int
    dtype: DType
    shape: Shape


@dataclass(frozen=True)
class LayoutOptions:
    """`dtype`: of the values (plain), or the block type (ggml). `bits`, `group`: to quantize a plain weight to (mlx).
    `scales`: the type of scales and biases (mlx); None keeps theirs. `stored`: a packed weight's stored tensors
    (parts)."""

    dtype: DType | None = None
    bits: int | None = None
    group: int | None = None
    scales: DType | None = None
    stored: Mapping[str, Node] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, eq=False)
class WeightBuffer:
    """One block of bytes, U8, aligned to 64 bytes. `shape`: of the logical weight. `sections`: its parts and their
    offsets. `rounded`: sections whose values aren't exactly the source's. `shared`: it is a read-only view of the
    file."""

    layout: str
    type: WeightType
    shape: Shape
    data: NDArray[np.uint8]
    sections: Mapping[str, Section]
    rounded: tuple[str, ...] = ()
    shared: bool = False

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    @property
    def address(self) -> int:
        """Where it starts in memory; valid as long as the buffer."""
        return int(self.data.ctypes.data)

    def part(self, name: str) -> NDArray[Any]:
        """A section as an array, without a copy; blocks and types that numpy lacks as U8 [rows, bytes]."""
        at, size, dtype, shape = _section(self.sections, name)
        raw = self.data[at : at + size]
        if dtype.numpy is None:
            return raw.reshape(-1, shape[-1] // dtype.block * dtype.size) if size and shape else raw
        return raw.view(numpy_dtype(dtype)).reshape(shape)

    def to(self, device: str) -> DeviceBuffer:
        """The buffer's bytes as an array of a framework on a device (`adapters/placing.py`)."""
        data = place(n.const(self.data, U8), device)
        return DeviceBuffer(self.layout, self.type, self.shape, device, data, self.sections, self.rounded)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.data, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


@dataclass(frozen=True, eq=False)
class DeviceBuffer:
    """A `WeightBuffer` whose bytes are an array of U8 (`data`) of the framework of `device`, on that device."""

    layout: str
    type: WeightType
    shape: Shape
    device: str
    data: Any
    sections: Mapping[str, Section]
    rounded: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def part(self, name: str) -> Any:
        """Returns a section as an array on the device; blocks as U8 [rows, bytes]. Raises UsageError for an unknown
        section, UnsupportedError if the framework lacks the section's type."""
        at, size, dtype, shape = _section(self.sections, name)
        raw = self.data[at : at + size]
        if dtype.kind is Kind.BLOCK:
            return raw.reshape((-1, shape[-1] // dtype.block * dtype.size))
        return reinterpret(raw, self.device, dtype, shape)


def _section(sections: Mapping[str, Section], name: str) -> Section:
    if name not in sections:
        raise UsageError(f"no section {name!r}", hint=", ".join(sections))
    return sections[name]


def buffer_of(
    tensor: LogicalTensor, layout: str | None, options: LayoutOptions = LayoutOptions(),
    stored: Mapping[str, Node] = MappingProxyType({}),
) -> WeightBuffer:  # fmt: skip
    """Returns a weight in a layout of `LAYOUTS`; None: blocks and plain types unchanged, packed weights as their
    codes. `stored`: the stored tensors of a packed weight, by the suffixes of their names."""
    layout = layout or ("codes" if isinstance(tensor, QuantizedTensor) else "ggml" if _blocks(tensor) else "plain")
    if layout not in LAYOUTS:
        raise UsageError(f"no layout is called {layout!r}", hint=f"known: {', '.join(LAYOUTS)}")
    found = LAYOUTS[layout](tensor, replace(options, stored=stored))
    kind = type_of(tensor) if found.type is None else found.type
    sections, at = {}, 0
    for name, node in found.nodes.items():
        sections[name] = Section(at, node.spec.nbytes, node.spec.dtype, node.spec.shape)
        at += node.spec.nbytes
    view = _view(*found.nodes.values()) if len(found.nodes) == 1 else None
    data = aligned(at) if view is None else view
    if view is None:
        places = [data[s.offset : s.offset + s.nbytes] for s in sections.values()]
        fill_all([*found.nodes.values()], places)
    return WeightBuffer(
        layout, kind, tensor.spec.shape, data, MappingProxyType(sections), found.rounded, view is not None
    )


class _Members(NamedTuple):
    """The sections of a weight in a layout. `type`: None keeps the weight's."""

    nodes: Mapping[str, Node]
    type: WeightType | None = None
    rounded: tuple[str, ...] = ()


def _view(node: Node) -> Bytes | None:
    """Returns the bytes in the mapping of the file, if they are aligned."""
    bytes_ = mapped(node)
    found = None if bytes_ is None else np.frombuffer(bytes_, np.uint8)
    return found if found is not None and found.ctypes.data % ALIGNMENT == 0 else None


def aligned(size: int) -> Bytes:
    """Uninitialised bytes that start at a multiple of 64."""
    whole = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]


# ------------------------------------------------------------------------------------------------ the layouts


def _blocks(tensor: LogicalTensor) -> bool:
    return isinstance(tensor, Node) and tensor.spec.dtype.kind is Kind.BLOCK


def _plain(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
    wanted = options.dtype or (F32 if isinstance(tensor, QuantizedTensor) or _blocks(tensor) else None)
    if wanted is not None and not wanted.plain:
        raise UsageError(f"{wanted} isn't a plain type", hint='layout="ggml" has blocks')
    node = n.as_node(tensor, wanted)
    return _Members({"weight": node}, type_of(node))


def _ggml(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
    wanted = options.dtype
    if isinstance(tensor, QuantizedTensor):
        node, rounded = _as_blocks(tensor, wanted)
        return _Members({"blocks": node}, type_of(node), rounded)
    if wanted is not None and wanted is not tensor.spec.dtype and _blocks(tensor) and wanted.kind is Kind.BLOCK:
        raise UnsupportedError(f"it is {tensor.spec.dtype} already; it isn't quantized a second time")
    node = n.as_node(tensor, wanted)
    if node.spec.dtype.ggml is None:
        raise UnsupportedError(f"ggml has no {node.spec.dtype}", hint="ask for a dtype: f32, f16, q8_0 ...")
    return _Members({"blocks": node}, type_of(node))


def _as_blocks(tensor: QuantizedTensor, wanted: DType | None) -> tuple[Node, tuple[str, ...]]:
    """A packed weight in a block type that has room for its codes."""
    packing = tensor.packing
    fitting = packing.blocks if wanted is None else tuple(d for d in packing.blocks if d is wanted)
    if not fitting:
        known = ", ".join(d.name for d in packing.blocks)
        holds = f"{wanted} doesn't hold" if wanted is not None else "no ggml type holds"
        hint = f"types that do: {known}" if known else "ask for a dtype (f32, f16), which decodes it, or layout='parts'"
        raise UnsupportedError(f"{holds} the codes of {packing.name}", hint=hint)
    members = {
        m: n.reshape(x, (x.spec.rows, x.spec.elements // max(x.spec.rows, 1))) for m, x in tensor.members.items()
    }
    exact = next((d for d in fitting if not packing.inexact(members, d)), None)
    rounded = () if exact else (f"scales: {packing.inexact(members, fitting[0])}",)
    return n.transcode(tensor, exact or fitting[0]), rounded


def _mlx(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
    found = _affine(tensor, options)
    bits = found["weight"].spec.elements * 32 // max(tensor.spec.elements, 1)
    kept = {m: x for m, x in found.items() if m == "weight"}
    rounded = []
    for name, node in found.items():
        if name == "weight":
            continue
        wanted = node.spec.dtype if options.scales is None or "biases" not in found else options.scales
        kept[name] = n.cast(node, wanted)
        if wanted is not node.spec.dtype and not (wanted.name == "F16" and ggml_blocks.fits_f16(node)):
            rounded += [f"{name}: {node.spec.dtype} as {wanted}"] if wanted is not F32 else []
    kind = packed_type(AFFINE_NAME, bits) if "biases" in found else None
    return _Members(kept, kind, tuple(rounded))


def _affine(tensor: LogicalTensor, options: LayoutOptions) -> dict[str, Node]:
    """Words, scales and biases of a weight."""
    if isinstance(tensor, QuantizedTensor):
        if tensor.packing.name == AFFINE_NAME:
            return {m: tensor.members[m] for m in packers.PARTS}
        if set(tensor.members) == {"codes", "scales"} and not isinstance(found := canonical.microscaled(tensor), str):
            words = n.bitcast(found.codes, U32, found.codes.spec.shape[-1] // 4)
            return {"weight": words, "scales": found.scales}
        raise UnsupportedError(f"{tensor.packing.name} has no form in MLX", hint='layout="codes" keeps it unchanged')
    if _blocks(tensor):
        if tensor.spec.dtype not in packers.EXACT:
            known = ", ".join(d.name for d in packers.EXACT)
            raise UnsupportedError(f"MLX has no form of {tensor.spec.dtype}", hint=f"types it has: {known}")
        made = n.pack(tensor, packers.BlocksOf(tensor.spec.dtype))
        return dict(made)
    if options.bits is None or options.group is None:
        raise UnsupportedError("it isn't quantized", hint="quantize it on the way: bits=4, group=64")
    kind = tensor.spec.dtype if tensor.spec.dtype.is_float and tensor.spec.dtype.size <= 4 else F32
    packer = packers.AffineOf(options.bits, options.group, options.scales or kind)
    return dict(n.pack(n.cast(tensor, F32), packer))


def _scheme(name: str, make: Callable[[canonical.IntQuantMatrix, bool], schemes.Stored], bits: tuple[int, ...]) -> Any:
    """A layout of an integer scheme."""

    def members(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
        form = canonical.int_quant(tensor)
        if isinstance(form, str):
            raise UnsupportedError(f"the weight can't be laid out so: {form}", hint='layout="codes" keeps it unchanged')
        if form.bits not in bits:
            raise UnsupportedError(f"its codes have {form.bits} bits", hint=f"the layout has {bits}")
        rounded = () if ggml_blocks.fits_f16(form.scales) else (f"scales: {form.scales.spec.dtype} as F16",)
        stored = {suffix.removeprefix("."): node for suffix, node in make(form, form.symmetric).items()}
        return _Members(stored, packed_type(name, form.bits), rounded)

    return members


def _codes(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
    return _Members(tensor.members if isinstance(tensor, QuantizedTensor) else {"weight": tensor})


def _parts(tensor: LogicalTensor, options: LayoutOptions) -> _Members:
    if isinstance(tensor, QuantizedTensor) and not options.stored:
        reason = "the weight differs from the stored tensors: its rows are reordered, or several weights are fused"
        raise UnsupportedError(reason, hint='layout="codes" has its codes and scales')
    return _Members(options.stored) if isinstance(tensor, QuantizedTensor) else _Members({"weight": tensor})


Arrange = Callable[[LogicalTensor, LayoutOptions], _Members]
#: Every named layout.
LAYOUTS: Final[Mapping[str, Arrange]] = MappingProxyType({
    "plain": _plain, "ggml": _ggml, "mlx": _mlx, "codes": _codes, "parts": _parts,
    "gptq": _scheme("gptq", schemes.gptq, (2, 3, 4, 8)), "awq": _scheme("awq", schemes.awq, (4,)),
})  # fmt: skip
