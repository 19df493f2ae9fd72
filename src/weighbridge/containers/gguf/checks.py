"""Checks of a GGUF beyond its grammar: the places of the tensors (while parsing, from the directory), and for verify
(`check`) padding bytes, the types and lengths that llama.cpp requires, and the vocabulary's arrays.

llama.cpp (gguf.cpp) requires tensor data to be contiguous in directory order: each offset equals the sum of the padded
sizes before it. The specification requires aligned offsets only; so gaps, overlaps and other orders are distinguished
here, as warnings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.base.native import distinct_strings
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Index
from weighbridge.containers.gguf.read import GgufHeader, padded, walk
from weighbridge.containers.gguf.rules import Collector
from weighbridge.containers.gguf.values import KV, LazyArray, Metadata
from weighbridge.io.source import Source

_SIZE_MAX: Final = (1 << 64) - 1

# -- placement (parse) ---------------------------------------------------------------------------------------------


def placement(header: GgufHeader, notes: Collector) -> None:
    """Whether every tensor's data is inside the file, aligned, and where llama.cpp expects it."""
    if header.broken is not None:
        return
    for info in header.infos:
        if info.offset % header.alignment:
            detail = f"offset {info.offset}, alignment {header.alignment}"
            notes.note("gguf/offset-alignment", detail, offset=info.end - 8, tensor=info.name)
    if all(info.dtype for info in header.infos):  # else some sizes are unknown, and everything derived from them
        # Tensors that begin inside another, with its name, and those with unused space before them.
        order = sorted((info.offset, number) for number, info in enumerate(header.infos) if info.nbytes)
        overlaps: dict[int, str] = {}
        after_gap: set[int] = set()
        end, last = 0, ""
        for offset, number in order:
            if offset < end:
                overlaps[number] = last
            elif offset > padded(end, header.alignment):
                after_gap.add(number)
            if offset + header.infos[number].nbytes > end:
                end, last = offset + header.infos[number].nbytes, header.infos[number].name
        # Every breach of llama.cpp's rule gets exactly one name: overlap, gap or order.
        expected = total = 0
        for number, info in enumerate(header.infos):
            if number in overlaps:
                notes.note("gguf/overlap", f"with {overlaps[number][:80]!r}", offset=info.end - 8, tensor=info.name)
            elif info.offset != expected:
                rule = "gguf/gap" if number in after_gap else "gguf/order"
                notes.note(rule, f"offset {info.offset}, expected {expected}", offset=info.end - 8, tensor=info.name)
            expected = padded(info.offset + info.nbytes, header.alignment)
            total += padded(info.nbytes, header.alignment)
        if total > _SIZE_MAX:  # gguf.cpp's sum of padded sizes would wrap around
            notes.note("gguf/dims-overflow", f"all tensors together take {total} bytes")
        _extent(header, notes)


def _extent(header: GgufHeader, notes: Collector) -> None:
    """The end of the data against the end of the file."""
    size, start = header.source.size, header.data_start
    if not header.infos:
        if start > size:
            notes.note("gguf/header-padding", f"{start - size} bytes", offset=size)
        elif start < size:
            notes.note("gguf/trailing", f"{size - start} of them", offset=start)
        return
    if start > size:
        notes.fault("gguf/truncated-header", f"data would begin at {start}, the file has {size} bytes", offset=size)
        return
    ends = [start + info.offset + info.nbytes for info in header.infos]
    need, last = max(ends), padded(max(ends) - start, header.alignment) + start
    if need > size:
        missing = sum(end > size for end in ends)
        detail = (
            f"it has {size} of {need} bytes; data of the last {missing} of {plural(len(ends), 'tensor')} is missing"
        )
        notes.fault("gguf/truncated-data", detail, offset=size)
    elif last > size:
        notes.note("gguf/final-padding", f"{last - size} bytes are missing", offset=size)
    elif last < size:
        notes.note("gguf/trailing", f"{size - last} of them", offset=last)


# -- for verify (check) -------------------------------------------------------------------------------------------

# Keys that llama.cpp reads with exactly these types (llama-model-loader.cpp `GGUFMeta::GKV`), `{a}` = architecture.
_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "general.architecture": ("str",), "general.name": ("str",), "general.type": ("str",), "general.file_type": ("u32",),
    "tokenizer.ggml.model": ("str",), "tokenizer.ggml.pre": ("str",), "tokenizer.chat_template": ("str",),
    "tokenizer.ggml.add_bos_token": ("bool",), "tokenizer.ggml.add_eos_token": ("bool",),
    "tokenizer.ggml.add_space_prefix": ("bool",), "tokenizer.ggml.remove_extra_whitespaces": ("bool",),
    "tokenizer.ggml.token_type_count": ("u32",),
    **{f"tokenizer.ggml.{name}_token_id": ("u32",) for name in (
        "bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask",
    )},
    **{f"{{a}}.{name}": ("u32",) for name in (
        "vocab_size", "context_length", "embedding_length", "block_count", "expert_count", "leading_dense_block_count",
        "attention.key_length", "attention.value_length", "rope.dimension_count", "pooling_type",
        "rope.scaling.original_context_length",
    )},
    **{f"{{a}}.{name}": ("f32",) for name in (
        "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor",
        "expert_weights_scale", "attn_logit_softcapping", "final_logit_softcapping",
    )},
    **{f"{{a}}.{name}": ("bool",) for name in ("attention.causal", "use_parallel_residual", "expert_weights_norm")},
}  # fmt: skip
# Keys that may be one number or one for each layer (`get_key_or_arr(..., n_layer_all)`).
_PER_LAYER: Final = (
    "feed_forward_length", "attention.head_count", "attention.head_count_kv", "expert_feed_forward_length",
    "expert_used_count",
)  # fmt: skip
_MAPPED: Final = 32  # ggml-backend.cpp `TENSOR_ALIGNMENT`, of a mapped file
_LAYERS_MAX: Final = 512  # LLAMA_MAX_LAYERS
_LIST: Final = "tokenizer.ggml.tokens"
# Arrays parallel to the list of tokens, and the element types that llama.cpp accepts (llama-vocab.cpp `load`).
_PARALLEL: Final = {"tokenizer.ggml.scores": ("arr[f32]", "arr[i32]"), "tokenizer.ggml.token_type": ("arr[i32]",)}


def check(index: Index, *, deep: bool = False) -> tuple[Finding, ...]:
    """All findings on a parsed GGUF: those of the parser, the padding between tensors, keys and vocabulary. `deep`
    also checks every string array: duplicate tokens, bytes that aren't UTF-8, odd bools."""
    notes = Collector(index.files[0].name, strict=False)
    metadata = index.metadata
    if isinstance(metadata, Metadata):
        _check_keys(index, metadata, notes)
        if deep:
            for key in metadata:
                for array in _innermost(metadata.kv(key)):
                    if array.type == "bool" and any(byte > 1 for byte in array.raw):
                        notes.note("gguf/bool", f"in {key}", offset=array.offset)
                    for number, raw in enumerate(array.raw_strings()) if array.type == "str" else ():
                        try:
                            raw.decode()
                        except UnicodeDecodeError:
                            notes.note("gguf/utf8", f"element {number} of {key}", offset=array.offset)
            _check_duplicates(metadata.get(_LIST), notes)
    _starts(index, notes)
    for number in range(len(index.files)):
        _check_padding(index, number, notes)
    return (*index.findings, *notes.result())


def check_keys(index: Index) -> tuple[Finding, ...]:
    """The findings on a GGUF that need none of its data: the parser's, keys, and duplicate tokens."""
    notes = Collector(index.files[0].name, strict=False)
    metadata = index.metadata
    if isinstance(metadata, Metadata):
        _check_keys(index, metadata, notes)
        _check_duplicates(metadata.get(_LIST), notes)
    _starts(index, notes)
    return (*index.findings, *notes.result())


def _starts(index: Index, notes: Collector) -> None:
    for number, start in enumerate(index.data_start):
        if start % _MAPPED and any(e.nbytes and e.file == number for e in index.entries):
            notes.note("gguf/data-start", f"it begins at {start}", offset=start)


def _check_keys(index: Index, metadata: Metadata, notes: Collector) -> None:
    if not metadata.get("split.no"):  # shards after the first have none of the model's keys
        missing = "general.architecture" not in metadata and metadata.get("general.type") != "imatrix"
        if missing and _header(index.files[0]).broken is None:  # else it may be in the part that can't be read
            notes.note("gguf/no-architecture")
        if "general.quantization_version" not in metadata and any(e.dtype.block > 1 for e in index.entries):
            notes.note("gguf/no-quantization-version")
    prefix = f"{metadata.get('general.architecture')}."
    for key in metadata:
        types = _TYPES.get(key) or _TYPES.get(f"{{a}}.{key.removeprefix(prefix)}" if key.startswith(prefix) else "")
        if types and metadata.type(key) not in types:
            notes.note("gguf/key-type", f"{key} is {metadata.type(key)}, not {' or '.join(types)}")
    _check_layers(metadata, notes)
    for key in (_LIST, "tokenizer.ggml.merges"):
        if key in metadata and metadata.type(key) != "arr[str]":
            notes.note("gguf/vocab-type", f"{key} is {metadata.type(key)}, not arr[str]")
    tokens = metadata.get(_LIST)
    if not isinstance(tokens, LazyArray) or tokens.type != "str":
        return
    for key, types in _PARALLEL.items():
        if key not in metadata:
            continue
        if metadata.type(key) not in types:
            notes.note("gguf/vocab-type", f"{key} is {metadata.type(key)}, not {' or '.join(types)}")
        elif len(metadata[key]) != len(tokens):
            rule = "gguf/vocab-short" if len(metadata[key]) < len(tokens) else "gguf/vocab-long"
            notes.note(rule, f"{key} has {plural(len(metadata[key]), 'element')} for {plural(len(tokens), 'token')}")


def _check_layers(metadata: Metadata, notes: Collector) -> None:
    prefix = metadata.get("general.architecture")
    count = metadata.get(f"{prefix}.block_count")
    if not isinstance(count, int):
        return
    if not 1 <= count <= _LAYERS_MAX:
        notes.note("gguf/block-count", f"it is {count}")
    for suffix in _PER_LAYER:
        value = metadata.get(f"{prefix}.{suffix}")
        if isinstance(value, LazyArray) and len(value) != count:
            notes.note(
                "gguf/layer-array",
                f"{prefix}.{suffix} has {plural(len(value), 'element')} for {plural(count, 'layer')}",
            )


def _innermost(kv: KV) -> Iterable[LazyArray]:
    """The innermost arrays of a value."""
    if isinstance(kv.value, LazyArray):
        if kv.value.type.startswith("arr"):
            for part in kv.value:
                yield from _innermost(KV(f"arr[{part.type}]", part))
        else:
            yield kv.value


def _check_duplicates(tokens: object, notes: Collector) -> None:
    """Tokens that are equal to llama.cpp, which aborts on them: it cuts a token at its first NUL, and names an empty
    one by its number (llama-vocab.cpp)."""
    if not isinstance(tokens, LazyArray) or tokens.type != "str":
        return
    if distinct_strings(tokens.raw, len(tokens), tokens.width, tokens.order == ">"):
        return
    seen: Counter[bytes] = Counter()
    for number, raw in enumerate(tokens.raw_strings()):
        word = raw.split(b"\0", 1)[0] or b"[EMPTY_%d]" % number
        seen[word] += 1
        if seen[word] == 2:
            notes.note("gguf/token-duplicate", f"{word[:80]!r}, token {number}", offset=tokens.offset)


# -- padding -------------------------------------------------------------------------------------------------------


def _check_padding(index: Index, number: int, notes: Collector) -> None:
    """The bytes between the directory, or a tensor, and the next aligned offset: zero, by the specification."""
    source, start, align = index.files[number], index.data_start[number], index.alignment
    header = _header(source)  # an index doesn't keep its end
    if header.broken is not None:  # what follows isn't padding
        return
    spans = sorted((e.offset, e.offset + e.nbytes, e.name) for e in index.entries if e.nbytes and e.file == number)
    places = [(header.end, start, "after the tensor directory")]
    places += [(end, start + padded(end - start, align), f"after {name[:80]!r}") for _, end, name in spans]
    for (end, stop, place), following in zip(places, [*(s[0] for s in spans), source.size], strict=True):
        at = _nonzero(source, end, min(stop, following, source.size))
        if at is not None:
            notes.note("gguf/padding", place, offset=at)


def _header(source: Source) -> GgufHeader:
    return walk(source, Collector(source.name, strict=False))


def _nonzero(source: Source, start: int, end: int) -> int | None:
    """The first byte of a range that isn't zero, read in small pieces: an alignment may be gigabytes."""
    for at in range(start, end, MIB):
        piece = source.read(at, min(MIB, end - at))
        if nonzero := piece.lstrip(b"\0"):
            return at + len(piece) - len(nonzero)
    return None
