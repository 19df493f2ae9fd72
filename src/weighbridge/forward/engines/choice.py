"""Chooses the engine that runs a model over a text."""

from __future__ import annotations

from typing import Protocol

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UncomputedError
from weighbridge.forward.computed import ComputedModel
from weighbridge.forward.layers import Observer
from weighbridge.forward.options import ImatrixOptions
from weighbridge.forward.run import ForwardPass, Ids, Progress
from weighbridge.models.model import OpenModel
from weighbridge.models.open import open_model
from weighbridge.providers.files import FileProvider


class Engine(Protocol):
    """Runs a model. `layers`: those that compute the next token. `provider`: its tensors."""

    provider: FileProvider

    @property
    def model(self) -> OpenModel: ...

    @property
    def layers(self) -> int: ...

    def run(self, ids: Ids, observer: Observer, progress: Progress | None) -> None:
        """Runs texts [texts, tokens]."""

    def close(self) -> None: ...


class _Forward(ComputedModel):
    """Runs the families whose graph is computed. `output`: run the output matrix, too."""

    output = False

    @property
    def layers(self) -> int:
        return self.graph.layers

    def run(self, ids: Ids, observer: Observer, progress: Progress | None) -> None:
        """See `Engine`."""
        ForwardPass(self.provider, self.graph, observer).observe(ids, progress, output=self.output)


def opened_engine(src: str, options: ImatrixOptions) -> Engine:
    """The engine that the options name, with an open model. Raises UncomputedError for a family without a graph."""
    model = open_model(resolve_path(src), options)
    try:
        if options.engine == "transformers":
            from weighbridge.forward.engines.transformers import TransformersEngine

            return TransformersEngine(model)
        try:
            forward = _Forward(model)
        except UncomputedError as error:
            hint = "--engine transformers runs it with torch" + (f"; {error.hint}" if error.hint else "")
            raise UncomputedError(error.message, hint=hint) from None
        forward.output = options.process_output
        return forward
    except BaseException:
        model.close()
        raise
