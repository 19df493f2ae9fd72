"""Classes of base/records.py are dataclasses: whatever the standard library's decorator gives, they give too."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, field
from itertools import product
from typing import Any

import pytest

from weighbridge.base import records

Decorator = Callable[..., Any]


class Plain:
    a: int
    b: str = "x"
    c: list[int] = field(default_factory=list)


class Keywords:
    """Documented."""

    a: int
    b: str = field(default="x", kw_only=True)
    c: float = field(default=1.5, compare=False)
    d: tuple[int, ...] = field(default=(), init=False, repr=False)
    e: dict[str, int] = field(init=False, default_factory=dict)


class Hashed:
    a: int = 0
    b: Any = field(default=None, hash=False)


class Checked:
    a: int
    b: int = 2

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("a < 0")


class OwnMethods:
    a: int
    b: int = 0

    def __init__(self, total: int) -> None:
        object.__setattr__(self, "a", total)
        object.__setattr__(self, "b", -total)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.a % 2 == other.a % 2

    def __repr__(self) -> str:
        return f"<{self.a}>"


class OwnHash:
    a: int = 1

    def __hash__(self) -> int:
        return 7


class Empty:
    pass


class Adder:
    a: int = 1

    def __call__(self, x: int) -> int:
        return self.a + x


BODIES = (Plain, Keywords, Hashed, Checked, OwnMethods, OwnHash, Empty, Adder)
WAYS = [
    {"frozen": f, "slots": s, "eq": e, "repr": r, "kw_only": k}
    for f, s, e, r, k in product([False, True], repeat=5)
]  # fmt: skip
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}), ((1,), {}), ((2,), {}), ((-1,), {}), ((1, "y"), {}), ((), {"a": 1}), ((1,), {"b": "z"}), ((1, 2, 3), {}),
    ((1,), {"c": [3]}), ((), {"nothing": 1}), ((1, 2, 3, 4, 5), {}),
]  # fmt: skip


def make(decorator: Decorator, body: type, how: dict[str, bool], bases: tuple[type, ...] = ()) -> Any:
    namespace = {k: copy.copy(v) for k, v in vars(body).items() if k not in ("__dict__", "__weakref__")}
    return decorator(**how)(type(body.__name__, bases, namespace))


def answer(call: Callable[[], Any]) -> Any:
    """The value of a call, or the type of its error."""
    try:
        return call()
    except Exception as error:
        return type(error)


def answers(cls: Any) -> Iterator[Any]:
    yield str(inspect.signature(cls)), cls.__match_args__, [f.name for f in dataclasses.fields(cls)]
    yield cls.__hash__ is None, dataclasses.is_dataclass(cls), getattr(cls, "__slots__", None)
    made = [answer(lambda: cls(*args, **keywords)) for args, keywords in CALLS]  # noqa: B023
    yield [m if isinstance(m, type) else dataclasses.asdict(m) for m in made]
    objects = [m for m in made if not isinstance(m, type)]
    shown = [repr(o) for o in objects]
    yield shown if all(" at 0x" not in text for text in shown) else len(shown)
    yield [a == b for a in objects for b in objects]
    yield [answer(lambda: hash(o)) is TypeError for o in objects]  # noqa: B023
    yield [answer(lambda: hash(a) == hash(b)) for a in objects for b in objects if a == b]  # noqa: B023
    for o in objects:
        yield answer(lambda: dataclasses.asdict(dataclasses.replace(o, a=5)))  # noqa: B023
        yield [f.name for f in dataclasses.fields(copy.copy(o))], dataclasses.asdict(copy.deepcopy(o))
        # The standard library raises a TypeError for a frozen class with slots and another attribute, by mistake.
        yield [answer(lambda: setattr(o, name, 9)) is None for name in ("a", "other")], getattr(o, "a", None)  # noqa: B023
        yield answer(lambda: delattr(o, "a")) is None  # noqa: B023
        yield answer(lambda: inspect.signature(o)) is TypeError  # noqa: B023


@pytest.mark.parametrize("body", BODIES)
def test_it_does_what_the_standard_library_does(body: type) -> None:
    for how in WAYS:
        if body is OwnHash and how["eq"] and not how["frozen"]:
            continue  # an own hash stays in both; `hash` of equal objects is the test below
        assert [*answers(make(records.dataclass, body, how))] == [*answers(make(dataclasses.dataclass, body, how))], how


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("first", [records.dataclass, dataclasses.dataclass])
@pytest.mark.parametrize("second", [records.dataclass, dataclasses.dataclass])
def test_each_inherits_from_the_other(first: Decorator, second: Decorator, frozen: bool) -> None:
    base = make(first, Plain, {"frozen": frozen})
    cls = make(second, Checked, {"frozen": frozen}, (base,))
    assert str(inspect.signature(cls)) == "(a: 'int', b: 'int' = 2, c: 'list[int]' = <factory>) -> None"
    assert [*answers(cls)] == [*answers(make(dataclasses.dataclass, Checked, {"frozen": frozen},
                                             (make(dataclasses.dataclass, Plain, {"frozen": frozen}),)))]  # fmt: skip
    plain: Any = type("PlainSubclass", (base,), {})
    assert plain(1) == plain(1) != base(1)
    assert answer(lambda: setattr(plain(1), "a", 2)) is (FrozenInstanceError if frozen else None)
    object_with_more = plain(1)
    object_with_more.other = 1  # the subclass isn't frozen
    with pytest.raises(TypeError, match="frozen"):
        make(dataclasses.dataclass, Checked, {"frozen": not frozen}, (base,))


@records.dataclass(frozen=True, slots=True)
class Pickled:
    a: int
    b: Pickled | None = None


@records.dataclass(frozen=True)
class Recursive:
    inside: list[Any]


def test_frozen_slots_are_pickled() -> None:
    value = Pickled(1, Pickled(2))
    assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


def test_an_object_inside_itself_is_printed() -> None:
    value = Recursive([])
    value.inside.append(value)
    assert repr(value) == "Recursive(inside=[...])"


def test_a_subclass_s_own_init_has_its_signature() -> None:
    class Other(Pickled):
        def __init__(self, text: str) -> None:
            super().__init__(len(text))

    assert list(inspect.signature(Other).parameters) == ["text"]
    assert Other("abc").a == 3


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="order"):
        records.dataclass(order=True)(Plain)
