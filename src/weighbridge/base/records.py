"""`dataclass` as in the standard library, with methods that cost nothing until they are called.

The standard decorator compiles up to seven functions per class, in 0.7 ms; a command imports some 200 classes and
creates instances of a fifth of them. Here the first call compiles `__init__`, and the other methods are closures.
Fields, `replace`, `match`, types and inheritance, also by dataclasses of the standard library, are as there.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import partial
from inspect import Parameter, Signature, signature
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final, cast


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()  # the default in a signature of a field with a default factory
_LOCK: Final = threading.RLock()

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **how):
        return partial(_process, how) if cls is None else _process(how, cls)


def _process(how: dict[str, Any], cls: type) -> type:
    frozen, slots, kw_only = (how.pop(name, False) for name in ("frozen", "slots", "kw_only"))
    repr, eq = (how.pop(name, True) for name in ("repr", "eq"))
    if how:
        raise TypeError(f"no such option of a dataclass here: {', '.join(how)}")
    document, explicit_hash = cls.__doc__, cls.__dict__.get("__hash__", MISSING)
    cls.__doc__ = document or " "  # else the standard library would put the signature there
    with _unfrozen(cls):
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
    cls.__doc__ = document
    cls.__dataclass_params__.frozen = frozen  # type: ignore[attr-defined]

    def __init__(self: Any, *args: Any, **keywords: Any) -> None:
        compile_init(cls)(self, *args, **keywords)

    methods: dict[str, Any] = {"__init__": __init__}
    if "__init__" not in cls.__dict__:
        methods["__signature__"] = _InitSignature(cls)
    if repr:
        methods["__repr__"] = _repr(tuple(f.name for f in fields(cls) if f.repr))
    compared = _values_of([f for f in fields(cls) if f.compare])
    if eq:
        methods["__eq__"] = lambda a, b: compared(a) == compared(b) if b.__class__ is a.__class__ else NotImplemented
    if frozen:
        methods |= _frozen(cls)
    if frozen and slots:
        methods |= _slots_state(tuple(f.name for f in fields(cls)))
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    # A class that defines __eq__ has __hash__ = None from Python.
    if eq and (explicit_hash is MISSING or (explicit_hash is None and "__eq__" in cls.__dict__)):
        hashed = _values_of([f for f in fields(cls) if (f.compare if f.hash is None else f.hash)])
        cls.__hash__ = (lambda self: hash(hashed(self))) if frozen else None  # type: ignore[assignment, method-assign, misc]
    return cls


@contextmanager
def _unfrozen(cls: type) -> Iterator[None]:
    """Marks the bases as not frozen: the standard library would compile `__setattr__` for a class that is."""
    parameters = [b.__dict__["__dataclass_params__"] for b in cls.__mro__ if "__dataclass_params__" in b.__dict__]
    with _LOCK:
        frozen = [p for p in parameters if p.frozen]
        try:
            for p in frozen:
                p.frozen = False
            yield
        finally:
            for p in frozen:
                p.frozen = True


class _InitSignature:
    """The signature of a class, from its fields; of a subclass with another `__init__`, that one's."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is not None:  # which has a signature only if it can be called
            raise AttributeError("__signature__")
        cls = next(c for c in owner.__mro__ if "__init__" in c.__dict__)
        if cls is not self.cls:
            return signature(partial(cls.__init__, None))  # type: ignore[misc]
        parameters = [
            Parameter(f.name, Parameter.KEYWORD_ONLY if f.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
                      default=_default(f), annotation=f.type)
            for f in fields(cls) if f.init
        ]  # fmt: skip
        return Signature(sorted(parameters, key=attrgetter("kind")), return_annotation=None)


def compile_init(cls: type) -> Callable[..., None]:
    """Compiles the `__init__` of a dataclass and puts it in the place of the one that calls this."""
    names: dict[str, Any] = {"_FACTORY": _FACTORY, "_set": object.__setattr__}
    frozen, slots = cls.__dataclass_params__.frozen, "__slots__" in cls.__dict__  # type: ignore[attr-defined]
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    body = []
    for f in fields(cls):
        value, names[f"_default_{f.name}"] = f.name, _default(f)
        if f.default_factory is not MISSING:
            names[f"_make_{f.name}"] = f.default_factory
            value = f"_make_{f.name}() if {f.name} is _FACTORY else {f.name}" if f.init else f"_make_{f.name}()"
        elif f.default is not MISSING:
            value = f.name if f.init else f"_default_{f.name}"
        if f.init:
            optional = _default(f) is not Parameter.empty
            parameters[bool(f.kw_only)].append(f"{f.name}=_default_{f.name}" if optional else f.name)
        if f.init or f.default_factory is not MISSING or (slots and f.default is not MISSING):
            body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    listed = ", ".join([*parameters[False], *(["*", *parameters[True]] if parameters[True] else [])])
    exec("\n ".join([f"def __init__({listed}):", *(body or ["pass"])]), names)
    init: Any = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    cls.__init__ = init  # type: ignore[misc]
    return init  # type: ignore[no-any-return]


def _default(f: Field[Any]) -> Any:
    """The default in a signature."""
    return _FACTORY if f.default_factory is not MISSING else Parameter.empty if f.default is MISSING else f.default


def _values_of(listed: list[Field[Any]]) -> Callable[[Any], Any]:
    return attrgetter(*(f.name for f in listed)) if listed else lambda _: ()


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({values})"

    return __repr__


def _frozen(cls: type) -> dict[str, Any]:
    names, owner = frozenset(f.name for f in fields(cls)), cast("type[Any]", cls)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(owner, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(owner, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _slots_state(names: tuple[str, ...]) -> dict[str, Any]:
    """Pickling without `__setattr__`, which raises."""

    def __getstate__(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": __getstate__, "__setstate__": __setstate__}
