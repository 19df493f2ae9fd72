"""Files of ggml other than GGUF: llama.cpp's until August 2023, ggml's examples', and those that whisper.cpp reads and
writes today. Magic, sizes, vocabulary, tensors to the end.

    magic u32 (, version u32), sizes of the model, n x (length u32, bytes (, score f32)), then to the end
    dimensions u32, length of name u32, type u32, dims u32 (fastest first), name (, zeros up to a multiple of 32), data

    lmgg  "ggml"     no version; llama without scores, the example gpt-2, and whisper.cpp's models (speech recognition:
                     whisper, parakeet; voice activity: silero-vad)
    fmgg  "ggmf" 1   llama with scores
    tjgg  "ggjt" 1-3 llama with scores; data at multiples of 32. 2 and 3 changed the blocks of some types

The file doesn't state its model. The variants of the table are tried in turn; the first whose vocabulary and tensors
fill the file is the one. Whole old models in several parts (`.bin.1`) are read part by part.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BY_GGML, OLD, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import VOCABULARY
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Finding, Index, Region, Rule, Severity
from weighbridge.containers.ggml import whisper
from weighbridge.io.cursor import Cursor
from weighbridge.io.source import Source

NAME: Final = "ggml"
ALIGN: Final = 32
_WORD: Final = 4096  # no token, no tensor's name was longer; the reference's own bound
_DIMS: Final = 4

_LLAMA: Final = ("n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype")
_GPT2: Final = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer", "ftype")
_WHISPER: Final = (*whisper.SIZES, "ftype")
_PARAKEET: Final = (
    "n_vocab", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer", "n_mels", "ftype", "n_fft",
    "subsampling_factor", "n_subsampling_channels", "n_conv_kernel", "n_pred_dim", "n_pred_layers",
    "n_tdt_durations", "n_max_tokens",
)  # fmt: skip
_SILERO: Final = ("major", "minor", "patch", "n_window", "n_context")
_SILERO_LAYER: Final = ("in_channels", "out_channels", "kernel_size")
_SILERO_LAST: Final = ("lstm_input_size", "lstm_hidden_size", "final_conv_in", "final_conv_out")
#: Models that whisper.cpp loads. It also loads files without tensors, with a warning: models of its tests.
WHISPER_CPP: Final = frozenset({"whisper", "parakeet", "silero-vad"})


class FileVariant(NamedTuple):
    """A kind of file: the model, its sizes, the data between them and the tokens, whether tokens have scores."""

    model: str
    sizes: tuple[str, ...]
    between: str
    scores: bool


_WITH_SCORES: Final = (FileVariant("llama", _LLAMA, "", True),)
#: Magic -> name, versions (None: no field), forms to try.
MAGICS: Final[Mapping[bytes, tuple[str, tuple[int, ...] | None, tuple[FileVariant, ...]]]] = MappingProxyType(
    {
        b"lmgg": ("ggml", None, (
            FileVariant("whisper", _WHISPER, "filters", False), FileVariant("gpt-2", _GPT2, "count", False),
            FileVariant("parakeet", _PARAKEET, "durations", False), FileVariant("silero-vad", (), "layers", False),
            FileVariant("llama", _LLAMA, "", False),
        )),
        b"fmgg": ("ggmf", (1,), _WITH_SCORES),
        b"tjgg": ("ggjt", (1, 2, 3), _WITH_SCORES),
    }
)  # fmt: skip
RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "no-tensors": Rule(Severity.WARNING, "the file has no tensors: whisper.cpp takes it for a model of its tests"),
        "old-blocks": Rule(
            Severity.WARNING, "blocks without a version: their layout is unknown, that of GGJT 1 is assumed"
        ),
        **whisper.RULES,
    }
)
_OTHERS: Final = MappingProxyType({b"algg": "a LoRA adapter", b"nsgg": "a saved session"})


def _types(**old: str) -> Mapping[int, DType]:
    """Today's types by id, some of them overridden; without k-quants and later types, which old files can't have."""
    ids = {"q4_0": 2, "q4_1": 3, "q4_2": 4, "q4_3": 5, "q5_0": 6, "q5_1": 7, "q8_0": 8}
    return MappingProxyType({**{i: BY_GGML[i] for i in (0, 1, 6, 7)}, **{ids[k]: OLD[v] for k, v in old.items()}})


_V1: Final = _types(q4_0="Q4_0_V1", q4_1="Q4_1_V1", q4_2="Q4_2", q4_3="Q4_3", q5_0="Q5_0_V1", q5_1="Q5_1_V1",
                    q8_0="Q8_0_V1")  # fmt: skip
#: The meaning of type ids, by generation of the blocks. 0: before there were versions, when it changed without notice.
GENERATIONS: Final = (
    _V1, _V1, _types(q4_0="Q4_0_V2", q4_1="Q4_1_V2", q8_0="Q8_0_V1"),
    MappingProxyType({i: BY_GGML[i] for i in (0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14)}),
)  # fmt: skip
# ggml's examples store the generation in `ftype`, in thousands (GGML_QNT_VERSION).
_OF_FTYPE: Final = (0, 2, 3)
_THOUSANDS: Final = 1000


@dataclass
class GgmlHeader:
    """The content of a header. `tokens`: offset, length and score of each; `marks`: offsets of the header's parts."""

    kind: str
    version: int | None
    form: FileVariant
    sizes: dict[str, int]
    generation: int = 0
    tokens: list[tuple[int, int, float]] = field(default_factory=list)
    infos: list[tuple[int, int, Entry]] = field(default_factory=list)  # start of the record, end of its name, tensor
    marks: list[Region] = field(default_factory=list)


def parse(source: Source) -> Index:
    """The tensors of a file in its order; shapes in C order. UnsupportedError for LoRA adapters and sessions."""
    header = read_header(source)
    entries = tuple(entry for _, _, entry in header.infos)
    findings: list[Finding] = []
    if not entries:
        findings.append(_finding("no-tensors", source))
    elif header.form.model == "whisper":
        findings += whisper.problems(header.sizes, entries, source.name)
    if header.generation == 0 and any(e.dtype.block > 1 for e in entries):
        findings.append(_finding("old-blocks", source))
    described = {"model": header.form.model, "format": f"{header.kind}{header.version or ''}", **header.sizes}
    return Index(
        NAME, (source,), entries, {**described, "tokens": len(header.tokens)}, version=header.version,
        data_start=(entries[0].offset if entries else source.size,), alignment=ALIGN if header.kind == "ggjt" else 1,
        findings=tuple(findings),
    )  # fmt: skip


def _finding(rule: str, source: Source) -> Finding:
    return Finding(f"{NAME}/{rule}", RULES[rule].severity, RULES[rule].text, source.name)


# ------------------------------------------------------------------------------------------------ reading


def read_header(source: Source) -> GgmlHeader:
    """The header and all tensor records. FormatError if no variant matches; its message is that of the variant that
    got furthest."""
    kind, version, forms = _declared(source)
    worst: list[FormatError] = []
    for form in forms:
        try:
            return _GgmlReader(source, GgmlHeader(kind, version, form, {})).run(4 if version is None else 8)
        except FormatError as error:
            worst.append(error)
    raise max(worst, key=lambda e: e.offset or 0)


def model_of(source: Source) -> str | None:
    """The model of a file, by its header; None if no variant's header matches. Reads no tensor."""
    try:
        kind, version, forms = _declared(source)
    except (FormatError, UnsupportedError):
        return None
    for form in forms:
        with suppress(FormatError):
            _GgmlReader(source, GgmlHeader(kind, version, form, {})).head(4 if version is None else 8)
            return form.model
    return None


def _declared(source: Source) -> tuple[str, int | None, tuple[FileVariant, ...]]:
    """Name and version by the magic, and the variants to try."""
    magic = source.head(4)
    if magic in _OTHERS:
        raise UnsupportedError(f"{source.name}: {_OTHERS[magic]} of a format before GGUF", hint="make it again")
    if magic not in MAGICS:
        raise FormatError("no magic of a file before GGUF", path=source.name, offset=0, found=magic)
    kind, versions, forms = MAGICS[magic]
    version = None
    if versions is not None:
        version = Cursor(source, 4).number("I", "version")
        if version not in versions:
            raise UnsupportedError(f"{source.name}: {kind} version {version}", hint=f"known: {versions}")
    return kind, version, forms


class _GgmlReader:
    def __init__(self, source: Source, header: GgmlHeader) -> None:
        self.source, self.header = source, header
        self.cursor = Cursor(source)
        self.names: set[str] = set()

    def bad(self, message: str, at: int, actual: Any = None, expected: Any = None) -> FormatError:
        return FormatError(message, path=self.source.name, offset=at, found=actual, expected=expected)

    def mark(self, start: int, kind: str, label: str, value: str = "") -> None:
        if start < self.cursor.offset:
            self.header.marks.append(Region(start, self.cursor.offset, kind, label, value))

    def run(self, start: int) -> GgmlHeader:
        self.head(start)
        while self.cursor.left:
            self.tensor()
        if not self.header.infos and self.header.form.model not in WHISPER_CPP:
            raise self.bad("there are no tensors", self.cursor.offset)
        return self.header

    def head(self, start: int) -> None:
        """Everything before the tensors."""
        self.cursor.offset = start
        self.sizes(*self.header.form.sizes)
        self.header.generation = self.generation()
        self.tokens(_BETWEEN[self.header.form.between](self))

    def sizes(self, *names: str) -> None:
        """Numbers of the model, each by its name."""
        for name in names:
            at = self.cursor.offset
            self.header.sizes[name] = value = self.cursor.number("I", name)
            self.mark(at, "value", name, str(value))

    def generation(self) -> int:
        header = self.header
        if header.kind == "ggjt":
            return header.version or 0
        quantized = header.sizes.get("ftype", 0) // _THOUSANDS
        if header.form.model == "llama" and not quantized:
            return 0
        if header.form.model in WHISPER_CPP and not quantized:
            return len(GENERATIONS) - 1
        if quantized >= len(_OF_FTYPE):
            raise self.bad("no such file type", self.cursor.offset - 4, header.sizes["ftype"])
        return _OF_FTYPE[quantized]

    def stated(self) -> int:
        """llama: the number of tokens in the sizes. If the magic is ambiguous, the sizes identify a llama: it rotates
        whole heads."""
        sizes = self.header.sizes
        if self.header.kind == "ggml" and sizes["n_head"] * sizes["n_rot"] != sizes["n_embd"]:
            raise self.bad("no sizes of a llama", 4, sizes["n_rot"], "n_embd / n_head")
        return sizes["n_vocab"]

    def counted(self) -> int:
        """gpt-2: the number of tokens, repeated."""
        at = self.cursor.offset
        count = self.cursor.number("I", "tokens")
        if count != self.header.sizes["n_vocab"]:
            raise self.bad("two numbers of tokens", at, count, self.header.sizes["n_vocab"])
        self.mark(at, "count", "tokens", str(count))
        return count

    def filtered(self) -> int:
        """whisper: the mel filters, then the number of stored tokens (the program makes up the others)."""
        self.filters()
        return self.written()

    def layers(self) -> int:
        """silero-vad: the model's name, its version, then sizes of each encoder layer and of the rest; no tokens."""
        cursor, at = self.cursor, self.cursor.offset
        length = cursor.number("I", "length of the model's name")
        if length >= _WORD:
            raise self.bad("the model's name is absurdly long", at, length, f"< {_WORD}")
        name = cursor.take(length, "the model's name")
        if not name.startswith(b"silero"):
            raise self.bad("no model of voice activity", at + 4, name[:20])
        self.mark(at, "value", "model", name.decode("utf-8", "replace"))
        self.sizes(*_SILERO, "n_encoder_layers")
        count = self.header.sizes["n_encoder_layers"]
        cursor.need(count * 4 * len(_SILERO_LAYER), "sizes of the layers")
        for layer in range(count):
            self.sizes(*(f"{name}.{layer}" for name in _SILERO_LAYER))
        self.sizes(*_SILERO_LAST)
        return 0

    def durations(self) -> int:
        """parakeet: the mel filters, the window of the transform, the durations of its decoder, then the tokens."""
        cursor = self.cursor
        self.filters()
        at = cursor.offset
        cursor.skip(4 * cursor.number("I", "window"), "window")
        cursor.skip(4 * self.header.sizes["n_tdt_durations"], "durations")
        self.mark(at, "value", "window and durations")
        return self.written()

    def filters(self) -> None:
        cursor, at = self.cursor, self.cursor.offset
        mels, ffts = cursor.numbers("II", "mel filters")
        if mels != self.header.sizes["n_mels"]:
            raise self.bad("two numbers of mel bands", at, mels, self.header.sizes["n_mels"])
        self.mark(at, "count", "mel filters", f"{mels} x {ffts}")
        at = cursor.offset
        cursor.skip(4 * mels * ffts, "mel filters")
        self.mark(at, "value", "mel filters")

    def written(self) -> int:
        """The number of tokens that follow: at most those of the vocabulary."""
        cursor, at = self.cursor, self.cursor.offset
        count = cursor.number("I", "tokens")
        if count > self.header.sizes["n_vocab"]:
            raise self.bad("more tokens than the vocabulary has", at, count, self.header.sizes["n_vocab"])
        self.mark(at, "count", "tokens", str(count))
        return count

    def tokens(self, count: int) -> None:
        cursor, scores = self.cursor, self.header.form.scores
        if count > VOCABULARY:
            raise self.bad("too many tokens", cursor.offset, count, f"<= {VOCABULARY}")
        cursor.need(count * (8 if scores else 4), "tokens")
        start = cursor.offset
        for _ in range(count):
            at = cursor.offset
            length = cursor.number("I", "length of a token")
            if length >= _WORD:
                raise self.bad("a token is absurdly long", at, length, f"< {_WORD}")
            cursor.skip(length, "token")
            score = struct.unpack("<f", cursor.take(4, "score"))[0] if scores else 0.0
            self.header.tokens.append((at + 4, length, score))
        self.mark(start, "value", "vocabulary", plural(count, "token"))

    def tensor(self) -> None:
        cursor, header = self.cursor, self.header
        start = cursor.offset
        dims, length, kind = cursor.numbers("III", "tensor")
        least = 0 if header.form.model == "silero-vad" else 1  # its last bias is a scalar
        if not least <= dims <= _DIMS:
            raise self.bad("no number of dimensions", start, dims, f"{least} to {_DIMS}")
        if not 0 < length < _WORD:
            raise self.bad("no length of a name", start + 4, length, f"1 to {_WORD - 1}")
        dtype = GENERATIONS[header.generation].get(kind)
        if dtype is None:
            raise self.bad("no such type", start + 8, kind, f"one of {sorted(GENERATIONS[header.generation])}")
        shape = tuple(reversed(cursor.numbers("I" * dims, "dims")))
        name = cursor.take(length, "name").decode("utf-8", "surrogateescape")
        if name in self.names:
            raise self.bad("two tensors have one name", start, name[:60])
        self.names.add(name)
        end = cursor.offset
        if header.kind == "ggjt":
            cursor.skip(-end % ALIGN, "padding")
        row = shape[-1] if shape else 1
        if row % dtype.block:
            raise self.bad("rows aren't a multiple of the block size", start + 12, row, f"a multiple of {dtype.block}")
        size = math.prod(shape) // dtype.block * dtype.size
        header.infos.append((start, end, Entry(name, dtype, shape, cursor.offset, size)))
        cursor.skip(size, f"data of {name[:60]}")


_BETWEEN: Final[Mapping[str, Callable[[_GgmlReader], int]]] = MappingProxyType(
    {
        "": _GgmlReader.stated,
        "count": _GgmlReader.counted,
        "filters": _GgmlReader.filtered,
        "durations": _GgmlReader.durations,
        "layers": _GgmlReader.layers,
    }
)


def vocabulary(source: Source, header: GgmlHeader) -> Sequence[tuple[bytes, float]]:
    """Each token's bytes and score, in order."""
    return [(source.read(at, length), score) for at, length, score in header.tokens]


# ------------------------------------------------------------------------------------------------ every byte


def regions(source: Source) -> list[Region]:
    """Every byte of the file, named; unreadable bytes are "unknown"."""
    try:
        header = read_header(source)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    out = [Region(0, 4, "magic", header.kind)]
    if header.version is not None:
        out.append(Region(4, 8, "value", "version", str(header.version)))
    out += header.marks
    for start, end, entry in header.infos:
        out.append(Region(start, end, "header", entry.name, str(Spec(entry.shape, entry.dtype))))
        if end < entry.offset:
            out.append(Region(end, entry.offset, "padding"))
        if entry.nbytes:
            out.append(Region(entry.offset, entry.offset + entry.nbytes, "tensor", entry.name))
    return out
