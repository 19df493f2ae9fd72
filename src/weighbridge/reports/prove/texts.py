"""Texts that become different tokens if a tokenizer's rule is lost, and a passage for comparing predictions."""

from __future__ import annotations

from typing import Final

HARD: Final = (
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they've said it'll work, WE'RE DONE.",
    "1 22 333 4444 55555 3.14159 1,000,000 0x7fff 2024-12-31",
    "two  spaces,   three   spaces,\ttabs\t\tand\n\nlines\r\n\nend",
    "def f(x):\n    return {'a': [x ** 2, -x]}  # comment\n",
    "naïve café façade Ünïcödé Ελληνικά Русский עברית العربية",
    "日本語のテキスト、中文文本。",
    "emoji 😀👩‍👩‍👧‍👦🇨🇭 \u200b zero \u00a0width",
    "http://example.org/a?b=c&d=%20#e user@example.org C:\\path\\file",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa !!!!???...;;;--- ((([[[{{{}}}]]])))",
    "",
    "x",
    "ﬁ ½ ² Ⅳ ﷺ 𝔘𝔫𝔦",
)
PASSAGE: Final = """\
A river does not carry the same water twice, and yet we call it by one name. In the spring of 1883 the engineer Anna \
Keller measured its depth at forty places between the bridge and the mill; her notebook, 212 pages long, is kept in \
the town's library. "Nothing," she wrote, "is as stubborn as a current that has found its bed." For three weeks she \
rowed out at dawn, lowered a lead weight on a marked line, and wrote down what she read. Most numbers agreed with \
the old chart. Five did not: near the eastern bank the bottom had fallen by almost two metres since 1851.

What had changed? There were several possible causes, and she listed them in order: (1) the dam upstream, finished \
in 1867; (2) sand taken for the railway; (3) an error in the old chart. The third was easy to test, since the old \
surveyor had left his instruments. She compared both lines, found that his had shrunk by one part in ninety, and \
could explain a tenth of the difference at most. If the dam held back sand, the river would take it from its own \
bed, as rivers do. So she wrote a function of depth, width and slope, for which today we would type: depth = k * \
(width / slope) ** 0.5.
"""
