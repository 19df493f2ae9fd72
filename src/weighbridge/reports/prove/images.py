"""Runs the towers of two forms of a model on an image and a sound, and compares the embeddings."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.base.words import plural
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.values import KV
from weighbridge.io.location import RemotePath
from weighbridge.io.sink.files import spooled
from weighbridge.models.llamacpp.pair import projected_widths
from weighbridge.models.llamacpp.towers import candidate_of, is_mmproj
from weighbridge.reports.prove import predictions
from weighbridge.reports.prove.model import ProveCheck
from weighbridge.reports.prove.towers import deviations

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weighbridge.adapters.runtimes.process import RuntimeProcess
    from weighbridge.models.model import OpenModel
    from weighbridge.reports.prove.bounds import RunBounds

    Media = NDArray[np.uint8] | NDArray[np.float32]

_SIDES: Final = (448, 896)  # of the image, in pixels, if the two differ at that of `clip.vision.image_size`
_LARGEST: Final = 2048
_WIDEST: Final = 1 << 17  # an embedding
_SIZE: Final = "clip.vision.image_size"
_HEARS: Final = "clip.has_audio_encoder"
_BREAK: Final = "v.token_embd.img_break"
#: Lengths of the sound. The first is almost the 30 seconds to which Whisper's towers pad a shorter one: transformers
#: masks the padding, llama.cpp doesn't. Other towers may compute equally many embeddings only of the second.
_SECONDS: Final = (29.985, 5.0)


def checks(a: OpenModel, b: OpenModel, bounds: RunBounds) -> Iterator[ProveCheck]:
    """Yields a check for each sense of the towers."""
    mmproj = a if is_mmproj(a) else b
    media: dict[str, list[Media]] = {}
    if (side := mmproj.metadata.get(_SIZE)) is not None:
        first = (side,) if isinstance(side, int) and 0 < side <= _LARGEST else ()
        media["image"] = [_picture(side) for side in (*first, *_SIDES)]
    if mmproj.metadata.get(_HEARS):
        media["sound"] = [_sound(length) for length in _SECONDS]
    if not media:
        yield ProveCheck("run", "not-checked", f"{mmproj.place.path} states neither the size of its images nor a sound")
    width = next((width.size for width in projected_widths(candidate_of(mmproj))), 0)
    unknown = "" if 0 < width <= _WIDEST else f"{mmproj.place.path} states no width of its embeddings"
    if reason := unknown or _obstacle(a) or _obstacle(b):
        yield from (ProveCheck(name, "not-checked", reason) for name in media)
        return
    with ExitStack() as stack:
        text = stack.enter_context(spooled(io.BytesIO(language_model(width)), "text.gguf"))
        runtimes = [stack.enter_context(_runtime(model, text)) for model in (a, b)]
        for name, versions in media.items():
            try:
                yield _check(name, versions, list(zip((a, b), runtimes, strict=True)), bounds)
            except UnsupportedError as error:
                yield ProveCheck(name, "not-checked", error.message)


def _check(
    name: str, versions: Sequence[Media], models: Sequence[tuple[OpenModel, RuntimeProcess]], bounds: RunBounds
) -> ProveCheck:
    """Compares the embeddings of the first version for which both programs compute equally many."""
    counts = (0, 0)
    for version in versions:
        with spooled(io.BytesIO(_saved(version)), "media.npy") as path:
            x, y = (_embeddings(model, runtime, path) for model, runtime in models)
        if x.shape == y.shape:
            return _compared(name, x, y, bounds, deviations(*(model for model, _ in models)))
        counts = len(x), len(y)
    return ProveCheck(name, "not-checked", f"the two compute {counts[0]} and {counts[1]} embeddings")


def _compared(
    name: str, x: NDArray[np.float32], y: NDArray[np.float32], bounds: RunBounds, known: Sequence[str]
) -> ProveCheck:
    distance = predictions.cosine_distance(x.ravel(), y.ravel())
    message = f"1 - cosine {distance:.2g} (up to {bounds.cosine:.2g}) on {plural(len(x), 'embedding')}"
    measures, limits = {"cosine_distance": distance}, {"cosine_distance": bounds.cosine}
    if distance <= bounds.cosine:
        return ProveCheck(name, "same", message, (), measures, limits)
    return ProveCheck(name, "different", message, tuple(known), measures, limits)


def _obstacle(model: OpenModel) -> str:
    from weighbridge.adapters.runtimes.process import missing

    if absent := missing(_runtime_name(model)):
        return f'{", ".join(absent)} isn\'t installed: pip install "weighbridge[prove]"'
    on_hub = isinstance(_path(model), RemotePath)
    return f"{model.place.path} isn't on this machine: wb fetch it first" if on_hub else ""


def _runtime_name(model: OpenModel) -> str:
    return "mtmd" if is_mmproj(model) else "transformers' towers"


def _path(model: OpenModel) -> Path | RemotePath:
    return model.place.weights[0] if is_mmproj(model) else model.place.folder


@contextmanager
def _runtime(model: OpenModel, text: Path) -> Iterator[RuntimeProcess]:
    from weighbridge.adapters.runtimes.process import RuntimeProcess

    settings = {"text": str(text)} if is_mmproj(model) else {}
    with RuntimeProcess(_runtime_name(model), _path(model), settings) as runtime:
        yield runtime


def _embeddings(model: OpenModel, runtime: RuntimeProcess, image: Path) -> NDArray[np.float32]:
    """[tokens, width]; without the embedding that llama.cpp puts between the rows of Pixtral's images."""
    import numpy as np

    from weighbridge.tensors.nodes import QuantizedTensor

    found = runtime.media(image)
    if not is_mmproj(model) or (row := model.logical.get(_BREAK)) is None or isinstance(row, QuantizedTensor):
        return found
    separator = np.frombuffer(row.read_all(), np.float32)
    return found[~np.isclose(found, separator).all(axis=1)]


def _picture(side: int) -> NDArray[np.uint8]:
    """Waves longer than a patch, since the two programs resize differently: [side, side, 3]."""
    import numpy as np

    x, y = np.meshgrid(*[np.linspace(0, 1, side)] * 2)
    waves = [np.cos(np.pi * (n * x + (4 - n) * y + n / 3)) + np.sin(np.pi * n * x * y) for n in (1, 2, 3)]
    return np.asarray(np.stack(waves, axis=-1) * 60 + 127, np.uint8)


def _sound(length: float) -> NDArray[np.float32]:
    """A rising tone in noise, since the two programs' logarithms differ for bands that are silent: [samples]."""
    import numpy as np

    from weighbridge.adapters.runtimes.process import SAMPLING_RATE

    seconds = np.arange(round(length * SAMPLING_RATE)) / SAMPLING_RATE
    tone = np.sin(2 * np.pi * 220 * seconds * (1 + 5 * seconds / length))
    return np.asarray(tone / 2 + np.random.default_rng(0).uniform(-0.3, 0.3, len(seconds)), np.float32)


def _saved(array: Media) -> bytes:
    import numpy as np

    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def language_model(width: int) -> bytes:
    """The smallest GGUF of a language model with embeddings of this width: mtmd takes the towers of no other."""
    heads, tokens, inner = 32, 4, 32
    keys = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 512,
        "llama.embedding_length": width, "llama.feed_forward_length": inner, "llama.attention.head_count": 1,
        "llama.attention.key_length": heads, "llama.attention.value_length": heads,
        "llama.rope.dimension_count": heads, "llama.attention.layer_norm_rms_epsilon": KV("f32", 1e-5),
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": KV("arr[str]", [f"t{n}" for n in range(tokens)]),
        "tokenizer.ggml.token_type": KV("arr[i32]", [1] * tokens), "tokenizer.ggml.merges": KV("arr[str]", ["t 0"]),
    }  # fmt: skip
    block: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("attn_q", "attn_k", "attn_v"), (heads, width)), "attn_output": (width, heads),
        **dict.fromkeys(("ffn_gate", "ffn_up"), (inner, width)), "ffn_down": (width, inner),
        **dict.fromkeys(("attn_norm", "ffn_norm"), (width,)),
    }  # fmt: skip
    shapes = {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    shapes |= {"token_embd.weight": (tokens, width), "output_norm.weight": (width,)}
    made = gguf.layout([(name, Spec(shape, BY_NAME["F32"])) for name, shape in shapes.items()], keys)
    return b"".join(piece for _, piece in made.pieces).ljust(made.size, b"\0")
