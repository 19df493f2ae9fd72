"""The policy on names that files make their loaders import or call: in configs, YAML tags and pickles.

    judge("transformers.utils.hub.os.system")   -> harm: the consequence of loading the file
    judge("nemo.collections.asr.models.Model")  -> known
    judge("own_package.Thing")                  -> neither: unknown code

A loader resolves a dotted name attribute by attribute, and every module that a module imports is one of its attributes.
So each step is judged: a package is known only for its own classes, `package.module.Class`. No name is imported here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from weighbridge.reports.scan.pickle import denylist

#: Packages whose classes configs legitimately name: models, layers, optimizers, datasets.
PACKAGES: Final = (
    "diffusers", "lightning.fabric", "lightning.pytorch", "monai.data", "monai.losses", "monai.networks",
    "monai.optimizers", "monai.transforms", "nemo.collections", "nemo.core", "omegaconf", "peft", "pytorch_lightning",
    "speechbrain", "torch.nn", "torch.optim", "torchaudio", "transformers",
)  # fmt: skip
# A step with one of these names leads out of a package, to a module that it imports.
_ELSEWHERE: Final = (
    sys.stdlib_module_names
    | {module.partition(".")[0] for module, _ in denylist.TABLE}
    | {package.partition(".")[0] for package in PACKAGES}
    | {"np", "pd", "sp", "tf", "plt"}
)
_MODULE: Final = re.compile(r"[a-z][a-z0-9_]*\Z", re.ASCII)
_ANY_MODULE: Final = re.compile(r"_?[a-z][a-z0-9_]*\Z", re.ASCII)
_CLASS: Final = re.compile(r"[A-Z][A-Za-z0-9]*\Z", re.ASCII)
# Classes of the denylist, whichever module they are taken from: `GzipFile` is an attribute of every module that imports
# it.
_HARMFUL: Final = frozenset(name for _, name in denylist.TABLE if _CLASS.match(name)) | {"Popen", "Path", "Thread"}
# Classes with names in lower case, and functions that make objects: scipy's matrices, sklearn's trees of neighbors.
_MAKERS: Final = frozenset({"newObj", *(f"{kind}_{form}" for kind in ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")
                                        for form in ("matrix", "array"))})  # fmt: skip


class NameJudgement(NamedTuple):
    """`is_known`: the name is a class of a package in `PACKAGES`. `harm`: the consequence of loading the file, if the
    name reaches something that is known to do harm."""

    is_known: bool
    harm: str | None


def judge(dotted: str) -> NameJudgement:
    """Judges the target of a call of `dotted`, as loaders of configs resolve it."""
    dotted = dotted.strip()
    module, _, name = dotted.rpartition(".")
    harm = harm_of(module, name)
    return NameJudgement(harm is None and is_class(dotted, PACKAGES), harm)


def harm_of(module: str, name: str) -> str | None:
    """The harm that a name does, if it is known to do harm or a step on the way to it is a module that does."""
    harm = denylist.consequence(module, name)
    steps = [*module.split("."), *name.split(".")]
    if harm or _CLASS.match(steps[-1]):  # `package.code.Net` is a class of a module that only has a module's name
        return harm
    inner = (".".join(steps[start:-1]).lstrip("_") for start in range(1, len(steps) - 1))
    return next(filter(None, (denylist.consequence(path, steps[-1]) for path in inner)), None)


def is_class(dotted: str, packages: Iterable[str]) -> bool:
    """Whether `dotted` is a public class in one of `packages` and no step of it leads out of the package."""
    return _is_inside(dotted, packages, _MODULE)


def is_accepted(dotted: str, libraries: Collection[str]) -> bool:
    """Whether `dotted` is a class of one of `libraries`, which the user accepts. Pickles name the module that defines a
    class, which may be private."""
    return _is_inside(dotted, libraries, _ANY_MODULE)


def _is_inside(dotted: str, packages: Iterable[str], module: re.Pattern[str]) -> bool:
    package = next((p for p in packages if dotted.startswith(f"{p}.")), None)
    if package is None:
        return False
    *middle, name = dotted[len(package) + 1 :].split(".")
    is_class = _CLASS.match(name.lstrip("_") if module is _ANY_MODULE else name)
    if not (is_class or (module is _ANY_MODULE and name in _MAKERS)) or name in _HARMFUL:
        return False
    return all(module.match(step) and step.lstrip("_") not in _ELSEWHERE for step in middle)
