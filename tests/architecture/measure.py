"""`make house`: the figures that say how easy the code is to take over, each with its limit where a test holds one.

    python -m tests.architecture.measure [--show MEASURE] [PATH...]

`--show english` lists each odd construction, `--show once` each private function with one use, `--show names` each
name that is a pronoun; PATH limits the listing to some folders.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.architecture import house, walks

# Constructions that technical English avoids; click, rich, starlette and httpx have 9 of them per 10,000 words.
CONSTRUCTIONS = {
    "of which, of whose": r"\bof (which|whose|whom)\b",
    "what as a noun": r"\b[Ww]hat (is|has|can|a|an|the|it|stands?|lies|comes|goes|belongs?|another|other|nobody|who)\b",
    "who for whoever": r"(^|[.;:] |\")Who \w+|\bwho (has|wants|knows|takes|needs|refuses|reads|asks)\b",
    "where for if or when": r"\bwhere (it|there|none|that|one|they|no|nothing|a|an|the|its)\b",
    "lies, stands": r"\b(lies|lie|lay|stands?|stood)\b",
    "is another, of others": r"\b(is|are|of) (another|others)( one)?\b",
    "as it is": r"\bas (it is|they are|one likes|they were|it was|it has)\b",
    "all that, all of it": r"\ball (that|of it)\b",
    "is no X": r"\b(is|are) no (?!longer|more)\w+",
    "beside": r"\bbeside\b",
    "apart": r"\bapart\b",
    "alone for only": r"\balone\b",
    "of its own": r"\bof (its own|theirs|ours)\b",
    "says, tells of things": r"\b(says|say|said|speaks? of|tells?|told)\b",
    "behind for after": r"\bbehind\b",
    "but for": r"\bbut for\b",
    "so many, so long": r"\bso (many|long)\b",
    "anew, afresh": r"\b(anew|afresh)\b",
    "merely, thereof": r"\b(merely?|thereof|therein|whereof)\b",
    "hasn't a": r"\bhasn't (a|an|the|any|one|it|its)\b",
}
_CONSTRUCTIONS = {name: re.compile(pattern) for name, pattern in CONSTRUCTIONS.items()}

# Names that don't name what the value is.
PRONOUNS = {
    *("found", "words", "own", "wanted", "told", "said", "given", "asked", "made", "known", "needed"),
    *("it", "that", "these", "those", "them", "one", "ones", "others", "another", "other", "both", "rest", "what"),
    *("who", "where", "how", "why", "here", "there", "mine", "theirs", "ours", "its", "thing", "things", "such"),
}
TABLES = house.PACKAGE / "models" / "arch" / "tables"


class Hit(NamedTuple):
    place: str
    text: str


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of comments and long strings in Python, of Markdown without its code blocks and `code`."""
    if path.suffix == ".py":
        yield from (t for t in house.texts(path) if t.comment or (" " in t.text and len(t.text) > 25))
        return
    code = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield number, re.sub(r"`[^`]*`", "`x`", line)


@cache
def odd_constructions(path: Path) -> tuple[int, tuple[Hit, ...]]:
    """(words of prose, odd constructions in them) of a file. This table of patterns itself isn't prose."""
    words, hits = 0, []
    if path == Path(__file__):
        return 0, ()
    for line, text in prose(path):
        words += len(text.split())
        for name, pattern in _CONSTRUCTIONS.items():
            for match in pattern.finditer(text):
                around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
                number = line + text.count("\n", 0, match.start())
                hits.append(Hit(f"{path.relative_to(house.ROOT)}:{number}", f"{name}: {around}"))
    return words, tuple(hits)


def english(paths: Iterable[Path]) -> tuple[float, list[Hit]]:
    """Odd constructions per 10,000 words, and each of them."""
    counts = [odd_constructions(path) for path in paths]
    hits = [hit for _, some in counts for hit in some]
    return 1e4 * len(hits) / max(1, sum(words for words, _ in counts)), hits


def used_once() -> tuple[int, list[Hit]]:
    """(functions, private ones with one call and no other use), from names: a module's `_name` counts in that module
    only. A function that a table or a parameter takes as a value is no helper."""
    functions, hits = 0, []
    for path in house.modules():
        uses: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for node in house.nodes(path):
            for counter, used in ((uses, node), (calls, node.func if isinstance(node, ast.Call) else None)):
                if isinstance(used, ast.Name | ast.Attribute):
                    counter[used.id if isinstance(used, ast.Name) else used.attr] += 1
        for function in house.functions(path):
            functions += 1
            if (
                function.name.startswith("_")
                and not function.name.startswith("__")
                and (uses[function.name] == calls[function.name] == 1)
            ):
                hits.append(Hit(function.place, f"{function.name}: {function.lines} lines"))
    return functions, hits


def bindings(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable, parameter and function that a file binds."""
    for node in house.nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def pronouns() -> tuple[int, list[Hit]]:
    """(bindings, those that are pronouns)."""
    every = [(path, line, name) for path in house.modules() for line, name in bindings(path)]
    hits = [Hit(f"{house.short(p)}:{line}", name) for p, line, name in every if name.lstrip("_") in PRONOUNS]
    return len(every), hits


def table_lines() -> list[str]:
    return [line for path in sorted(TABLES.rglob("*.toml")) for line in path.read_text("utf-8").splitlines()]


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in paths)


def pages() -> list[Path]:
    """README, the guides and the other pages at the top; CHANGELOG counts as one."""
    return [*sorted((house.ROOT / "docs").glob("*.md")), *sorted(house.ROOT.glob("*.md"))]


def tests() -> list[Path]:
    return sorted((house.ROOT / "tests").rglob("*.py"))


def figures() -> Iterator[tuple[str, str]]:
    modules = house.modules()
    yield "lines of Python in src", f"{lines(modules):,} in {len(modules)} files"
    yield "lines of Python in tests", f"{lines(tests()):,} in {len(tests())} files"
    functions, once = used_once()
    yield "private functions called once", f"{len(once):,} of {functions:,}, {len(once) / functions:.1%}"
    bound, named = pronouns()
    yield "names that are pronouns", f"{len(named):,} of {bound:,}, {len(named) / bound:.1%}"
    classes = sum(isinstance(n, ast.ClassDef) for path in modules for n in house.nodes(path))
    yield "classes", f"{classes:,}"
    for name, paths in (("src", modules), ("docs", pages()), ("tests", tests())):
        rate, hits = english(paths)
        yield f"odd constructions in {name}", f"{rate:.0f} per 10,000 words ({len(hits)})"
    table = table_lines()
    long = sum(len(line) > 140 for line in table)
    yield "family tables", f"{len(table):,} lines, {long} of them longer than 140, {sum(map(len, table)):,} bytes"
    for name, walked in walks.walks(list(walks.WALKS)).items():
        yield f"wb {name}", walks.figure(walked)


LISTS: dict[str, Callable[[], list[Hit]]] = {
    "english": lambda: english([*house.modules(), *pages(), *tests()])[1],
    "once": lambda: used_once()[1],
    "names": lambda: pronouns()[1],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", choices=LISTS, help="list each case of one measure")
    parser.add_argument("paths", nargs="*", help="of the listing, only these folders or files")
    arguments = parser.parse_args()
    if not arguments.show:
        for name, figure in figures():
            print(f"{name:32}{figure}")
        return
    for hit in LISTS[arguments.show]():
        if not arguments.paths or any(path in hit.place for path in arguments.paths):
            print(f"{hit.place}: {hit.text}")


if __name__ == "__main__":
    main()
