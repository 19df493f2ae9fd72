"""The texts of a calibration or a measurement as chunks of token ids, cut as llama-imatrix cuts them.

Files are one text, joined by line breaks, whose tokens are cut into chunks of one length; what doesn't fill a chunk is
left out. If the tokenizer begins each text with a token (BOS), it takes the place of each chunk's first. Source:
tools/imatrix/imatrix.cpp (compute_imatrix), tools/perplexity/perplexity.cpp of llama.cpp b11549.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.adapters.chat.template import render_each
from weighbridge.adapters.encoding import TextEncoder
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.forward.options import TextOptions
from weighbridge.models.model import OpenModel
from weighbridge.models.tokenizer.compare import adds
from weighbridge.models.tokenizer.of_model import tokenizer_json, vocab_of
from weighbridge.models.tokenizer.vocab import Vocab

Ids = NDArray[np.int64]

#: Bytes of all texts together.
_TEXTS: Final = 1 << 30
_TEMPLATE_SECONDS: Final = 300.0
_MESSAGES: Final = "messages"


@dataclass(frozen=True)
class TextChunks:
    """`tokens` [chunks, tokens] of a text; `first`: the token (BOS) that takes the place of each chunk's first;
    `dropped`: tokens at the end that fill no chunk."""

    tokens: Ids
    first: int | None
    dropped: int = 0

    @property
    def ids(self) -> Ids:
        """What the model reads, [chunks, tokens]."""
        return with_first(self.tokens, self.first)


def with_first(tokens: Ids, first: int | None) -> Ids:
    """Tokens [chunks, tokens] with `first` in place of each chunk's first."""
    if first is None:
        return tokens
    out = tokens.copy()
    out[:, 0] = first
    return out


def first_token(vocab: Vocab) -> int | None:
    """The token (BOS) that is added to each text."""
    return vocab.special.get("bos") if adds(vocab, "bos") else None


def read_text(paths: Sequence[str], field: str | None) -> str:
    """The text of several files; "-" is standard input. `field`: the files have a JSON object per line, whose strings
    under this name are the text. Raises FormatError for a file that isn't UTF-8 or a line without the field."""
    return "\n".join(text for path in paths for text in _parts(path, field))


def _parts(path: str, field: str | None) -> Iterator[str]:
    text = _decoded(path)
    if field is None:
        yield text
        return
    for number, row in _rows(path, text):
        value = row.get(field)
        if not isinstance(value, str):
            raise FormatError("no text in this field", path=path, field=f"line {number}, {field}",
                              hint=f"its fields: {', '.join(row)[:200]}")  # fmt: skip
        yield value


def _decoded(path: str) -> str:
    if path == "-":
        data = sys.stdin.buffer.read(_TEXTS + 1)
    else:
        with Path(path).open("rb") as file:
            data = file.read(_TEXTS + 1)
    if len(data) > _TEXTS:
        raise UsageError(f"{path}: a text has at most {_TEXTS >> 30} GiB", hint="cut it; --chunks uses its beginning")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("the text isn't UTF-8", path=path, offset=error.start) from None


def _rows(path: str, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise FormatError("not a JSON object", path=path, field=f"line {number}",
                              hint="JSON lines have one object per line")  # fmt: skip
        yield number, row


def read_chats(paths: Sequence[str], vocab: Vocab) -> str:
    """Conversations, rendered by the model's chat template: a JSON object per line, with `messages` and optionally
    `tools`. Raises UnsupportedError without a template, FormatError for a line that the template refuses."""
    template = vocab.template
    if template is None:
        raise UsageError("the model has no chat template", hint="give plain text")
    tokens = {f"{role}_token": text for role in ("bos", "eos") if (text := vocab.token(role)) is not None}
    places, cases = [], []
    for path in paths:
        for number, row in _rows(path, _decoded(path)):
            if not isinstance(row.get(_MESSAGES), list):
                raise FormatError(f"no {_MESSAGES}", path=path, field=f"line {number}",
                                  hint='{"messages": [{"role": "user", "content": "..."}, ...]}')  # fmt: skip
            places.append((path, number))
            own = {_MESSAGES: row[_MESSAGES], "tools": row.get("tools")}
            cases.append({**own, "add_generation_prompt": False, **tokens})
    texts = []
    for (path, number), made in zip(places, render_each(template, cases, None, _TEMPLATE_SECONDS, "view"), strict=True):
        if made.error or made.stopped:
            reason = made.error or f"limit of {made.stopped}"
            raise FormatError(f"the chat template refuses the messages: {reason}", path=path, field=f"line {number}")
        texts.append(made.text)
    return "".join(texts)


def chunks_of(model: OpenModel, options: TextOptions) -> TextChunks:
    """The chunks of texts for a model's tokenizer. Raises UsageError without a text, or for one that is shorter than a
    chunk."""
    if not options.text:
        raise UsageError("no text was given", hint="--text FILE; it should resemble what the model will read")
    if options.field is not None and options.chat:
        raise UsageError("--field doesn't apply to --chat", hint="messages are in the field of that name")
    vocab, tokens = vocab_of(model), options.context
    encoder = TextEncoder(tokenizer_json(model, vocab))
    text = read_chats(options.text, vocab) if options.chat else read_text(options.text, options.field)
    ids = encoder.encode(text, special=options.parse_special or options.chat)
    first = first_token(vocab)
    if first is not None:
        ids = np.concatenate([np.asarray([first], np.int64), ids])
    rows = len(ids) // tokens
    if not rows:
        raise UsageError(f"the text has {plural(len(ids), 'token')}, less than one chunk of {tokens:,}",
                         hint="give a longer text, or a smaller --context")  # fmt: skip
    return TextChunks(ids[: rows * tokens].reshape(rows, tokens), first, len(ids) - rows * tokens)
