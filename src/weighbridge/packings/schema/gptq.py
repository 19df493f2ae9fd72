"""GPTQ (AutoGPTQ, GPTQModel, auto-round, optimum): a module P of W[out, in] is stored as

    P.qweight  I32 [in * b / 32, out]   codes, a little-endian stream along `in`, down the columns
    P.qzeros   I32 [groups, out * b / 32]   zero points, a stream along `out`; absent: 2 ** (b - 1)
    P.scales   F16 or BF16 [groups, out]
    P.g_idx    I32 [in]                 the group of each input; i // group size unless quantized in activation order

    W[o, i] = scales[g_idx[i], o] * (code[i, o] - zero[g_idx[i], o])

Format 1 (`checkpoint_format: gptq`, or no declaration) stores zero - 1, modulo 2 ** b; format 2 (`gptq_v2`) stores the
zero. Labels are often wrong (vLLM issue 38966): if every zero is that of symmetric quantization, the numbers decide.
Transposed, `qweight` is the very same stream as MLX's and compressed-tensors' words.

Source: GPTQModel (nn_modules/qlinear/torch.py), AutoGPTQ (qlinear_cuda_old.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import I32
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PROBE_INDEX, PROBE_ZEROS
from weighbridge.base.spec import Spec
from weighbridge.packings.schema.base import (
    FLOATS,
    Evidence,
    Group,
    Member,
    PackingSchema,
    Shared,
    Solution,
    in_group,
    in_words,
    settings,
)

NAME: Final = "gptq"
_BITS: Final = (2, 3, 4, 5, 6, 7, 8)
# Bits that only gptq_p supports; its zero points have format 2.
_PLANAR: Final = (5, 6, 7)
# Layouts that one kernel creates at run time: their codes are shuffled, and the file doesn't record the order.
_SHUFFLED: Final = ("marlin", "exllama", "exllamav2", "bitblas", "machete")


class GptqLayout(NamedTuple):
    """`planar`: codes are stored in planes of bits. `version`: the checkpoint format that the config declares."""

    planar: bool
    version: str


def version(config: Mapping[str, Any]) -> str:
    return str(config.get("checkpoint_format") or config.get("format") or NAME).lower()


def solve(group: Group) -> Solution:
    configured = _module_settings(group.module, settings(group.config))
    if (form := version(configured)) in _SHUFFLED:
        raise UnsupportedError(
            f"{group.module} is in the order of {form}, a GPU kernel",
            hint="use the repository's plain GPTQ files",
        )
    scales = group.specs["scales"].shape
    group.need(scales[0], "qweight and scales don't belong together", "I32 [words, out], floats [groups, out]")
    groups, outer = scales
    bits, inner = _sizes(group, configured)
    index, zeros = group.specs.get("g_idx"), group.specs.get("zeros")
    group.need(index is None or len(index.shape) == 1 or not index.elements, "g_idx is misshapen", "I32 [in]", index)
    group.need(zeros is None or (zeros.shape[:1] == (groups,) and len(zeros.shape) == 2
                                 and zeros.shape[1] * 32 >= outer * bits), "qzeros don't belong to the scales",
               f"I32 [{groups}, {outer * bits // 32}]", zeros)  # fmt: skip
    planar = form == "gptq_p" or bits in _PLANAR
    size = -(-inner // groups)
    planes = Shared(32, bits, "words")
    units = {
        "down": planes if planar else in_words(bits, inner, inner * bits // 32),
        "across": planes if planar else in_words(bits, outer, outer * bits // 32),
        "group": in_group(size, inner),
    }
    return Solution((outer, inner), bits, size, GptqLayout(planar, form), units)


def _sizes(group: Group, configured: Mapping[str, Any]) -> tuple[int, int]:
    """(bits, inputs): from g_idx and qzeros; the config decides only if both are missing."""
    words, (groups, outer) = group.specs["codes"].shape[0], group.specs["scales"].shape
    index, zeros = group.specs.get("g_idx"), group.specs.get("zeros")
    if index is not None and index.elements:
        inner = index.elements
        bits = words * 32 // inner
    elif zeros is not None:
        group.need(len(zeros.shape) == 2, "zeros aren't a matrix", "[groups, words]")
        bits = zeros.shape[-1] * 32 // max(outer, 1)
        inner = words * 32 // max(bits, 1)
    else:
        declared = configured.get("bits")
        bits = declared if isinstance(declared, int) else 4
        inner = words * 32 // max(bits, 1)
    group.need(bits in _BITS and inner * bits == words * 32 and groups <= inner, "codes don't fill their words",
               f"inputs x bits = {words} x 32", f"{inner} inputs of {bits} bits")  # fmt: skip
    return bits, inner


def _module_settings(module: str, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of one module: GPTQModel's `dynamic` maps regular expressions to overriding settings."""
    dynamic = table.get("dynamic")
    for pattern, changes in dynamic.items() if isinstance(dynamic, Mapping) else ():
        if not pattern.startswith("-:") and isinstance(changes, Mapping) and _fits(pattern.removeprefix("+:"), module):
            return {**table, **changes}
    return table


def _fits(pattern: str, module: str) -> bool:
    """Whether a regular expression of a config matches. It is untrusted and could backtrack exponentially, so only
    simple ones run."""
    if len(pattern) > 200 or re.search(r"[)\]}*+?][*+?{]|\\[1-9]", pattern):
        return False
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False


def columns(spec: Spec) -> int:
    """The columns of a matrix; -1 if it isn't one."""
    return spec.shape[-1] if len(spec.shape) == 2 else -1


GPTQ: Final = PackingSchema(
    NAME, NAME, "gptq",
    {
        "codes": Member(".qweight", (I32,), "columns/down rows", needs="scales"),
        "zeros": Member(".qzeros", (I32,), "columns/group rows/across", required=False, probe=PROBE_ZEROS,
                        needs="codes"),
        "scales": Member(".scales", FLOATS, "columns/group rows", needs="codes"),
        "g_idx": Member(".g_idx", (I32,), "columns", required=False, probe=PROBE_INDEX),
    },
    key="codes", solve=solve, reader="weighbridge.packings.read.gptq",
    # AWQ packs the columns.
    applies=lambda group: "scales" in group.specs and columns(group.specs["codes"]) == columns(group.specs["scales"]),
    evidence=Evidence("gptq-or-awq", "packed int32 weights with qzeros", "zeros"),
)  # fmt: skip
