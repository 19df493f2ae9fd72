"""Runs the towers of a model folder on an image, in transformers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes.transformers import TransformersRuntime
from weighbridge.base.errors import UnsupportedError


class TransformersTowers(TransformersRuntime):
    """One loaded folder, with its image processor."""

    def media(self, path: str) -> NDArray[np.float32]:
        """The embeddings that the language model reads in the place of an image ([height, width, 3], uint8) in an .npy
        file: [tokens, width]. Those for deeper layers (DeepStack) follow in the same rows, as in llama.cpp."""
        import torch
        import transformers

        image = np.load(path)
        if image.ndim == 1:
            raise UnsupportedError("transformers isn't run on a sound")
        prepared = transformers.AutoImageProcessor.from_pretrained(self._path, local_files_only=True)(
            images=image, return_tensors="pt"
        )
        whole = self._model
        see = getattr(whole, "get_image_features", None) or getattr(whole.model, "get_image_features", None)
        if see is None:
            raise UnsupportedError("the class gives no features of an image")
        known = inspect.signature(see).parameters
        with torch.no_grad():
            found = see(**{key: value for key, value in prepared.items() if key in known})
            features = getattr(found, "pooler_output", None)
            if features is None:  # Llama 4's class projects later
                features = whole.multi_modal_projector(found.last_hidden_state)
        parts = [features, *(getattr(found, "deepstack_features", None) or ())]
        return np.concatenate([_rows(part) for part in parts], axis=1)


def _rows(features: Any) -> NDArray[np.float32]:
    images = features if isinstance(features, list | tuple) else [features]
    return np.concatenate([np.asarray(image.float().reshape(-1, image.shape[-1]).numpy()) for image in images])
