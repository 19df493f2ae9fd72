"""The sink of uploads, over a store in memory: which parts are sent, when, and what is left."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.io.sink.upload import ObjectState, UploadSink
from weighbridge.io.source import Source

PART = 100


@dataclass
class Upload:
    store: Store
    name: str
    mark: str
    done: set[int] = field(default_factory=set)
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return str(id(self))

    def put(self, number: int, data: bytes | bytearray) -> None:
        self.store.sent.append((self.name, number))
        self.parts[number] = bytes(data)
        self.done.add(number)

    def copy(self, number: int, source: Source, start: int, size: int) -> bool:
        return False

    def complete(self, parts: int, *, replace: bool) -> None:
        data = b"".join(self.parts[number] for number in range(parts))
        self.store.put(self.name, data, self.mark, replace=replace)
        self.store.open.remove(self)

    def abort(self) -> None:
        if self in self.store.open:
            self.store.open.remove(self)


@dataclass(eq=False)
class Store:
    objects: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    open: list[Upload] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)
    title: str = "memory://b"

    def part_size(self, size: int) -> int:
        return PART

    def state(self, name: str) -> ObjectState | None:
        found = self.objects.get(name)
        return ObjectState(len(found[0]), found[1]) if found else None

    def below(self, folder: str) -> Collection[str]:
        return [name.removeprefix(f"{folder}/") for name in self.objects if name.startswith(f"{folder}/")]

    def put(self, name: str, data: bytes | bytearray, mark: str, *, replace: bool) -> None:
        if name in self.objects and not replace:
            raise FileExistsError(name)
        self.objects[name] = (bytes(data), mark)

    def upload(self, name: str, mark: str, *, resume: bool, replace: bool, token: str | None = None) -> Upload:
        for found in self.open if resume else []:
            if (found.name, found.mark) == (name, mark) and token in (None, found.token):
                return found
        if token is not None:
            raise RemoteError("the upload is over")
        self.open.append(Upload(self, name, mark))
        return self.open[-1]

    def is_open(self, name: str, token: str) -> bool:
        return any(found.token == token for found in self.open)

    def abandon(self, name: str, mark: str) -> None:
        self.open[:] = [found for found in self.open if (found.name, found.mark) != (name, mark)]

    def remove(self, name: str) -> None:
        del self.objects[name]

    def changed(self) -> None:
        pass


def pieces(size: int, seed: int, gaps: bool) -> list[tuple[int, int]]:
    """Runs of a file in a random order; with `gaps` some of it is in none."""
    rng, at, runs = random.Random(seed), 0, []
    while at < size:
        length = min(rng.randrange(1, 130), size - at)
        runs += [(at, length)] if not gaps or rng.random() < 0.8 else []
        at += length
    rng.shuffle(runs)
    return runs


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("memory", [0, 10_000])
@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250, 1000, 1234])
def test_any_order_gives_the_bytes(size: int, memory: int, late: bool) -> None:
    for seed in range(6):
        data, runs = random.Random(size).randbytes(size), pieces(size, seed, gaps=bool(seed % 2))
        store = Store()
        with UploadSink(store, "x", folder=False, memory=memory) as sink:
            out = sink.create("", size, runs, late=late)
            for at, length in runs:
                out.write(at, data[at : at + length])
                if late:
                    assert store.sent == []
            if late and runs:
                out.write(runs[0][0], data[runs[0][0] :][:1])
            assert store.objects == {}
        expected = bytearray(size)
        for at, length in runs:
            expected[at : at + length] = data[at : at + length]
        assert store.objects["x"][0] == expected
        assert store.open == []
        assert len(store.sent) == len(set(store.sent)) == (-(-size // PART) if size > PART else 0)


def test_a_hole_is_never_published() -> None:
    store = Store()
    with pytest.raises(RuntimeError, match="never written"), UploadSink(store, "x", folder=False) as sink:
        sink.create("", 1000).write(0, bytes(999))
    assert store.objects == {}
    assert store.open == []


def test_a_write_outside_is_refused() -> None:
    with pytest.raises(UsageError), UploadSink(Store(), "x", folder=False) as sink:
        sink.create("", 250).write(200, bytes(51))


def write(store: Store, data: bytes, size: int, **how: Any) -> None:
    """Write an object from its beginning on; one that isn't written whole is interrupted."""
    with UploadSink(store, "x", folder=False, **how) as sink:
        sink.create("", size).write(0, data)
        sink._wait()
        if len(data) < size:
            raise KeyboardInterrupt


def test_two_tokens_for_one_name() -> None:
    """The later completion is refused, and leaves the earlier one's object."""
    store = Store()

    def race() -> None:
        with UploadSink(store, "x", folder=False) as late:
            late.create("", 300).write(0, b"b" * 300)
            write(store, b"a" * 300, 300)

    with pytest.raises(RefusedError, match="in the meantime"):
        race()
    assert store.objects["x"][0] == b"a" * 300
    assert store.open == []


def test_what_is_there_is_not_sent_again() -> None:
    store, data = Store(), random.Random(1).randbytes(550)
    with pytest.raises(KeyboardInterrupt):
        write(store, data[:270], 550, key={"a": "1"})
    assert len(store.open) == 1
    store.sent.clear()
    write(store, data, 550, key={"a": "1"})
    assert store.objects["x"][0] == data
    assert sorted(number for _, number in store.sent) == [2, 3, 4, 5]
    store.sent.clear()
    write(store, data, 550, key={"a": "1"})  # it is there already
    assert store.sent == []


def test_another_key_is_another_upload() -> None:
    store = Store()
    with pytest.raises(KeyboardInterrupt):
        write(store, bytes(200), 550, key={"a": "1"})
    write(store, b"x" * 550, 550, key={"a": "2"})
    assert store.objects["x"][0] == b"x" * 550
