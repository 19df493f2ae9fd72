"""The rules for GGUF, one row each, and the collector that turns rows into findings or errors.

Severity follows the specification (docs/gguf.md), not habit:

    ERROR    violates the specification
    WARNING  the specification allows it, but llama.cpp refuses it; or the specification forbids it, but readers don't
    INFO     an oddity; both accept it

`refused` is a second, independent column: the stage at which llama.cpp (b11549) refuses the file, so that the findings
show whether it would load there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any, Final, NoReturn

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Finding, Rule, Severity, Stage


def _rule(severity: Severity, refused: Stage, text: str, hint: str | None = None) -> Rule:
    return Rule(severity, text, hint, refused)


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO
_NEVER, _HEADER, _DATA, _MODEL = Stage
_CUT: Final = "the file is cut off, damaged or still being written: download or copy it again"

RULES: Final = MappingProxyType(
    {
        "gguf/magic": _rule(_E, _HEADER, "the file doesn't begin with the bytes GGUF"),
        "gguf/version": _rule(
            _E, _HEADER, "no such version of the format", "a later version of this program may know it"
        ),
        "gguf/version-1": _rule(_W, _HEADER, "version 1 of the format, which llama.cpp no longer reads"),
        "gguf/version-2": _rule(_I, _NEVER, "version 2 of the format"),
        "gguf/big-endian": _rule(_W, _HEADER, "big-endian file, which llama.cpp reads on big-endian machines only"),
        "gguf/truncated-header": _rule(_E, _HEADER, "the file ends before its tensor data begins", _CUT),
        "gguf/counts": _rule(_E, _HEADER, "more keys or tensors are promised than the file can hold"),
        "gguf/key-empty": _rule(_E, _HEADER, "empty key"),
        "gguf/key-length": _rule(_E, _NEVER, "key longer than 65535 bytes"),
        "gguf/key-charset": _rule(_E, _NEVER, "key isn't dot-separated lower_snake_case ASCII"),
        # llama.cpp's own architecture names have hyphens (falcon-h1, gpt-oss), and begin half of a file's keys.
        "gguf/key-hyphen": _rule(_I, _NEVER, "key with a hyphen, which the specification doesn't provide for"),
        "gguf/key-duplicate": _rule(_E, _HEADER, "key given twice"),
        "gguf/value-type": _rule(_E, _HEADER, "unknown value type"),
        "gguf/string-huge": _rule(_W, _HEADER, "string longer than 1 GiB"),
        "gguf/array-huge": _rule(_W, _HEADER, "array of more than 2^30 elements"),
        "gguf/array-nested": _rule(_W, _HEADER, "array of arrays"),
        "gguf/array-depth": _rule(_E, _HEADER, "arrays nested deeper than can be read"),
        "gguf/bool": _rule(_E, _NEVER, "bool that is neither 0 nor 1"),
        "gguf/utf8": _rule(_E, _NEVER, "string that isn't UTF-8"),
        "gguf/alignment-type": _rule(_E, _HEADER, "general.alignment isn't a u32"),
        "gguf/alignment-zero": _rule(_E, _HEADER, "general.alignment gives no alignment"),
        "gguf/alignment-multiple": _rule(_W, _NEVER, "general.alignment isn't a multiple of 8"),
        "gguf/alignment-power": _rule(_W, _HEADER, "general.alignment isn't a power of two"),
        "gguf/name-length": _rule(_E, _HEADER, "tensor name longer than 64 bytes"),
        "gguf/name-64": _rule(_W, _HEADER, "tensor name of 64 bytes; llama.cpp takes 63"),
        "gguf/name-duplicate": _rule(_E, _HEADER, "tensor name given twice"),
        "gguf/name-empty": _rule(_I, _NEVER, "tensor without a name"),
        "gguf/name-control": _rule(_I, _NEVER, "tensor name with control characters"),
        "gguf/dims-count": _rule(_W, _HEADER, "tensor of more than 4 dimensions"),
        "gguf/dims-limit": _rule(_E, _HEADER, "impossible number of dimensions"),
        "gguf/dims-overflow": _rule(_W, _HEADER, "tensor size beyond 64-bit arithmetic"),
        "gguf/tensor-type": _rule(_E, _HEADER, "unknown tensor type"),
        "gguf/row-blocks": _rule(_E, _HEADER, "rows aren't whole blocks of the tensor's type"),
        "gguf/offset-alignment": _rule(_E, _HEADER, "tensor offset isn't a multiple of the alignment"),
        "gguf/gap": _rule(_W, _HEADER, "unused space before a tensor"),
        "gguf/overlap": _rule(_W, _HEADER, "tensors share bytes"),
        "gguf/order": _rule(_W, _HEADER, "tensor data isn't in the order of the directory"),
        "gguf/data-start": _rule(
            _W,
            _MODEL,
            "tensor data doesn't begin at a multiple of 32, so llama.cpp aborts if it maps the file",
            "wb convert rewrites it with an alignment of 32; llama-server --no-mmap reads it unchanged",
        ),
        "gguf/truncated-data": _rule(_E, _DATA, "the file ends inside its tensor data", _CUT),
        "gguf/final-padding": _rule(_W, _DATA, "no padding after the last tensor"),
        "gguf/header-padding": _rule(_I, _NEVER, "no padding after a header without tensors"),
        "gguf/padding": _rule(_E, _NEVER, "padding that isn't zero"),
        "gguf/trailing": _rule(_I, _NEVER, "bytes after the end of the data"),
        "gguf/no-architecture": _rule(_E, _MODEL, "general.architecture is missing"),
        "gguf/no-quantization-version": _rule(_W, _NEVER, "quantized tensors without general.quantization_version"),
        "gguf/key-type": _rule(_W, _MODEL, "value of a type that llama.cpp doesn't take for this key"),
        "gguf/block-count": _rule(_W, _MODEL, "block_count outside 1..512"),
        "gguf/layer-array": _rule(_W, _MODEL, "per-layer array whose length isn't block_count"),
        "gguf/vocab-type": _rule(_W, _MODEL, "vocabulary array of the wrong type"),
        "gguf/vocab-short": _rule(_W, _MODEL, "vocabulary array shorter than the list of tokens"),
        "gguf/vocab-long": _rule(_I, _NEVER, "vocabulary array longer than the list of tokens"),
        "gguf/token-duplicate": _rule(_W, _MODEL, "token given twice"),
        "gguf/split-missing": _rule(_E, _MODEL, "shard missing from the set"),
        "gguf/split-number": _rule(_E, _MODEL, "shard's split.no is missing, wrong, or taken"),
        # llama.cpp reads only the first shard's count.
        "gguf/split-count": _rule(_E, _NEVER, "shards disagree on split.count"),
        "gguf/split-total": _rule(_E, _MODEL, "split.tensors.count isn't the number of tensors in the set"),
        "gguf/split-duplicate": _rule(_E, _MODEL, "tensor in two shards"),
    }
)

# The most findings of one rule that are listed individually; a hostile file could cause millions.
_LISTED: Final = 50


class GGUFError(FormatError):
    """A FormatError that names the rule of `RULES` that was broken."""

    def __init__(self, rule: str, message: str, **place: Any) -> None:
        super().__init__(message, **place)
        self.rule = rule


class Collector:
    """Collects findings. If `strict`, a `fault` (a part that can't be read without guessing) is an error instead."""

    def __init__(self, path: str, strict: bool) -> None:
        self.path, self.strict = path, strict
        self._findings: list[Finding] = []
        self._count: Counter[str] = Counter()

    def note(self, rule: str, detail: str = "", *, offset: int | None = None, tensor: str | None = None) -> None:
        """A finding that doesn't stop the reader."""
        self._count[rule] += 1
        if self._count[rule] <= _LISTED:
            row = RULES[rule]
            message = f"{row.text}: {detail}" if detail else row.text
            self._findings.append(Finding(rule, row.severity, message, self.path, offset, tensor, row.hint))

    def fault(self, rule: str, detail: str = "", *, offset: int | None = None, tensor: str | None = None) -> None:
        """A problem that a strict reader refuses and a lenient one skips."""
        if self.strict:
            self.stop(rule, detail, offset=offset, tensor=tensor)
        self.note(rule, detail, offset=offset, tensor=tensor)

    def stop(self, rule: str, detail: str = "", *, offset: int | None = None, tensor: str | None = None) -> NoReturn:
        """A problem beyond which no reader can continue."""
        row = RULES[rule]
        field = None if tensor is None else f"tensor {tensor!r}"
        message = f"{row.text}: {detail}" if detail else row.text
        raise GGUFError(rule, message, path=self.path, offset=offset, field=field, hint=row.hint)

    def result(self) -> tuple[Finding, ...]:
        """All findings; one more line counts the surplus of each rule."""
        surplus = ((rule, count - _LISTED) for rule, count in self._count.items() if count > _LISTED)
        more = (Finding(r, RULES[r].severity, f"{RULES[r].text}: {n} more", self.path) for r, n in surplus)
        return (*self._findings, *more)


def refused_at(findings: Iterable[Finding]) -> Stage:
    """The first stage at which llama.cpp refuses a file with these findings."""
    stages = {RULES[f.rule].refused for f in findings if f.rule in RULES} - {Stage.NEVER}
    return min(stages, key=list(Stage).index, default=Stage.NEVER)
