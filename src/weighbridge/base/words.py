"""Wording of messages: plurals, and suggestions for unknown words. Ends of names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from itertools import islice
from operator import itemgetter
from typing import Final

from weighbridge.base.errors import UsageError

# Irregular plurals.
_IRREGULAR: Final = {"index": "indices", "matrix": "matrices", "axis": "axes"}


# Verb of many -> of one.
_VERBS: Final = {"are": "is", "have": "has", "were": "was", "need": "needs", "reach": "reaches"}


def plural(n: int, noun: str, verb: str = "") -> str:
    """`1 file`, `1,204 files`; with the verb of many `1 file is`, `1,204 files are`."""
    if verb:
        return f"{plural(n, noun)} {_VERBS[verb] if n == 1 else verb}"
    if n == 1:
        return f"1 {noun}"
    *before, last = noun.split(" ")
    ends_in_y = last.endswith("y") and last[-2:-1] not in "aeiou"
    many = _IRREGULAR.get(last) or (f"{last[:-1]}ies" if ends_in_y else f"{last}s")
    return f"{n:,} {' '.join([*before, many])}"


# Comparing takes some 10 us a word; a model may have a million tensors.
_COMPARED: Final = 20_000


def suggest(
    word: str, candidates: Iterable[str], otherwise: str | None = None, *, count: int = 3, cutoff: float = 0.5
) -> str | None:
    """The hint for an unknown word: `did you mean A, B?`, or `otherwise` if no known word is like it."""
    from difflib import get_close_matches

    near = get_close_matches(word, list(islice(candidates, _COMPARED)), count, cutoff)
    return f"did you mean {', '.join(near)}?" if near else otherwise


def name_parts(names: Iterable[str]) -> list[str]:
    """The words between the dots of names, once each, without numbers: `attn_q` of `blk.0.attn_q.weight`."""
    return list(dict.fromkeys(part for name in names for part in name.split(".") if not part.isdigit()))


def check_globs(globs: Iterable[str], names: Collection[str], option: str, noun: str = "tensor") -> None:
    """UsageError for a glob of `option` that matches no name, with what looks similar."""
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise UsageError(f"{option} {glob!r} matches no {noun}", hint=suggest_for_glob(glob, names))


def suggest_for_glob(glob: str, names: Collection[str]) -> str:
    """The hint for a pattern that matches nothing: similar names or parts of names, else an example of a name."""
    bare = glob.strip("*?.^$\\")
    example = next(iter(names), None)
    otherwise = f"a name is {example}" if example else "there are no names"
    return str(suggest(bare, [*name_parts(names), *names], otherwise))


class UnknownNameError(KeyError):
    """A KeyError that suggests similar names when it is shown. Its argument is the name."""

    def __init__(self, name: object, kind: str, names: Collection[str]) -> None:
        super().__init__(name)
        self._kind, self._names = kind, names

    def __str__(self) -> str:
        hint = suggest(str(self.args[0]), self._names, f"there are {len(self._names):,}")
        return f"no {self._kind} is called {self.args[0]!r}; {hint}"


def ranges(numbers: Iterable[int], separator: str = ",") -> str:
    """`0-3,5` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return separator.join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


#: Characters of a name in `name_ends`.
NAME_END: Final = 24


def name_ends(names: Iterable[str]) -> frozenset[str]:
    """The last `NAME_END` characters of each name. 100,000 names of a model have a few hundred such ends, so that a
    search for endings takes the time of one pass, 5 ms."""
    return frozenset(map(itemgetter(slice(-NAME_END, None)), names))
