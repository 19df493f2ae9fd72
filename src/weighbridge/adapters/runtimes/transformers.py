"""A model folder as transformers runs it: F32, eager attention, no code from the folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.words import plural

# sentence-transformers' pooling: the flag in 1_Pooling/config.json, and the function over [tokens, hidden].
_POOLINGS = {
    "pooling_mode_cls_token": lambda states: states[0],
    "pooling_mode_lasttoken": lambda states: states[-1],
    "pooling_mode_mean_tokens": lambda states: states.mean(0),
}

# transformers 5 takes this class for some models whatever theirs is; without a tokenizer.json it leaves out the space
# that SentencePiece puts before a text.
_GENERIC = "TokenizersBackend"


class FolderTokenizer:
    """The tokenizer of the folder at `_path`, as transformers loads it; mlx-lm loads it so too."""

    _path: str

    @cached_property
    def _tokenizer(self) -> Any:
        import transformers

        found = transformers.AutoTokenizer.from_pretrained(self._path, local_files_only=True)
        named = getattr(transformers, str(self._settings.get("tokenizer_class")), None)
        if type(found).__name__ != _GENERIC or named is None or (Path(self._path) / "tokenizer.json").is_file():
            return found
        return named.from_pretrained(self._path, local_files_only=True)

    @property
    def _settings(self) -> dict[str, Any]:
        path = Path(self._path) / "tokenizer_config.json"
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def tokenize(self, text: str) -> list[int]:
        """The ids of a text, with special tokens around and inside it."""
        return list(self._tokenizer(text).input_ids)


class TransformersRuntime(FolderTokenizer):
    """One loaded folder. `settings`: of its config, which the class would overrule. UnsupportedError for a class that
    transformers doesn't have, and if the folder lacks some of its weights."""

    def __init__(self, path: str, settings: Mapping[str, Any] = MappingProxyType({})) -> None:
        import torch
        import transformers

        self._path = path
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        cls, config = self._class_of(config)
        how = {"dtype": torch.float32, "attn_implementation": "eager", "local_files_only": True}
        how |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        self._model, loading = cls.from_pretrained(path, config=config, **how)
        self._model.eval()
        if other := sorted(str(key[0] if isinstance(key, tuple) else key) for key in loading["mismatched_keys"]):
            count = plural(len(other), "tensor")
            raise UnsupportedError(f"{cls.__name__} of transformers has {count} of another shape, first {other[0]}")
        # Random numbers now; no answer reads the pooler of a class without a head.
        if absent := sorted(key for key in loading["missing_keys"] if not key.startswith("pooler.")):
            count = plural(len(absent), "tensor")
            raise UnsupportedError(f"{cls.__name__} of transformers has {count} that the folder lacks: {absent[0]}")
        for key, value in settings.items():  # not sooner: the class would load other weights
            setattr(self._model.config, key, value)
        self._pair = bool(config.is_encoder_decoder)

    def _class_of(self, config: Any) -> tuple[type[Any], Any]:
        """Returns the class to load, and its config."""
        import transformers

        name = (config.architectures or [""])[0]
        if (cls := getattr(transformers, name, None)) is None:
            raise UnsupportedError(f"transformers has no class {name or 'for it: config.json names none'}")
        return cls, config

    def logits(self, ids: Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
        """After every position: [ids, vocabulary]; of an encoder with a decoder, after those of `answer`."""
        found = self._run(ids, answer)
        if getattr(found, "logits", None) is None or found.logits.ndim != 3:
            raise UnsupportedError("the class gives no logits")
        out: NDArray[np.float32] = found.logits[0].float().numpy()
        return out

    def embedding(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Returns the pooled embedding, [hidden], or a classifier's scores, [labels]."""
        found = self._run(ids, ())
        if getattr(found, "logits", None) is not None:
            return np.asarray(found.logits[0].float().numpy()).reshape(-1)
        # Pools as sentence-transformers does; by the mean if the folder doesn't configure it.
        file = Path(self._path) / "1_Pooling" / "config.json"
        modes = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        mode = next((m for m in _POOLINGS if modes.get(m)), "pooling_mode_mean_tokens")
        return np.asarray(_POOLINGS[mode](found.last_hidden_state[0].float().numpy()))

    def _run(self, ids: Sequence[int], answer: Sequence[int]) -> Any:
        import torch

        more = {"decoder_input_ids": torch.tensor([list(answer)])} if self._pair else {}
        with torch.no_grad():
            return self._model(torch.tensor([list(ids)]), **more)
