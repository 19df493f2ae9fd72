"""Plans of whisper.cpp's files, and of Hugging Face folders made from them.

The files equal those of whisper.cpp's convert-pt-to-ggml.py and quantize, with three exceptions. A quantized file has
its convolutions in F16, without which whisper.cpp doesn't load it. Vectors keep F32, while convert-h5-to-ggml.py rounds
them to F16 first. The special token <|endoftext|> is never stored.
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.dtypes import BY_NAME, F16, F32, DType, Kind
from weighbridge.base.errors import UsageError
from weighbridge.containers.ggml import whisper
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import HfOptions, TorchFolderOptions, WhisperOptions
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.result import Loss
from weighbridge.models.model import OpenModel
from weighbridge.models.whisper import config as configs
from weighbridge.models.whisper import mel, source, tokens
from weighbridge.models.whisper.forms import WhisperForm, form_of
from weighbridge.models.whisper.names import PREFIX
from weighbridge.models.whisper.source import WhisperModel

# transformers' English spellings, for word error rates
_NORMALIZER: Final = "normalizer.json"
_TOKENIZER_LOSS: Final = (
    "left out: the tokenizer; {rows:,} tokens aren't those of a Whisper with {count:,} byte strings"
)


def whisper_form(model: OpenModel) -> WhisperForm:
    """The form of a Whisper. Raises UsageError for another model."""
    form = form_of(model)
    if form is None:
        raise UsageError(
            f"{model.place.path} isn't a Whisper, and only those are written as whisper.cpp files",
            hint="the target NAME.gguf is for llama.cpp",
        )
    return form


def to_ggml(model: OpenModel, options: WhisperOptions) -> PlanBuilder:
    """Plans a whisper.cpp file. Raises UsageError for a type that it can't have."""
    read = source.read(model, whisper_form(model))
    matrices = _matrix_type(read, options)
    losses = [Loss(text) for text in read.losses]
    draft = PlanBuilder({}, losses=losses, notes=list(read.notes), used_values=frozenset({source.DIMS}))
    if matrices is F32:
        draft.notes.append("whisper.cpp computes convolutions of F16 only: a file of F32 is a source for quantizing")
    for name, node in read.tensors.items():
        dtype = whisper.stored_type(name, len(node.spec.shape), matrices)
        columns = node.spec.shape[-1]
        if dtype.kind is Kind.BLOCK and columns % dtype.block:
            raise UsageError(
                f"rows of {columns} aren't a multiple of {dtype.block}; all matrices of the file must have one type",
                hint="choose a type with blocks of 32: q4_0 q4_1 q5_0 q5_1 q8_0",
            )
        draft.tensors[name] = cast_to(name, node, dtype, draft)
    ftype = whisper.FTYPES[matrices.name] + (whisper.QUANTIZED if matrices.kind is Kind.BLOCK else 0)
    draft.metadata = {
        "sizes": {**read.sizes, "ftype": ftype}, "filters": read.filters, "tokens": read.tokens or [],
        "file": file_name(model, matrices),
    }  # fmt: skip
    if tokens.languages(read.sizes["n_vocab"], len(read.tokens or [])) is None:
        rows = read.sizes["n_vocab"]
        draft.notes.append(f"{rows:,} isn't the size of Whisper's vocabulary: whisper.cpp guesses its special tokens")
    if read.form is WhisperForm.HF and model.place.read(_NORMALIZER) is not None:
        draft.losses.append(Loss(f"left out: {_NORMALIZER}, which only evaluations use"))
    return draft


def _matrix_type(read: WhisperModel, options: WhisperOptions) -> DType:
    """The type of the matrices: the requested one; that of a whisper.cpp file; otherwise F16."""
    if options.dtype in (None, "auto"):
        stored = read.tensors["decoder.token_embedding.weight"].spec.dtype
        return stored if read.form is WhisperForm.GGML and stored.name in whisper.FTYPES else F16
    chosen = BY_NAME[str(options.dtype)]
    if chosen.name not in whisper.FTYPES:
        names = ", ".join(name.lower() for name in whisper.FTYPES)
        raise UsageError(f"whisper.cpp's files don't have the type {chosen}", hint=f"--dtype {names}")
    return chosen


def file_name(model: OpenModel, matrices: DType) -> str:
    """The name of a file in a folder, after whisper.cpp's: ggml-base.en.bin, ggml-base.en-q5_0.bin."""
    path = model.place.path
    name = (path.name if path.is_dir() else path.stem).removeprefix("ggml-").removeprefix("whisper-") or "model"
    suffix = f"-{matrices.name.lower()}" if matrices.kind is Kind.BLOCK else ""
    return f"ggml-{name.removesuffix(suffix)}{suffix}.bin"


def to_hf(model: OpenModel, options: HfOptions | TorchFolderOptions, form: WhisperForm) -> PlanBuilder:
    """Plans a transformers folder from a whisper.cpp file or OpenAI's checkpoint."""
    from weighbridge.tensors.nodes import reshape

    read = source.read(model, form, tokenizer=False)
    named = {PREFIX + read.names[name].hf: reshape(node, read.names[name].plain_shape)
             for name, node in read.tensors.items()}  # fmt: skip
    losses = [Loss(text) for text in read.losses]
    draft = PlanBuilder({}, {"format": "pt"}, losses=losses, used_values=frozenset({source.DIMS}))
    narrow = probe.narrowest(named) if options.dtype is None else {}
    for name, node in named.items():
        dtype = dtype_policy.plain_dtype(options.dtype, node.spec)
        if dtype.kind is Kind.BLOCK:
            dtype = F16
            draft.losses.append(Loss(f"decoded from {node.spec.dtype} to {dtype}", name))
        draft.tensors[name] = cast_to(name, node, narrow.get(name, dtype), draft)
    _add_files(read, draft, options.tokenizer)
    return draft


def _add_files(read: WhisperModel, draft: PlanBuilder, tokenizer: bool) -> None:
    """Adds config, preprocessor and tokenizer, and a loss for each setting that the source lacks."""
    rows, strings = read.sizes["n_vocab"], read.tokens
    special = {} if strings is None else tokens.special_tokens(rows, len(strings))
    types: dict[str | None, int] = {}
    for node in draft.tensors.values():
        types[node.spec.dtype.torch] = types.get(node.spec.dtype.torch, 0) + node.spec.elements
    space = strings.index(b" ") if strings is not None and b" " in strings else None
    draft.texts |= configs.folder_files(read.sizes, special, space, max(types, key=lambda name: types[name]))
    if read.filters != mel.filters(read.sizes["n_mels"]):
        draft.losses.append(Loss("left out: the mel filters; transformers computes its own", effect="results"))
    unheld = ", ".join(name for name in configs.GENERATION if name != "begin_suppress_tokens" or not special)
    draft.losses.append(Loss(f"the source has no {unheld}: the folder has none of them"))
    if not tokenizer:
        draft.losses.append(Loss("left out, as asked: the tokenizer"))
    elif strings is None:
        draft.losses.append(Loss("the source has no vocabulary, so the folder has no tokenizer"))
    elif (files := tokens.tokenizer_files(strings, rows)) is None:
        draft.losses.append(Loss(_TOKENIZER_LOSS.format(rows=rows, count=len(strings))))
    else:
        draft.texts |= files
