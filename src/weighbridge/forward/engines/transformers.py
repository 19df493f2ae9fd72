"""Runs a model by transformers, for families whose graph isn't computed here, and as the judge of those that are."""

from __future__ import annotations

from typing import Final

from weighbridge.adapters.remote.extra import package
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UsageError
from weighbridge.forward.column_sums import JOINT, OF_KEYS, OF_VALUES, stored_matrices
from weighbridge.forward.layers import Observer
from weighbridge.forward.ops import Floats
from weighbridge.forward.run import Ids, Progress
from weighbridge.models.model import OpenModel
from weighbridge.providers.base import ProviderOptions
from weighbridge.providers.config import config_of
from weighbridge.providers.files import FileProvider
from weighbridge.tensors.nodes import QuantizedTensor

#: The names of parameters: those of a folder, and of classes that fuse experts in memory.
_DIALECTS: Final = ("hf", "hf5")
#: In the names of matrices of latent attention, whose inputs are those of a head.
_OF_LATENTS: Final = (JOINT, OF_KEYS, OF_VALUES)
Place = tuple[str, int | None]


class TransformersEngine(Closing):
    """A model folder, run by transformers. Raises UnsupportedError without torch and transformers, UsageError for a
    model that transformers doesn't load as it is."""

    def __init__(self, model: OpenModel) -> None:
        for name in ("torch", "transformers"):
            package(name, "--engine transformers", "transformers")
        if model.resolved.dialect != "hf" or not model.place.folder.is_dir():
            raise UsageError(f"--engine transformers reads a model folder, not {model.place.title}",
                             hint=f"wb convert {model.place.title} ./folder/ --to hf")  # fmt: skip
        packed = next((name for name, one in model.logical.items() if isinstance(one, QuantizedTensor)), None)
        if packed is not None:
            raise UsageError(f"--engine transformers reads plain weights, and {packed} is packed",
                             hint=f"wb convert {model.place.title} ./folder/ --to hf --dtype bf16")  # fmt: skip
        self.model, self.layers = model, config_of(model).layers
        self.provider = FileProvider(model, options=ProviderOptions(cache=0))
        self._places: dict[Place, dict[Place, None]] = {}
        for dialect in _DIALECTS:
            if dialect in model.family.dialects:
                for place, stored in stored_matrices(model, dialect, model.resolved.prefix).items():
                    number = stored.number if stored.stacked > 1 else None
                    self._places.setdefault((stored.name, number), {})[place] = None

    def run(self, ids: Ids, observer: Observer, progress: Progress | None) -> None:
        """Runs texts [texts, tokens]."""
        from weighbridge.adapters.runtimes.transformers_inputs import LatentInputs, TransformersInputs

        def observe(name: str, number: int | None, x: Floats) -> None:
            found = self._places.get((name, number), ())
            places = [place for place in found if not any(part in place[0] for part in _OF_LATENTS)]
            if places:
                observer([place[0] for place in places], x, places[0][1])

        def observe_latent(name: str, inputs: LatentInputs) -> None:
            for head, (queries, latents) in enumerate(zip(*inputs, strict=True)):
                for place, _ in self._places.get((name, head), ()):
                    observer([place], queries if OF_KEYS in place else latents, head)

        runtime = TransformersInputs(str(self.model.place.folder))
        for number, text in enumerate(ids, 1):
            runtime.run(text, observe, observe_latent)
            if progress is not None:
                progress(number, len(ids))

    def close(self) -> None:
        """Closes the model's files."""
        self.provider.close()
