"""The options of a run over a text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from weighbridge.base.options import ProgressKeyword, option
from weighbridge.base.records import dataclass
from weighbridge.io.options import OverwriteOptions
from weighbridge.models.model import SourceOptions

_TEXT: Final = "Text"
#: Tokens of a chunk by default, as in llama-imatrix and llama-perplexity.
CHUNK: Final = 512
#: llama-imatrix leaves out products of fewer rows.
LEAST_ROWS: Final = 16


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Which text, and how it is cut."""

    text: Sequence[str] = option(
        "The text, UTF-8; - is standard input. Several are one text.", (), metavar="FILE", section=_TEXT
    )
    field: str | None = option("The files are JSON lines; the text is this field.", metavar="NAME", section=_TEXT)
    chat: bool = option("The files are JSON lines of messages, rendered by the model's template.", False, section=_TEXT)
    context: int = option(
        f"Tokens of a chunk [{CHUNK}].", CHUNK, metavar="N", least=LEAST_ROWS, aliases="ctx ctx_size", section=_TEXT
    )
    chunks: int | None = option("Chunks to use [all].", metavar="N", least=1, section=_TEXT)
    parse_special: bool = option("Recognise special tokens in the text; chats always do.", False, section=_TEXT)


@dataclass(frozen=True, kw_only=True)
class ImatrixOptions(TextOptions, SourceOptions, OverwriteOptions, ProgressKeyword):
    chunk: int = option("Skip the first N chunks [0].", 0, metavar="N", least=0, aliases="from_chunk", section=_TEXT)
    engine: Literal["weighbridge", "transformers"] = option(
        "What runs the model: Weighbridge, or transformers and torch, for a folder that fits in memory [weighbridge].",
        "weighbridge",
    )  # fmt: skip
    process_output: bool = option("Also the output matrix.", False)
    in_file: Sequence[str] = option("Add the sums of this importance matrix.", (), metavar="FILE", kind="file")
    resume: bool = option("Continue OUT: skip its chunks, add the rest.", False, section="Writing")


@dataclass(frozen=True, kw_only=True)
class TextQualityOptions(TextOptions, SourceOptions, OverwriteOptions, ProgressKeyword):
    save: Path | None = option(
        "Write the reference's log-probabilities as a KL divergence base of llama-perplexity.", metavar="FILE",
        kind="path", section="Writing",
    )  # fmt: skip
