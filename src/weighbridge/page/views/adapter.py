"""The changes of a LoRA adapter: each matrix with its rank and the norm of its change."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.models.lora.forms import adapter_form
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.resolve_experts import scaled_alike
from weighbridge.models.model import OpenModel
from weighbridge.page.control import Control
from weighbridge.reports.inspect import adapter_info
from weighbridge.reports.inspect.adapter_info import AdapterInfo

SCHEMA: Final = "weighbridge/adapter/1"


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """A changed matrix. `name`: in the base model. `norm`: the Frobenius norm of the change with its scale. `relative`:
    to the norm of the weight, if the base model is the other one of the page."""

    name: str
    shape: tuple[int, ...]
    rank: int
    norm: float
    relative: float | None


@dataclass(frozen=True, slots=True)
class AdapterView:
    """`alpha`: a change is scaled by alpha/rank. `whole`: tensors that the adapter replaces. `dora`: the rows are also
    rescaled, which the norms leave out."""

    facts: AdapterInfo | None
    alpha: float
    changes: tuple[AdapterChange, ...]
    whole: tuple[str, ...]
    dora: bool
    schema: str = SCHEMA


def adapter_view(model: OpenModel, base: OpenModel | None, control: Control) -> AdapterView:
    """Returns the changes of an adapter. Reads its matrices, and those of the base that it changes. Raises
    UnsupportedError for a model that isn't an adapter."""
    form = adapter_form(model)
    if form is None:
        raise UnsupportedError("the model isn't an adapter")
    adapter = scaled_alike(form.read(model))
    changes = []
    for done, (name, pair) in enumerate(adapter.pairs.items()):
        control.progress(done, len(adapter.pairs))
        norm = change_norm(pair) * abs(adapter.scale(pair))
        weight = _weight_norm(base, name) if base is not None else None
        changes.append(AdapterChange(name, pair.shape, pair.rank, norm, norm / weight if weight else None))
    dora = any(pair.lengths is not None for pair in adapter.pairs.values())
    return AdapterView(adapter_info.of(model), adapter.alpha, tuple(changes), tuple(adapter.whole), dora)


def _values(node: Any) -> NDArray[np.float64]:
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast

    whole = cast(node, F32)
    raw = whole.read(0, whole.spec.rows)
    return np.frombuffer(raw, np.float32).reshape(whole.spec.shape).astype(np.float64)


def change_norm(pair: LoraPair) -> float:
    """The Frobenius norm of B @ A, without computing the product: the sum of (A Aᵀ) * (Bᵀ B)."""
    a, b = _values(pair.a), _values(pair.b)
    return float(np.sqrt(max(float((a @ a.swapaxes(-1, -2) * (b.swapaxes(-1, -2) @ b)).sum()), 0.0)))


def _weight_norm(base: OpenModel, name: str) -> float | None:
    """The Frobenius norm of a weight of the base model, slab by slab; None if the base has no weight of this name."""
    from weighbridge.base.dtypes import F32
    from weighbridge.tensors.nodes import cast

    if name not in base.logical:
        return None
    node = cast(base.logical[name], F32)
    rows, step, total = node.spec.rows, max(1, (4 << 20) // max(4 * node.spec.shape[-1], 1)), 0.0
    for start in range(0, rows, step):
        part = np.frombuffer(node.read(start, min(start + step, rows)), np.float32).astype(np.float64)
        total += float(part @ part)
    return float(np.sqrt(total))
