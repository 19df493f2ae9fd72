"""Weighbridge: one tool for files of model weights.

    import weighbridge as wb
    wb.identify(path)   what is this file?        wb.verify(path)        is it whole?
    wb.inspect(path)    what is inside?           wb.plan(src, dst)      what would a conversion do?
    wb.open(path)       its tensors, lazily       wb.convert(src, dst)   do it
    wb.scan(path)       what would it do when it is loaded?
    wb.strip(src, dst)  weights of a training checkpoint, alone
    wb.rename(src, dst, strip="module.")          wb.slice(src, dst, layers="0-15")
    wb.quantize(src, dst, "Q4_K_M")   llama-quantize's bytes, from any source

Importing the package loads nothing heavy: the functions above are fetched from `weighbridge.api` on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weighbridge.api import (
        convert,
        diff,
        hash,
        identify,
        importance,
        inspect,
        load_checkpoint,
        open,
        plan,
        plan_quantize,
        quality,
        quantize,
        rename,
        save_checkpoint,
        scan,
        slice,
        strip,
        verify,
    )

__version__ = "0.1.0"
__all__ = [
    "__version__", "convert", "diff", "hash", "identify", "importance", "inspect", "load_checkpoint", "open", "plan",
    "plan_quantize", "quality", "quantize", "rename", "save_checkpoint", "scan", "slice", "strip", "verify",
]  # fmt: skip

_API = frozenset(__all__) - {"__version__"}


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module("weighbridge.api"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_API})
