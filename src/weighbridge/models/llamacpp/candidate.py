"""A GGUF as llama.cpp's model loader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.spec import Shape
from weighbridge.models.arch import kv_tensors
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.mapping_report import MappingReport
from weighbridge.models.arch.registry import family_of_gguf
from weighbridge.models.llamacpp.table import key_of, table

_VARIED: Final = "varies by layer"  # what a family's table has one number for


_LAYERS: Final = 512  # more elements are no list of layers


class TensorFit(NamedTuple):
    """Names that are missing, those among them that llama.cpp loads without (`optional`), names that nothing asks for,
    and shapes that are others than the keys say: name, wanted, found."""

    missing: tuple[str, ...]
    optional: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: tuple[tuple[str, Shape, Shape], ...]
    values_apart: bool


@dataclass(frozen=True)
class Candidate:
    """`metadata`: the keys of the file, of a set those of the first. `shapes`: all tensors, in C order."""

    metadata: Mapping[str, Any]
    shapes: Mapping[str, Shape]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def key(self, name: str) -> str:
        return key_of(self.architecture, name)

    def get(self, name: str) -> Any:
        """A key's value by its name in the table; None where the file has none."""
        return self.metadata.get(self.key(name))

    def whole(self, name: str) -> int:
        """A number, 0 where there is none."""
        value = self.get(name)
        return value if isinstance(value, int) else 0

    def largest(self, name: str) -> int:
        """The largest of a number or a list with one for each layer."""
        value = self.get(name)
        listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        return max((n for n in listed if isinstance(n, int)), default=0)

    @property
    def kind(self) -> str:
        """`general.type`: model, adapter, mmproj, imatrix."""
        return str(self.metadata.get("general.type", "model"))

    @property
    def tokenizer(self) -> str:
        return str(self.metadata.get("tokenizer.ggml.model", ""))

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return self.whole("vocab_size") if tokens is None or isinstance(tokens, str) else len(tokens)

    @property
    def layers(self) -> int:
        """How many layers there are beside those that predict further tokens."""
        return self.whole("block_count") - self.whole("nextn_predict_layers")

    @property
    def head(self) -> int:
        """Elements of a head where no key states them."""
        heads = self.get("attention.head_count")
        first = heads[0] if isinstance(heads, Sequence) and not isinstance(heads, str) and heads else heads
        return self.whole("embedding_length") // first if isinstance(first, int) and first > 0 else 0

    @property
    def last_has_values(self) -> bool:
        """Whether the last layer has values of its own; in some models its keys are its values."""
        values = [name for name in self.shapes if name.endswith("attn_v.weight")]
        return not values or f"blk.{self.layers - 1}." in "".join(values)

    @property
    def _completed(self) -> dict[str, Any]:
        """The keys with the numbers that llama.cpp takes where they are absent."""
        heads = self.get("attention.head_count")
        length = self.whole("attention.key_length") or self.head
        own = {"rope.dimension_count": length or None, "attention.head_count_kv": heads}
        return {**{self.key(k): v for k, v in own.items() if v is not None}, **self.metadata}

    @cached_property
    def _judged(self) -> TensorFit | str | None:
        """How the tensors fit; a size that the keys don't give; None where that is unknown."""
        found = self._fit_of(self._completed)
        if isinstance(found, str) and _VARIED in found:
            found = self._fit_of({key: _single(value) for key, value in self._completed.items()})
        defaulted = table().defaulted.get(self.architecture, ())
        open_ = isinstance(found, str) and (_VARIED in found or any(self.get(key) is None for key in defaulted))
        return None if open_ else found

    def _fit_of(self, keys: Mapping[str, Any]) -> TensorFit | str | None:
        try:
            family = family_of_gguf(keys, (), self.shapes)
            return self._fit(family, family.sizes_from_gguf(keys, self.shapes))
        except (UnsupportedError, UsageError):
            return None
        except WeighbridgeError as error:
            return str(error).splitlines()[0]

    def _fit(self, family: Family, sizes: Sizes) -> TensorFit:
        """The family's report, corrected where llama.cpp's graph asks for more or less than the table."""
        report, inside, known = family.check("gguf", sizes, self.shapes), kv_tensors.names(family), table()
        needed, optional = known.needed.get(self.architecture, ()), self._optional
        missing = [*report.missing, *(n for n in needed if "*" not in n)]
        missing += [n for n in family.names("gguf", sizes) if _matches(n, needed)]
        missing = [n for n in dict.fromkeys(missing) if n not in inside and n not in self.shapes]
        free = {n for n in missing if _matches(n, optional) and not _matches(n, needed)}
        unknown = self._unknown()
        extra = [n for n in (*report.unmapped, *report.dropped) if not (_matches(n, optional) or self._scales(n))]
        extra += [n for n in self.shapes if _matches(n, unknown)]
        return TensorFit(
            tuple(n for n in missing if n not in free), tuple(n for n in missing if n in free),
            tuple(dict.fromkeys(extra)), (*report.misshapen, *self._oblong(report)),
            any("value_length" in source for size in family.sizes.values() for source in size.gguf),
        )  # fmt: skip

    def _scales(self, name: str) -> bool:
        """Whether a tensor is the scale of a weight: every graph takes them (NVFP4)."""
        stem, _, end = name.rpartition(".")
        return end in ("scale", "input_scale") and f"{stem}.weight" in self.shapes

    @property
    def _optional(self) -> list[str]:
        """Patterns of the tensors that the graph takes where they are there."""
        apart = self.architecture in table().apart_from_trunk and self.whole("nextn_predict_layers")
        return [*table().optional.get(self.architecture, ()), *(["blk.*.attn_norm.weight"] if apart else ())]

    def _oblong(self, report: MappingReport) -> Iterator[tuple[str, Shape, Shape]]:
        """Tensors of a classifier whose shapes every graph has alike: a square, then a row for each label."""
        width, labels = self.whole("embedding_length"), self.get("classifier.output_labels")
        rows = len(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else 1
        wanted = {"cls.weight": (width, width), "cls.bias": (width,), "cls.output.weight": (rows, width)}
        known = {name for name, _, _ in report.misshapen}
        for name, shape in wanted.items():
            if name in self.shapes and name not in known and self.shapes[name] != shape:
                yield name, shape, self.shapes[name]

    def _unknown(self) -> list[str]:
        few = table().unknown_below.get(self.architecture, {})
        below = (names for layers, names in few.items() if self.layers < layers)
        own = table().unknown.get(self.architecture, ())
        return [*own, *chain.from_iterable(below), *self._other_factors()]

    def _other_factors(self) -> list[str]:
        """The rope factors of another kind than the model's."""
        if self.architecture not in table().longrope:
            return []
        long = self.get("rope.scaling.type") == "longrope"
        return ["rope_freqs.weight"] if long else ["rope_factors_long.weight", "rope_factors_short.weight"]

    @property
    def fit(self) -> TensorFit | None:
        """How the tensors fit the architecture; None where that is unknown."""
        return self._judged if isinstance(self._judged, TensorFit) else None

    @property
    def unsized(self) -> str | None:
        """The size that the keys don't give."""
        return self._judged if isinstance(self._judged, str) else None

    @property
    def unchecked(self) -> bool:
        """Whether the architecture's tensors are unknown."""
        return self._judged is None


def _single(value: Any) -> Any:
    """A number that is given once for each layer, as one."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not 0 < len(value) <= _LAYERS:
        return value
    first = value[0]
    return first if isinstance(first, int) and all(other == first for other in value) else value


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
