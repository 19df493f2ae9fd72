"""How the stored tensors of a packed matrix [.., out, in] run along it. A cut of the matrix that falls between entries
of every one of them is a cut of each, and no code changes.

    MLX, 4 bits     P.weight [out, in / 8]     8 columns a word         P.scales [out, in / 64]   64 columns a scale
    GPTQ, 4 bits    P.qweight [in / 8, out]    the other way round      P.qzeros [in / 128, out / 8]
    FP8             P.weight [out, in]         as it is                 P.weight_scale_inv [out / 128, in / 128]

Leading axes (experts) are the matrix's own in every tensor that has them. The schemas declare all of this.
"""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.base import COLUMNS, ROWS, AxisUse, StorageAxes
from weighbridge.packings.unpacking import PackedGroup
from weighbridge.tensors.nodes import QuantizedTensor


def axes_of(group: PackedGroup) -> dict[str, StorageAxes]:
    """The axes of each stored tensor of a group, by name. UnsupportedError where they don't run along the matrix."""
    match = group.match
    if not match.axes:
        raise UnsupportedError(
            f"{match.name} is packed as {match.schema.label}, whose parts don't lie along its rows and columns"
        )
    return {name: match.axes[role] for role, name in match.stored.items()} | dict.fromkeys(match.ignored, ())


def of_blocks(dtype: DType) -> StorageAxes:
    """A tensor of a block type as it is: rows one by one, columns in whole blocks."""
    return (AxisUse(ROWS), AxisUse(COLUMNS, dtype.block, dtype.block, "a block"))


def members(node: QuantizedTensor, group: PackedGroup, stored: Mapping[str, Spec]) -> dict[str, str] | None:
    """Stored tensor -> the member of the tensor that it is, row for row, so that the rows may be moved and stored
    again; None where the stored tensors are otherwise, or more than its members."""
    roles = {name: role for role, name in group.match.stored.items()}
    if not group.match.schema.movable or set(stored) != set(roles) or set(roles.values()) != set(node.members):
        return None
    return roles if all(len(spec.shape) > 1 for spec in stored.values()) else None
