"""Makes an importance matrix: runs the model over a text and sums the squares of what enters each matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.conversion.quantize import imatrix as matrices
from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
from weighbridge.forward.column_sums import ColumnSums
from weighbridge.forward.engines.choice import opened_engine
from weighbridge.forward.options import ImatrixOptions
from weighbridge.forward.texts import TextChunks, chunks_of
from weighbridge.io.location import open_source
from weighbridge.io.sink import check_target, write_file

SCHEMA: Final = "weighbridge/calibration/1"
_SUFFIXES: Final[dict[str, Literal["gguf", "legacy"]]] = {".gguf": "gguf", ".dat": "legacy"}


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan:
    """What a run will do. `chunks` of `tokens` each, from `first`; `dropped`: tokens at the end that fill no chunk;
    `begins`: each chunk begins with the tokenizer's first token."""

    source: str
    target: str
    family: str
    layers: int
    first: int
    chunks: int
    tokens: int
    dropped: int
    begins: bool
    schema: str = SCHEMA


@dataclass(frozen=True, kw_only=True)
class CalibrationReport(CalibrationPlan):
    """The plan, and its result. `entries`: tensors in the file. `unseen`: the number of experts without a token, by
    tensor; llama-quantize weighs the columns of such an expert equally. `missing`: matrices of the layers that the run
    didn't multiply with, such as those of layers that predict further tokens."""

    entries: int
    unseen: dict[str, int]
    missing: list[str]
    total_chunks: int


@accepting(ImatrixOptions)
def plan_imatrix(src: str | Path, dst: str | Path, options: ImatrixOptions) -> CalibrationPlan:
    """What `imatrix` will do. Reads headers and the text. Errors: as `imatrix`."""
    with _Run(str(src), Path(dst), options) as run:
        return run.plan


@accepting(ImatrixOptions)
def imatrix(src: str | Path, dst: str | Path, options: ImatrixOptions) -> CalibrationReport:
    """Runs the model `src` over a text, layer by layer, and writes the importance matrix `dst`, as llama-imatrix does.

    `dst`: a .gguf, or a .dat in the older form. Memory: the weights of half a layer in F32, and hidden states, which go
    to a temporary file if they are large. Raises UnsupportedError for a family whose graph isn't computed, UsageError
    for a text that is too short or a `dst` that exists, FormatError for a value that isn't finite.
    """
    with _Run(str(src), Path(dst), options) as run:
        return run.write()


class _Run:
    """One model, one text, one target, all open."""

    def __init__(self, src: str, dst: Path, options: ImatrixOptions) -> None:
        check_target(dst, overwrite=options.overwrite or options.resume, folder=False)
        self.options, self.dst, self.form = options, dst, _form(dst)
        self.earlier = [_read(path) for path in options.in_file]
        self.begun = _read(str(dst)) if options.resume and dst.exists() else None
        self.engine = opened_engine(src, options)
        try:
            self.texts = chunks_of(self.engine.model, options)
            self.first, self.last = self._range(self.texts)
        except BaseException:
            self.engine.close()
            raise

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.engine.close()

    @property
    def titles(self) -> tuple[str, ...]:
        """The texts' names in the file."""
        return tuple(Path(path).name if path != "-" else "standard input" for path in self.options.text)

    @property
    def plan(self) -> CalibrationPlan:
        return CalibrationPlan(**self._facts())

    def _facts(self) -> dict[str, Any]:
        model = self.engine.model
        return dict(
            source=model.place.title, target=str(self.dst), family=model.family.name, layers=self.engine.layers,
            first=self.first, chunks=self.last - self.first, tokens=self.options.context, dropped=self.texts.dropped,
            begins=self.texts.first is not None,
        )  # fmt: skip

    def _range(self, texts: TextChunks) -> tuple[int, int]:
        """The first chunk, and that after the last."""
        options, there = self.options, len(texts.ids)
        first = options.chunk
        if self.begun is not None:
            if not {*self.titles} <= {*self.begun.datasets}:
                raise UsageError(f"{self.dst} was made from {', '.join(self.begun.datasets)[:200]}",
                                 hint=f"--in-file {self.dst} adds it to another file")  # fmt: skip
            if self.begun.chunk_size not in (0, options.context):
                sizes = f"{self.begun.chunk_size:,}, not {options.context:,}"
                raise UsageError(f"{self.dst} has chunks of another length: {sizes}",
                                 hint=f"--context {self.begun.chunk_size}")  # fmt: skip
            first += self.begun.chunks
        last = there if options.chunks is None else min(there, options.chunk + options.chunks)
        if first >= last:
            raise UsageError(f"no chunk is left: the text has {there:,}, and {first:,} are done or skipped")
        return first, last

    def write(self) -> CalibrationReport:
        sums = ColumnSums(self.engine.model, output=self.options.process_output)
        step = None if self.options.progress is None else self._step
        self.engine.run(self.texts.ids[self.first : self.last], sums, step)
        shapes = {name: self.engine.provider.shape(name) for name in self.engine.provider}
        titles = () if self.begun is not None else self.titles
        made = ImportanceMatrix(sums.entries(), titles, self.last - self.first, self.options.context)
        for name, entry in made.entries.items():
            if not np.isfinite(entry.sums).all():
                raise FormatError("the sum of squares isn't finite", path=name)
        parts = [*self.earlier, *([self.begun] if self.begun is not None else []), made]
        whole = matrices.merge(parts) if len(parts) > 1 else made
        write_file(self.dst, matrices.encode(whole, self.form), overwrite=self.options.overwrite or self.options.resume)
        return CalibrationReport(**self._facts(), entries=len(whole.entries), unseen=dict(sums.unseen()),
                             missing=sums.missing(shapes), total_chunks=whole.chunks)  # fmt: skip

    def _step(self, done: int, total: int) -> None:
        assert self.options.progress is not None
        self.options.progress(done, total, "running")


def _form(dst: Path) -> Literal["gguf", "legacy"]:
    form = _SUFFIXES.get(dst.suffix.lower())
    if form is None:
        raise UsageError(f"{dst.name}: an importance matrix is a .gguf or a .dat", hint=f"{dst.name}.gguf")
    return form


def _read(path: str) -> ImportanceMatrix:
    with open_source(resolve_path(path)) as source:
        return matrices.read(source)
