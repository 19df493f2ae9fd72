"""A model that can be run."""

from __future__ import annotations

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UnsupportedError
from weighbridge.forward.graph import Graph, graph_of
from weighbridge.models.model import OpenModel
from weighbridge.models.wrapped import unwrapped
from weighbridge.providers.base import ProviderOptions
from weighbridge.providers.files import FileProvider


class ComputedModel(Closing):
    """A model and its graph. Raises UnsupportedError for a family whose graph isn't computed."""

    def __init__(self, model: OpenModel) -> None:
        self.provider = FileProvider(model, options=ProviderOptions(cache=0))
        self.graph = _graph(self.provider)

    @property
    def model(self) -> OpenModel:
        return self.provider.model

    @property
    def vocab(self) -> int:
        """The number of logits of a position."""
        return int(self.graph.shapes[self.graph.head][0])

    def close(self) -> None:
        """Closes the model's files."""
        self.provider.close()


def _graph(provider: FileProvider) -> Graph:
    model = provider.model
    if not model.described and model.format != "gguf":
        raise UnsupportedError(f"{model.place.title} has no config.json", hint="--config FILE")
    towers = unwrapped(model)[0].resolved.report.apart  # a text passes through the language model only
    shapes = {name: provider.shape(name) for name in provider if name not in towers}
    return graph_of(model.family.name, provider.config, shapes, model.family.effective(model.config))
