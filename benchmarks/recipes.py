"""Recipes of quantized files, and the tables and curves of docs/quantize-quality.md that are made of them.

    python benchmarks/recipes.py

A recipe, recipes/NAME.toml, has the types of all tensors for each size, and the figures that mixtures.py measured.
"""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "benchmarks" / "recipes"
PAGE: Final = ROOT / "docs" / "quantize-quality.md"
CURVES: Final = ROOT / "docs" / "pictures" / "quality-effects.svg"
BEGIN, END = "<!-- recipes.py -->\n", "<!-- end -->\n"
#: Letters that two texts may have in common.
COMMON: Final = 80
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")


# -- texts -----------------------------------------------------------------------------------------------------------


def letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def disjoint(text: str, other: str) -> str:
    """The paragraphs of a text that share no run of COMMON letters with another text."""
    body, half = letters(other), COMMON // 2
    starts = {body[i : i + half] for i in range(0, len(body) - half + 1, half)}  # a longer run has one of them
    paragraphs = ((paragraph, letters(paragraph)) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(
        paragraph
        for paragraph, found in paragraphs
        if not any(found[i : i + half] in starts for i in range(len(found) - half + 1))
    )


# -- recipes ---------------------------------------------------------------------------------------------------------


def packed(types: Mapping[str, str]) -> dict[str, str]:
    """Types by role, those of the layers in order."""
    rows = defaultdict[str, dict[int, str]](dict)
    for name, dtype in types.items():
        layer = _LAYER.fullmatch(name)
        rows[name if layer is None else f"blk.*.{layer[2]}"][int(layer[1]) if layer else 0] = dtype
    return {name: " ".join(found.get(n, "-") for n in range(max(found) + 1)) for name, found in rows.items()}


def unpacked(recipe: Mapping[str, str]) -> dict[str, str]:
    """The type of each tensor."""
    named = ((name, n, dtype) for name, row in recipe.items() for n, dtype in enumerate(row.split()))
    return {name.replace("*", str(n)): dtype for name, n, dtype in named if dtype != "-"}


def tensor_types(types: Mapping[str, str]) -> list[str]:
    """The types as `--tensor-type` takes them."""
    return [f"^{re.escape(name)}$={dtype.lower()}" for name, dtype in types.items()]


def dumped(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"{key} = {_toml(value)}" for key, value in head.items()]
    for row in rows:
        lines += ["", "[[size]]", *(f"{key} = {_toml(value)}" for key, value in row.items() if key != "types")]
        lines += ["[size.types]", *(f'"{name}" = "{types}"' for name, types in row["types"].items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


def read() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.toml"))]


# -- the page --------------------------------------------------------------------------------------------------------


def ratio(size: Mapping[str, Any]) -> float:
    """The divergence of types by effect, over that of the best other file of the size."""
    least: float = min(kl for _, kl, _ in size["contenders"].values())
    return float(size["effects"][1]) / least


def tables(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| model | perplexity | sizes | better at | KL ratio, median | worst |"
    yield "|---|---|---|---|---|---|"
    for model in models:
        ratios = [ratio(size) for size in model["size"]]
        better = sum(one < 1 for one in ratios)
        row = f"{model['title']} | {model['perplexity']:.1f} | {len(ratios)} | {better}"
        yield f"| {row} | {statistics.median(ratios):.2f} | {max(ratios):.2f} |"
    for model in models:
        yield f"\n### {model['title'].capitalize()}\n"
        yield f"{model['chunks']} chunks of 512 tokens.\n"
        yield "| size of | best other file | KL | same token | by effect: file | KL | same token | KL ratio | better |"
        yield "|---|---|---|---|---|---|---|---|---|"
        for size in model["size"]:
            label, (nbytes, kl, same) = min(size["contenders"].items(), key=lambda item: item[1][1])
            own, own_kl, own_same = size["effects"]
            first = f"{size['name']} | {label}, {nbytes / 1e6:.3f} MB | {kl:.5f} | {100 * same:.1f} %"
            second = f"{own / 1e6:.3f} MB | {own_kl:.5f} | {100 * own_same:.1f} %"
            winner = "by effect" if ratio(size) < 1 else label
            yield f"| {first} | {second} | {ratio(size):.2f} | {winner} |"


# -- the curves ------------------------------------------------------------------------------------------------------

WIDE, HIGH, LEFT, TOP = 380, 240, 56, 40
COLORS: Final = {"mixtures": "m", "mixtures with imatrix": "i", "one type for all": "p", "by effect": "e"}
STYLE: Final = (
    "<style>text{font:12px system-ui,sans-serif;fill:#5d6168}.g{fill:#fff}path{stroke:#e2e2dc;fill:none}"
    ".m{fill:#8a8f98}.i{fill:#d36c07}.p{fill:#7a4fb5}.e{fill:#32548d}path.e{fill:none;stroke:#32548d}"
    "@media(prefers-color-scheme:dark){text{fill:#a0a4ab}.g{fill:#1b1d20}path{stroke:#303338}"
    ".i{fill:#b9722b}.e{fill:#0298f2}path.e{stroke:#0298f2}}</style>"
)


def series(model: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Points (MB, KL) by kind of file."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COLORS}
    for size in model["size"]:
        for label, (nbytes, kl, _) in size["contenders"].items():
            kind = "one type for all" if "pure" in label else f"mixtures{' with imatrix' * ('imatrix' in label)}"
            found[kind].append((nbytes / 1e6, kl))
        found["by effect"].append((size["effects"][0] / 1e6, size["effects"][1]))
    return {name: sorted(points) for name, points in found.items()}


def panel(model: Mapping[str, Any], x: int, y: int) -> Iterator[str]:
    lines = series(model)
    sizes, kls = zip(*(point for points in lines.values() for point in points), strict=True)
    powers = range(math.floor(math.log10(min(kls))), math.ceil(math.log10(max(kls))) + 1)
    first, last = math.floor(min(sizes)), math.ceil(max(sizes))

    def place(size: float, kl: float) -> tuple[float, float]:
        down = (powers[-1] - math.log10(kl)) / (powers[-1] - powers[0])
        return x + LEFT + (WIDE - LEFT) * (size - first) / (last - first), y + TOP + HIGH * down

    yield f'<text x="{x + LEFT}" y="{y + TOP - 12}">{model["title"]}: KL divergence, nats</text>'
    for power in powers:
        at = place(first, 10.0**power)[1]
        yield f'<path d="M{x + LEFT} {at:g}H{x + WIDE}"/>'
        yield f'<text x="{x + LEFT - 6}" y="{at + 4:g}" text-anchor="end">{10.0**power:g}</text>'
    for size in range(first, last + 1):
        yield f'<text x="{place(size, 1)[0]:.1f}" y="{y + TOP + HIGH + 16}" text-anchor="middle">{size} MB</text>'
    for name, points in lines.items():
        places = [place(*point) for point in points]
        if name == "by effect":
            yield f'<path class="e" d="M{"L".join(f"{a:.1f} {b:.1f}" for a, b in places)}"/>'
        yield from (f'<circle class="{COLORS[name]}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in places)


def curves(models: Sequence[Mapping[str, Any]]) -> str:
    """The picture: a panel for each model, two in a row."""
    wide, high = 2 * (WIDE + 20), 30 + (HIGH + 70) * math.ceil(len(models) / 2)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">{STYLE}']
    parts.append('<rect class="g" width="100%" height="100%"/>')
    for number, (name, color) in enumerate(COLORS.items()):
        parts.append(f'<circle class="{color}" cx="{LEFT + 170 * number}" cy="14" r="4"/>')
        parts.append(f'<text x="{LEFT + 170 * number + 9}" y="18">{name}</text>')
    for number, model in enumerate(models):
        parts += panel(model, number % 2 * (WIDE + 20), 20 + number // 2 * (HIGH + 70))
    return "\n".join(parts) + "\n</svg>\n"


def page(text: str, models: Sequence[Mapping[str, Any]]) -> str:
    """The page with its tables replaced."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n".join(tables(models)) + "\n" + END + rest.split(END)[1]


def main() -> None:
    models = read()
    text = PAGE.read_text("utf-8")
    PAGE.write_text(page(text, models), "utf-8")
    CURVES.write_text(curves(models), "utf-8")


if __name__ == "__main__":
    main()
