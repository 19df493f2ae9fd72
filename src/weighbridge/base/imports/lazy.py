"""Imports that wait for the first use of a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_module(name: str) -> Any:
    """Returns a stand-in for the module `name`. It keeps the names that were used, so later uses cost no call."""
    module = ModuleType(name)

    def __getattr__(attribute: str) -> Any:  # PEP 562
        value = module.__dict__[attribute] = getattr(import_module(name), attribute)
        return value

    module.__getattr__ = __getattr__  # type: ignore[method-assign]
    return module


def lazy_names(package: dict[str, Any], modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package with these globals, whose names are in its modules: module -> names."""
    home = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(f"{package['__name__']}.{home[name]}"), name)
        return value

    return __getattr__
