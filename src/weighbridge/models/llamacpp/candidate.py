"""A GGUF as llama.cpp's model loader sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.naming import MappingReport
from weighbridge.models.arch.registry import family_of_gguf
from weighbridge.models.llamacpp import table

_VARIED: Final = "varies by layer"  # in the error for a list in place of a family's one number
_LAYERS: Final = 512  # longer lists aren't lists by layer


class TensorFit(NamedTuple):
    """`missing`: required names. `optional`: missing names that llama.cpp loads without. `extra`: unexpected names.
    `misshapen`: name, expected shape and actual shape. `values_apart`: the family's table has a length of a head for
    values."""

    missing: tuple[str, ...]
    optional: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: tuple[tuple[str, Shape, Shape], ...]
    values_apart: bool


@dataclass(frozen=True)
class Candidate:
    """`metadata`: the keys of the file, or of the first file of a set. `shapes`: of all tensors, in C order."""

    metadata: Mapping[str, Any]
    shapes: Mapping[str, Shape]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def key(self, name: str) -> str:
        """Returns the full name of a key in the table."""
        return name if name.startswith(("general.", "tokenizer.", "xielu.")) else f"{self.architecture}.{name}"

    def get(self, name: str) -> Any:
        """Returns a key's value by its name in the table, or None if the file doesn't have it."""
        return self.metadata.get(self.key(name))

    def whole(self, name: str) -> int:
        """Returns an integer, or 0 if there is none."""
        value = self.get(name)
        return value if isinstance(value, int) else 0

    def largest(self, name: str) -> int:
        """Returns the largest of a number or of a list with one number per layer."""
        value = self.get(name)
        listed = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        return max((n for n in listed if isinstance(n, int)), default=0)

    @property
    def kind(self) -> str:
        """`general.type`: model, adapter, mmproj or imatrix."""
        return str(self.metadata.get("general.type", "model"))

    @property
    def deciding(self) -> list[str] | None:
        """The keys that it needs as a decision model with blocks of a head; None for other models."""
        return table().deciding.get(self.architecture) if self.get("decision.block_count") else None

    @property
    def tokenizer(self) -> str:
        return str(self.metadata.get("tokenizer.ggml.model", ""))

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        stated = "tokenizer.ggml.tokens" in self.metadata
        return len(self.listed) if stated else self.whole("vocab_size")

    @property
    def listed(self) -> Sequence[str]:
        """The list of tokens; empty if there is none."""
        tokens = self.metadata.get("tokenizer.ggml.tokens")
        return () if tokens is None or isinstance(tokens, str) else tokens

    @property
    def layers(self) -> int:
        """The number of layers, without those that predict further tokens."""
        return self.whole("block_count") - self.whole("nextn_predict_layers")

    @property
    def head(self) -> int:
        """The elements of a head if no key states them."""
        heads = self.get("attention.head_count")
        first = heads[0] if isinstance(heads, Sequence) and not isinstance(heads, str) and heads else heads
        return self.whole("embedding_length") // first if isinstance(first, int) and first > 0 else 0

    @property
    def _completed(self) -> dict[str, Any]:
        """The keys, with llama.cpp's defaults for missing ones."""
        heads = self.get("attention.head_count")
        length = self.whole("attention.key_length") or self.head
        defaults = {"rope.dimension_count": length or None, "attention.head_count_kv": heads}
        defaults |= dict.fromkeys(("attention.key_length", "attention.value_length"), self.head or None)
        return {**{self.key(k): v for k, v in defaults.items() if v is not None}, **self.metadata}

    @cached_property
    def judged(self) -> TensorFit | str | None:
        """How the tensors fit, or an error about a size that the keys don't determine; None if unknown."""
        result = self._fit_of(self._completed)
        if isinstance(result, str) and _VARIED in result:  # a number may be repeated for each layer
            single = {}
            for key, value in self._completed.items():
                listed = isinstance(value, Sequence) and not isinstance(value, str) and 0 < len(value) <= _LAYERS
                repeated = listed and isinstance(value[0], int) and all(number == value[0] for number in value)
                single[key] = value[0] if repeated else value
            result = self._fit_of(single)
        defaulted = table().defaulted.get(self.architecture, ())
        undecided = isinstance(result, str) and (_VARIED in result or any(self.get(key) is None for key in defaulted))
        return None if undecided else result

    def _fit_of(self, keys: Mapping[str, Any]) -> TensorFit | str | None:
        """Checks the tensors against the family's table, corrected if llama.cpp's graph needs more or fewer."""
        try:
            family = family_of_gguf(keys, (), self.shapes)
            sizes = family.sizes_from_gguf(keys, self.shapes)
            report, stored_as_keys = family.check("gguf", sizes, self.shapes), family.metadata_names()
            names = family.names("gguf", sizes)
        except (UnsupportedError, UsageError):
            return None
        except WeighbridgeError as error:
            return error.message
        required, optional = table().needed.get(self.architecture, ()), [*table().optional.get(self.architecture, ())]
        if self.architecture in table().apart_from_trunk and self.whole("nextn_predict_layers"):
            optional.append("blk.*.attn_norm.weight")
        if self.deciding is not None:
            optional = [name for name in optional if not name.startswith("cls.")]
        missing = [
            *report.missing,
            *(n for n in required if "*" not in n),
            *(n for n in names if _matches(n, required)),
        ]
        missing = [n for n in dict.fromkeys(missing) if n not in stored_as_keys and n not in self.shapes]
        free = {n for n in missing if _matches(n, optional) and not _matches(n, required)}
        extra = []
        for name in (*report.unmapped, *report.dropped):
            stem, _, end = name.rpartition(".")
            scale = (
                end in ("scale", "input_scale") and f"{stem}.weight" in self.shapes
            )  # every graph accepts it (NVFP4)
            if not (scale or _matches(name, optional)):
                extra.append(name)
        unknown = self._unknown()
        extra += [n for n in self.shapes if _matches(n, unknown)]
        return TensorFit(
            tuple(n for n in missing if n not in free), tuple(n for n in missing if n in free),
            tuple(dict.fromkeys(extra)), (*report.misshapen, *self._misshapen_head(report)),
            any("value_length" in source for size in family.sizes.values() for source in size.gguf),
        )  # fmt: skip

    def _misshapen_head(self, report: MappingReport) -> Iterator[tuple[str, Shape, Shape]]:
        """Yields a head's tensors whose shapes differ from those in every graph. A classifier: a square matrix, then a
        row per label; dense modules: as wide as their keys (llama-model.cpp, gemma-embedding.cpp, lfm2.cpp)."""
        width, labels = self.whole("embedding_length"), self.get("classifier.output_labels")
        stated = self.whole("embedding_length_out")
        rows = len(labels) if isinstance(labels, Sequence) and not isinstance(labels, str) else stated or 1
        expected = {"cls.weight": (width, width), "cls.bias": (width,), "cls.output.weight": (rows, width)}
        length = self.whole("dense_2_feat_out") or stated or width
        expected |= {"dense_2.weight": (length, width), "dense_3.weight": (width, self.whole("dense_3_feat_in"))}
        reported = {name for name, _, _ in report.misshapen}
        for name, shape in expected.items():
            if name in self.shapes and name not in reported and self.shapes[name] != shape:
                yield name, shape, self.shapes[name]

    def _unknown(self) -> list[str]:
        """Returns patterns of tensors that the graph doesn't have, such as unsuitable rope factors."""
        limits = table().unknown_below.get(self.architecture, {})
        names = [*table().unknown.get(self.architecture, ())]
        names += [name for layers, below in limits.items() if self.layers < layers for name in below]
        if self.architecture not in table().longrope:
            return names
        long = self.get("rope.scaling.type") == "longrope"
        return [*names, *(["rope_freqs.weight"] if long else ["rope_factors_long.weight", "rope_factors_short.weight"])]

    @property
    def fit(self) -> TensorFit | None:
        """How the tensors fit the architecture; None if unknown."""
        return self.judged if isinstance(self.judged, TensorFit) else None


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
