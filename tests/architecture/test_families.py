"""What only one family knows stands in its table: no module names a family or a class of one."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.architecture import house

from weighbridge.models.arch.registry import families

# Words that are also something else: `llama` of llama.cpp and of old GGML files, tokenizer models of GGUF (gpt2, bert,
# t5, gemma4, plamo2) and pre-tokenizers, types of quantization, the heads of names by which files are guessed.
GENERIC = frozenset({"llama", "gpt2", "bert", "t5", "gemma4", "plamo2", "plamo3", "gpt-oss", "gpt_oss", "mistral"})
# Modules that hold the rules of one family each, show examples, know formats by the models that brought them, or name
# tokenizers.
EXAMPLES = (
    "cli/commands/arch", "cli/commands/slice", "containers/sniff/tensor_names",
    "models/arch/rules/", "models/tokenizer/hf/lattice", "models/tokenizer/pretokenizer",
    "packings/read/ggml", "reports/inspect/model_info", "reports/verify/model",
)  # fmt: skip


def _names() -> frozenset[str]:
    found = {name for f in families().values() for name in (f.name, f.gguf, *f.architectures)}
    classes = [a for f in families().values() for a in f.architectures.values()]
    return frozenset(found | {name for a in classes for name in (a.model_type, *a.aliases)} - GENERIC) - GENERIC


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in (tokenize.STRING, tokenize.NAME) and not token.string.startswith('"""'):
            yield token.start[0], token.string


def test_no_module_names_a_family() -> None:
    pattern = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(map(re.escape, sorted(_names())))})(?![A-Za-z0-9_])")
    found = [
        f"{house.short(path)}:{line}: {match[1]}"
        for path in house.modules() if not house.short(path).startswith(EXAMPLES)
        for line, text in _strings(path) if (match := pattern.search(text))
    ]  # fmt: skip
    assert found == []
