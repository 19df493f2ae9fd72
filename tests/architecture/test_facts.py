"""Facts that have one home: a second copy of one can't come back unnoticed."""

from __future__ import annotations

import re

import pytest
from tests.architecture import house

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
