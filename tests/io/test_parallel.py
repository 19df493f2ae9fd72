"""Targets that several processes write: the laws of every one, whatever order, repeats and deaths."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.io.test_upload import Store
from tests.system import posix_only

from weighbridge.base.errors import RefusedError, RemoteError, UsageError
from weighbridge.io.sink import (
    FileRange,
    FolderRecords,
    ParallelTarget,
    ParallelUploads,
    ParallelWrite,
    parallel,
    parallel_target,
)
from weighbridge.io.sink.journal import Piece

UNIT = 100
FILES = {"a": bytes(range(256)) * 3, "sub/b": bytes(reversed(range(256))) * 2}
SMALL = {"c.json": b"{}"}
Make = Callable[..., ParallelTarget]


class Place:
    """A target's kind: how it is made, and what can be seen of it from outside."""

    def __init__(self, root: Path, elsewhere: bool) -> None:
        self.root, self.store = root, Store() if elsewhere else None

    def make(self, key: str = "k", folder: bool = True, overwrite: bool = False) -> ParallelTarget:
        files = FILES if folder else {"": FILES["a"]}
        write = ParallelWrite(
            {name: len(data) for name, data in files.items()}, {"plan": key}, FolderRecords(self.root / "agreed"), "p",
            folder=folder, names=[*files, *SMALL], overwrite=overwrite,
        )  # fmt: skip
        return ParallelUploads(self.store, "out", write) if self.store else parallel_target(self.root / "out", write)

    def seen(self) -> dict[str, bytes]:
        """The target's files; with anything that is left beside it."""
        if self.store:
            assert not self.store.open
            assert not FolderRecords(self.root / "agreed").names("p")
            return {name.partition("/")[2]: data for name, (data, _) in self.store.objects.items()}
        assert [path.name for path in self.root.iterdir() if path.name != "agreed"] in ([], ["out"])
        out = self.root / "out"
        if out.is_file():
            return {"": out.read_bytes()}
        return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


@pytest.fixture(params=["files", "uploads"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(parallel, "ALIGNMENT", UNIT)
    return Place(tmp_path, request.param == "uploads")


def pieces(name: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Slabs whose borders aren't those of parts."""
    for at in range(0, len(data), 70):
        yield at, data[at : at + 70]


def fill(target: ParallelTarget, part: FileRange | None, files: dict[str, bytes] = FILES) -> int:
    """Do what a run of a plan does. Returns how many slabs were made."""
    made = 0
    with target.sink(part) as sink:
        outs = [sink.create(name, len(data), [(0, len(data))]) for name, data in files.items()]
        for number, (name, data) in enumerate(files.items()):
            for at, slab in pieces(name, data):
                if sink.crc_of(Piece(number, at, len(slab))) is None:
                    outs[number].write(at, slab)
                    made += 1
        for name, data in SMALL.items() if part is None and "" not in files else ():
            sink.create(name, len(data)).write(0, data)
    return made


def published(target: ParallelTarget, files: dict[str, bytes] = FILES) -> None:
    """One driver that makes everything."""
    target.begin()
    for part in target.missing(target.ranges(1)):
        fill(target, part, files)
    fill(target, None, files)
    target.finish()


@pytest.mark.parametrize("seed", range(6))
def test_any_order_any_repeats_any_process(seed: int, place: Place) -> None:
    """Each step is another process's; some ranges are made twice, some tasks come when all is over."""
    chance = random.Random(seed)
    place.make().begin()
    ranges = place.make().ranges(UNIT * chance.choice([1, 2, 5]))
    assert place.make().missing(ranges) == ranges
    steps = ranges + chance.sample(ranges, 3)
    chance.shuffle(steps)
    for part in steps:
        place.make().begin()
        fill(place.make(), part)
        assert part not in place.make().missing(ranges)
    assert not place.make().missing(ranges)
    assert fill(place.make(), None) == 0
    place.make().finish()
    assert place.seen() == FILES | SMALL


def test_a_single_file(place: Place) -> None:
    published(place.make(folder=False), {"": FILES["a"]})
    assert place.seen() == {"": FILES["a"]}


def test_a_hole_is_filled_by_the_one_that_publishes(place: Place) -> None:
    target = place.make()
    target.begin()
    for part in target.ranges(1)[1:]:
        fill(target, part)
    assert 1 <= fill(place.make(), None) <= 2  # the slabs of one range
    target.finish()
    assert place.seen() == FILES | SMALL


def test_publishing_twice_changes_nothing(place: Place) -> None:
    """The first driver died after it had published, and before it said so."""
    target = place.make()
    target.begin()
    for part in target.ranges(1):
        fill(target, part)
    fill(target, None)
    follower = place.make(overwrite=place.store is None)
    follower.begin()
    assert follower.missing(follower.ranges(1)) == []
    fill(follower, follower.ranges(1)[0])
    assert fill(follower, None) == 0
    follower.finish()
    assert place.seen() == FILES | SMALL


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_one_that_comes_when_another_has_published_makes_nothing_anew(folder: bool, place: Place) -> None:
    """It opened its sink before the other one ended: an error that passes, and never a target of zeros."""
    files = FILES if folder else {"": FILES["a"]}
    name = next(iter(files))
    target = place.make(folder=folder, overwrite=True)
    target.begin()
    for part in target.ranges(1):
        fill(target, part, files)
    late, last = target.sink(target.ranges(1)[0]), target.sink(None)
    fill(place.make(folder=folder, overwrite=True), None, files)
    for sink in (late, last):
        try:
            with sink:
                sink.create(name, len(FILES["a"]), [(0, 768)])
        except (OSError, RemoteError):
            pass
    place.make(folder=folder, overwrite=True).finish()
    assert place.seen() == (FILES | SMALL if folder else files)


def test_a_folder_that_cant_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", UNIT)
    place = Place(tmp_path, elsewhere=False)
    published(place.make())
    target = place.make("other", overwrite=True)
    target.begin()
    for part in target.ranges(1):
        fill(target, part, {name: bytes(len(data)) for name, data in FILES.items()})

    def fails(*_: object, **__: object) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr("weighbridge.io.sink.target.publish_folder", fails)
        with pytest.raises(PermissionError):
            fill(target, None)
    target.abort()
    assert place.seen() == FILES | SMALL


def test_giving_up_leaves_nothing(place: Place) -> None:
    target = place.make()
    target.begin()
    fill(target, target.ranges(1)[0])
    target.abort()
    assert place.seen() == {}


def test_a_range_that_fails_counts_for_nothing(place: Place) -> None:
    target = place.make()
    target.begin()
    part = target.ranges(1)[0]

    def fails() -> None:
        with target.sink(part) as sink:
            out = sink.create("a", len(FILES["a"]), [(0, 768)])
            out.write(0, FILES["a"][:50])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert part in place.make().missing([part])
    published(place.make())
    assert place.seen() == FILES | SMALL


def test_another_plan_replaces_the_target_only_where_it_may(place: Place) -> None:
    published(place.make())
    with pytest.raises(RefusedError, match="overwrite=True"):
        published(place.make("other"), {name: bytes(len(data)) for name, data in FILES.items()})
    place.make("other").abort()
    assert place.seen() == FILES | SMALL
    published(place.make("other", overwrite=True), {name: bytes(len(data)) for name, data in FILES.items()})
    assert place.seen() == {name: bytes(len(data)) for name, data in FILES.items()} | SMALL


def test_bytes_that_were_removed_by_hand_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", UNIT)
    place = Place(tmp_path, elsewhere=False)
    target = place.make()
    target.begin()
    for part in target.ranges(1):
        fill(target, part)
    (next(tmp_path.glob(".out.*.parts")) / "data" / "a").unlink()
    published(place.make())
    assert place.seen() == FILES | SMALL


def test_uploads_that_a_store_dropped_are_begun_again(tmp_path: Path) -> None:
    place = Place(tmp_path, elsewhere=True)
    assert place.store
    place.make().begin()
    fill(place.make(), place.make().ranges(1)[0])
    place.store.open.clear()  # a lifecycle rule, or another hand
    with pytest.raises(RemoteError):
        place.make().missing(place.make().ranges(1))
    published(place.make())
    assert place.seen() == FILES | SMALL


def test_of_two_that_begin_at_once_one_upload_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, elsewhere=True)
    assert place.store
    real, nested = Store.upload, [True]

    def upload(store: Store, name: str, mark: str, **how: object) -> object:
        if nested and nested.pop():
            place.make().begin()  # the other one is in between
            store.open, kept = [], store.open
            made = real(store, name, mark, **how)  # type: ignore[arg-type]
            store.open += kept
            return made
        return real(store, name, mark, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "upload", upload)
    place.make().begin()
    assert sorted(found.name for found in place.store.open) == ["out/a", "out/sub/b"]
    published(place.make())
    assert place.seen() == FILES | SMALL


def test_only_what_belongs_to_the_target_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", UNIT)
    other = tmp_path / f".out.more.{'0' * 12}.parts"
    other.mkdir()
    ours = tmp_path / f".out.{'0' * 12}.parts"
    ours.mkdir()
    published(Place(tmp_path, elsewhere=False).make())
    assert other.exists()
    assert not ours.exists()


@posix_only
def test_a_place_that_takes_no_parts_is_refused(tmp_path: Path) -> None:
    from weighbridge.io.location import RemotePath

    class Tree:
        title, sink = "nowhere", None

    write = ParallelWrite({"": 1}, {}, FolderRecords(tmp_path), "p")
    with pytest.raises(UsageError, match="takes no parts"):
        parallel_target(RemotePath.root("nowhere://x", Tree()) / "y", write)  # type: ignore[arg-type]


def test_ranges_are_whole_parts_and_cover_the_file() -> None:
    for size, least, unit in ((1, 1, 10), (100, 30, 10), (101, 25, 10), (10**13, 1 << 30, 1 << 24)):
        ranges = list(parallel.cut("x", size, least, unit))
        assert [r.start for r in ranges] == [0, *(r.end for r in ranges[:-1])]
        assert ranges[-1].end == size
        assert all(r.start % unit == 0 and r.end - r.start >= min(least, size - r.start) for r in ranges)


def test_a_folder_keeps_its_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", UNIT)
    published(Place(tmp_path, elsewhere=False).make())
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "out" / "a").stat().st_mode & 0o777 == 0o666 & ~mask
