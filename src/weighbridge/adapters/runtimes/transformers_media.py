"""Runs the towers of a model folder on an image or a sound, in transformers."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.runtimes.process import SAMPLING_RATE
from weighbridge.adapters.runtimes.transformers import TransformersRuntime
from weighbridge.base.errors import UnsupportedError

#: The mask of a sound's frames, as feature extractors and classes call it.
_MASKS: Final = ("attention_mask", "input_features_mask", "feature_attention_mask")


class TransformersTowers(TransformersRuntime):
    """One loaded folder, with its image processor and its feature extractor."""

    def media(self, path: str) -> NDArray[np.float32]:
        """The embeddings that the language model reads in the place of an image ([height, width, 3], uint8) or a sound
        ([samples], float32) in an .npy file: [tokens, width]. Those for deeper layers (DeepStack) follow in the same
        rows, as in llama.cpp."""
        import torch

        medium = np.load(path)
        with torch.no_grad():
            parts = self._heard(medium) if medium.ndim == 1 else self._seen(medium)
            return np.concatenate([_rows(part) for part in parts], axis=1)

    def _class_of(self, config: Any) -> tuple[type[Any], Any]:
        """Returns those of the part that sees and hears, if others speak (Qwen-Omni)."""
        import transformers

        if (thinker := getattr(config, "thinker_config", None)) is None:
            return super()._class_of(config)
        name = type(thinker).__name__.removesuffix("Config") + "ForConditionalGeneration"
        return getattr(transformers, name), thinker

    def _seen(self, image: NDArray[np.uint8]) -> Iterable[Any]:
        import transformers

        processor = transformers.AutoImageProcessor.from_pretrained(self._path, local_files_only=True)
        if (see := self._part("get_image_features")) is None:
            raise UnsupportedError("the class gives no features of an image")
        prepared, known = processor(images=image, return_tensors="pt"), inspect.signature(see).parameters
        found = see(**{key: value for key, value in prepared.items() if key in known})
        features = getattr(found, "pooler_output", None)
        if features is None:  # Llama 4's class projects later
            features = self._model.multi_modal_projector(found.last_hidden_state)
        return [features, *(getattr(found, "deepstack_features", None) or ())]

    def _heard(self, sound: NDArray[np.float32]) -> Iterable[Any]:
        import transformers

        extractor = transformers.AutoFeatureExtractor.from_pretrained(self._path, local_files_only=True)
        if extractor.sampling_rate != SAMPLING_RATE:
            raise UnsupportedError(f"the feature extractor takes {extractor.sampling_rate} samples a second")
        how = {"sampling_rate": SAMPLING_RATE, "return_tensors": "pt", "return_attention_mask": True}
        taken = inspect.signature(extractor.__call__).parameters
        prepared = dict(extractor([sound], **{key: value for key, value in how.items() if key in taken}))
        if (hear := self._part("get_audio_features")) is None:
            tower, projector = self._part("audio_tower"), self._part("multi_modal_projector")
            if tower is None or projector is None:
                raise UnsupportedError("the class gives no features of a sound")
            return [projector(tower(prepared["input_features"]).last_hidden_state)]  # Qwen2-Audio
        known = inspect.signature(hear).parameters
        mask = next((prepared.pop(key) for key in _MASKS if key in prepared), None)
        arguments = {key: value for key, value in prepared.items() if key in known}
        arguments |= {key: mask for key in _MASKS if key in known and mask is not None}
        found = hear(**arguments)
        features = getattr(found, "pooler_output", None)
        return [found.last_hidden_state if features is None else features]

    def _part(self, name: str) -> Any:
        """Returns a method or module, of the base model if it has it: the whole class may hide parameters."""
        inner = getattr(self._model, "model", None)
        return getattr(inner, name, None) or getattr(self._model, name, None)


def _rows(features: Any) -> NDArray[np.float32]:
    media = features if isinstance(features, list | tuple) else [features]
    return np.concatenate([np.asarray(medium.float().reshape(-1, medium.shape[-1]).numpy()) for medium in media])
