"""Facts that have one home: a second copy of one can't come back unnoticed."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.architecture import house
from tests.architecture.house import modules, short

from weighbridge.base.words import plural
from weighbridge.models.arch.registry import families
from weighbridge.unpickle.opcodes import TABLE, WIDTHS

# fact -> (a pattern of its code, the one file that may contain it)
HOMES: dict[str, tuple[str, str]] = {
    "columns per scale of a microscaled type": (
        r"(E8M0|F8_E8M0\")\]?: (32|\w+\(32)|(E4M3|F8_E4M3\")\]?: (16|\w+\(16)|\"mxfp4\": \(32|\(4(\.0)?, 16\)",
        "base/dtypes.py",
    ),
    "strides of C order": (r"step \*= (max\(n, 1\)|n\b)|math\.prod\(shape\[i \+ 1 ?:\]\)", "base/spec.py"),
    "names of layout changes": (r"\"(rope|halves)\", .*\"(parted|tiled|halves)\"", "tensors/layout_table.py"),
    "layouts that transpose": (r"frozenset\(\{\"transpose\"\}\)", "tensors/layout_table.py"),
    "opcodes of pickles": (r"\"BININT1\", \"B\"", "unpickle/opcodes.py"),
    "signatures of zip records": (r"b\"PK\\x0", "containers/archive/zip_records.py"),
    "torch storage classes and types": (
        r"\"quint4x2\"|\"bits2x4\"|\"BFloat16\": ",
        "unpickle/libraries/torch_types.py",
    ),
    "groups of plug-ins": (r"= \"weighbridge\.(formats|packings|block_types|families|providers)\"", "base/plugins.py"),
    "recognisers of formats": (r"\"(sniff|gguf|ggml)\.\w+:\w+\"", "containers/formats.py"),
    "the magic of GGUF": (r"b\"GGUF\"", "containers/formats.py"),
}


@pytest.mark.parametrize("fact", HOMES)
def test_a_fact_has_one_home(fact: str) -> None:
    pattern, home = HOMES[fact]
    copies = [house.short(p) for p in house.modules() if re.search(pattern, p.read_text("utf-8"))]
    assert set(copies) <= {home}


def test_the_native_walk_over_pickles_has_the_opcodes_of_the_table() -> None:
    """Each case of `step` in native/pickles.cpp: its code exists, and it reads an argument of the table's width."""
    source = (house.ROOT / "native" / "pickles.cpp").read_text("utf-8")
    body = source[source.index("bool step(u8 code)") : source.index("size_t run()")]
    cases = re.findall(r"case ((?:(?:'.'|0x\w\w): (?:case )?)+)\s*([^\n]*)", body)
    codes = {}
    for labels, action in cases:
        for label in re.findall(r"'(.)'|0x(\w\w)", labels):
            codes[ord(label[0]) if label[0] else int(label[1], 16)] = action
    assert len(codes) > 30
    assert set(codes) <= set(TABLE)
    for code, action in codes.items():
        width = re.search(r"(?:integer|text|bytes|number|skip)\((\d)\)", action)
        special = {"signed32()": 4, "long1()": 1, "enter()": 8}
        read = int(width[1]) if width else next((n for name, n in special.items() if name in action), 0)
        assert read == WIDTHS[code], TABLE[code].name


def test_the_table_of_layouts_is_free_of_numpy() -> None:
    imports = house.imports(house.PACKAGE / "tensors" / "layout_table.py")
    assert not [i.module for i in imports if i.module.startswith(("numpy", "weighbridge"))]


# A count and its noun agree: one function words both.


#: Words after a number that aren't plurals, or whose number is never 1.
_NO_PLURAL = frozenset(
    {"is", "was", "has", "as", "needs", "bytes", "bits", "times", "floats", "exists", "takes", "says"}
)
_PLURAL = re.compile(r" (?:(?:more|other|further) )?([a-z]+s)\b")


def _counts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines where a count stands before a plural as it is: `{len(files)} files`, `{n:,} tensors`."""
    for text in (node for node in house.nodes(path) if isinstance(node, ast.JoinedStr)):
        for value, following in pairwise(text.values):
            if not (isinstance(value, ast.FormattedValue) and isinstance(following, ast.Constant)):
                continue
            counted = isinstance(value.value, ast.Call) and getattr(value.value.func, "id", "") == "len"
            grouped = isinstance(value.format_spec, ast.JoinedStr) and ast.unparse(value.format_spec) in (
                "f','",
                'f","',
            )
            constant = isinstance(value.value, ast.Name) and value.value.id.isupper()
            match = _PLURAL.match(str(following.value))
            if (counted or grouped) and not constant and match and match[1] not in _NO_PLURAL:
                yield value.lineno, match[0].strip()


def test_a_count_is_worded_by_the_one_function() -> None:
    """`1 files` is said nowhere: base/words.py knows the singular. (Sizes of arrays, below, are seldom 1.)"""
    rooms = [path for path in modules() if not short(path).startswith(("tensors/", "base/", "unpickle/"))]
    found = [f"{short(path)}:{line} {words}" for path in rooms for line, words in _counts(path)]
    assert found == []


@pytest.mark.parametrize(("n", "noun", "verb", "words"), [
    (0, "file", "", "0 files"), (1, "file", "", "1 file"), (1204, "file", "", "1,204 files"),
    (2, "matrix", "", "2 matrices"), (2, "more entry", "", "2 more entries"), (1, "key", "are", "1 key is"),
    (2, "key", "are", "2 keys are"), (2, "copy", "", "2 copies"),
])  # fmt: skip
def test_the_words_of_a_count(n: int, noun: str, verb: str, words: str) -> None:
    assert plural(n, noun, verb) == words


# What only one family knows stands in its table: no module names a family or a class of one.


# Words that are also something else: `llama` of llama.cpp and of old GGML files, tokenizer models of GGUF (gpt2, bert,
# t5, gemma4, plamo2) and pre-tokenizers, types of quantization, the heads of names by which files are guessed.
GENERIC = frozenset({
    "llama", "gpt2", "bert", "bitnet", "t5", "gemma4", "plamo2", "plamo3", "gpt-oss", "gpt_oss", "mistral",
    "git",  # the type that Grok 2's config states
})  # fmt: skip
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
    return frozenset(found | {name for a in classes for name in (a.stated_type, *a.aliases)} - GENERIC) - GENERIC


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        if token.type in (tokenize.STRING, tokenize.NAME) and not token.string.startswith('"""'):
            yield token.start[0], token.string


def test_no_module_names_a_family() -> None:
    pattern = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(map(re.escape, sorted(_names())))})(?![A-Za-z0-9_])")
    found = [
        f"{house.short(path)}:{line}: {match[1]}"
        for path in house.modules()
        if not house.short(path).startswith(EXAMPLES) and pattern.search(path.read_text("utf-8"))
        for line, text in _strings(path) if (match := pattern.search(text))
    ]  # fmt: skip
    assert found == []
