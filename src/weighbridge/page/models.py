"""The open models of a page. Its endpoints look up files and tensors by number, tokenizers and surveys."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.containers.base import Index, Region
from weighbridge.containers.formats import DISTRIBUTED, DISTRIBUTED_DATA, IMATRIX_DAT
from weighbridge.containers.ggml.imatrix import recognised
from weighbridge.io.location import path_text
from weighbridge.io.source import Source
from weighbridge.models.archives import resolve
from weighbridge.models.borrowed_config import with_given_config
from weighbridge.models.model import OpenModel, SourceOptions
from weighbridge.models.open import open_model
from weighbridge.models.tokenizer import Vocab
from weighbridge.models.tokenizer.of_model import vocab_of
from weighbridge.page.views.file_view import FileView
from weighbridge.page.views.layout import LayoutMap, data_regions, layout_map, map_of
from weighbridge.reports.survey import Survey, survey

if TYPE_CHECKING:
    from weighbridge.page.several.shared_weights import WeightPairs

_IMATRIX_FORMATS: Final = frozenset({"gguf", IMATRIX_DAT})


class PageModels(Closing):
    """The open models of a page. A damaged model is opened as far as its headers can be read; `damage` has the error.
    `measured`: the paths of saved measurements.

    Raises the errors of `open_model` if nothing of a model can be read."""

    def __init__(
        self, *paths: str | os.PathLike[str], options: SourceOptions = SourceOptions(), measured: Sequence[str] = ()
    ) -> None:
        self.read_here = True  # whether the page's reader is at this machine, whose memory it may show
        self.paths: tuple[str, ...] = tuple(path_text(path) for path in paths)
        self.measured = tuple(measured)
        self.models: list[OpenModel] = []
        self.damage: list[FormatError | None] = []
        self._file_views: dict[tuple[int, int], FileView] = {}
        self._vocabs: dict[int, Vocab] = {}
        self._surveys: dict[int, Survey] = {}
        self._weight_pairs: dict[tuple[int, int], WeightPairs] = {}
        self._lock = threading.RLock()  # without threads, an answer is computed while it is held
        try:
            for number, path in enumerate(paths):
                damage, step = None, None if number else options.step
                try:
                    model = open_model(path, replace(options, step=step, config=None))
                except FormatError as error:
                    from weighbridge.reports.inspect.damaged import open_damaged  # late: few files are damaged

                    damage, model = error, open_damaged(resolve(path), error, step)
                self.models.append(model)
                self.damage.append(damage)
            self.models = with_given_config(self.models, options.config)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for opened in (*self._file_views.values(), *self.models):
            opened.close()

    @property
    def title(self) -> str:
        """The names of the models."""
        names = [Path(path).name or path for path in self.paths]
        return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

    def is_imatrix(self, model: int) -> bool:
        """Whether a model is an importance matrix, in either format."""
        opened = self.models[model]
        return opened.format in _IMATRIX_FORMATS and recognised(opened.index.files[0])

    def survey(self, model: int) -> Survey:
        """Returns the survey of a model, which several answers share."""
        if model not in self._surveys:
            self._surveys[model] = survey(self.models[model])
        return self._surveys[model]

    def source(self, model: int, file: int) -> Source:
        """Returns a file of a model by its number. Raises UsageError if there is none."""
        files = self.models[model].index.files
        if file >= len(files):
            raise UsageError(f"unknown file {file}")
        return files[file]

    def tensor(self, model: int, tensor: int) -> str:
        """Returns the name of a stored tensor by its number. Raises UsageError if there is none."""
        entries = self.models[model].index.entries
        if tensor >= len(entries):
            raise UsageError(f"unknown tensor {tensor}")
        return entries[tensor].name

    def shared_weights(self, a: int, b: int) -> WeightPairs:
        """Returns the tensors that two models have in common, of the last two models only."""
        from weighbridge.page.several.shared_weights import WeightPairs

        with self._lock:
            if (a, b) not in self._weight_pairs:
                self._weight_pairs = {(a, b): WeightPairs(self.models[a], self.models[b])}
            return self._weight_pairs[a, b]

    def vocab(self, model: int) -> Vocab:
        """Returns the tokenizer of a model, which is read once. Raises the errors of `vocab_of`."""
        with self._lock:
            if model not in self._vocabs:
                self._vocabs[model] = vocab_of(self.models[model])
            return self._vocabs[model]

    def layout(self, model: int, file: int) -> LayoutMap:
        """Returns the map of a file. Raises the errors of `source` and `layout_map`."""
        source = self.source(model, file)
        if (regions := self._data_regions(model, file)) is not None:
            return map_of(source.name, DISTRIBUTED_DATA, source.size, regions)
        return layout_map(source.name, self._single_file_index(model))

    def file_view(self, model: int, file: int) -> FileView:
        """Returns the view of a file, which finds its regions once. Raises the errors of `source`."""
        path = self.source(model, file).name
        with self._lock:
            if (model, file) not in self._file_views:
                regions = self._data_regions(model, file)
                self._file_views[model, file] = FileView(path, self._single_file_index(model), regions)
            return self._file_views[model, file]

    def _data_regions(self, model: int, file: int) -> list[Region] | None:
        """Returns the regions of a data file of a distributed checkpoint, whose `.metadata` lists the tensors; None for
        another file."""
        index = self.models[model].index
        if index.format != DISTRIBUTED or file == 0:
            return None
        return data_regions([entry for entry in index.entries if entry.file == file], index.files[file].size)

    def _single_file_index(self, model: int) -> Index | None:
        """Returns the index of an undamaged model in one file."""
        index = self.models[model].index
        return index if len(index.files) == 1 and not self.damage[model] else None
