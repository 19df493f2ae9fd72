"""Digests of files, of tensors and of a model's weights, streamed and in threads.

A tensor's digest is that of its type, its shape and its logical bytes (little-endian, in C order), so it is the same in
every container, order and view:

    H("weighbridge/tensor/1\\n" "BF16[128,64]\\n" bytes)

The digest of the weights is that of the tensors' digests with their names, sorted by name: H("digest  name\\n" ...). It
changes when a tensor, a name, a type or a shape does, and with nothing else.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.io.digest import GIT, git_hasher, update
from weighbridge.io.location import open_source
from weighbridge.models.open import ALONE, open_model

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

Progress = Callable[[int, int, str], None]
_CHUNK: Final = 4 * MIB
_MOST_JOBS: Final = 8


class Hasher(Protocol):
    def update(self, data: Any, /) -> Any: ...

    def hexdigest(self) -> str: ...


def _package(module: str, name: str) -> Callable[[], Hasher]:
    def make() -> Hasher:
        try:
            found = getattr(import_module(module), name)
        except ImportError:
            raise UnsupportedError(f"{module} is not installed", hint="pip install 'weighbridge[hash]'") from None
        made: Hasher = found()
        return made

    return make


#: Algorithms for files; those of `hashlib` need nothing, the others the extra `hash`.
ALGORITHMS: Final[Mapping[str, Callable[[], Hasher]]] = MappingProxyType(
    {
        "sha256": hashlib.sha256,
        "sha1": lambda: hashlib.sha1(usedforsecurity=False),
        "sha512": hashlib.sha512,
        "md5": lambda: hashlib.md5(usedforsecurity=False),
        "blake2b": hashlib.blake2b,
        "blake3": _package("blake3", "blake3"),
        "xxh3": _package("xxhash", "xxh3_128"),
        "xxh64": _package("xxhash", "xxh64"),
    }
)
#: Algorithms of files: git's begins with the file's size.
FILE_ALGORITHMS: Final = (*ALGORITHMS, GIT)
# llama-gguf-hash's UUIDv5: SHA-1 of this namespace and the tensors' bytes.
_LLAMA_CPP: Final = uuid.UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")
GGUF_HASHES: Final = ("xxh64", "sha1", "sha256", "uuid")


@dataclass(frozen=True)
class FileDigest:
    path: str
    algo: str
    digest: str
    bytes: int


@dataclass(frozen=True)
class TensorDigest:
    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    bytes: int


@dataclass(frozen=True)
class ModelDigest:
    """A model's weights: `digest` of all, and each tensor's."""

    path: str
    algo: str
    digest: str
    tensors: tuple[TensorDigest, ...]


@dataclass(frozen=True, repr=False)
class HashReport:
    files: tuple[FileDigest, ...] = ()
    models: tuple[ModelDigest, ...] = ()
    schema: str = "weighbridge/hash/1"

    def __repr__(self) -> str:
        return f"<HashReport {len(self.files):,} files, {len(self.models):,} models>"


def hash(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    algo: str = "sha256",
    tensors: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> HashReport:
    """Digests of the files at `paths`, those in folders included; with `tensors` of each model's tensors, the same in
    every container, and of all its weights. `progress(done, total, name)`: bytes, of each model by itself."""
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    if tensors:
        return HashReport(models=tuple(hash_model(p, algo=algo, jobs=jobs, progress=progress) for p in paths))
    found = [file for path in paths for file in files_of(resolve_path(path))]
    tally = _Tally(sum(file.stat().st_size for file in found), progress)
    return HashReport(files=tuple(_parallel(lambda f: hash_file(f, algo, tally.of(f.name)), found, jobs)))


class _Tally:
    """The bytes that all threads have read, reported to `progress` by one at a time."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress = total, progress
        self._done, self._lock = 0, threading.Lock()

    def of(self, name: str) -> Callable[[int], None]:
        """What is called with the bytes that have been read of one item."""
        before = 0

        def read(done: int) -> None:
            nonlocal before
            with self._lock:
                self._done += done - before
                before = done
                if self.progress is not None:
                    self.progress(self._done, self.total, name)

        return read


def files_of(path: Path) -> list[Path]:
    """The file itself, or all files of a folder, hidden ones and folders left out, sorted."""
    if not path.is_dir():
        return [path]
    inside = (p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    return sorted(inside)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _parallel(act: Callable[[Any], Any], items: Iterable[Any], jobs: int | None) -> list[Any]:
    with ThreadPoolExecutor(jobs or min(os.cpu_count() or 1, _MOST_JOBS), "weighbridge-hash") as pool:
        return list(pool.map(act, items))


def check_algorithm(algo: str, known: Iterable[str] = FILE_ALGORITHMS) -> None:
    if algo not in known:
        raise UsageError(f"no digest is called {algo!r}", hint=f"known: {', '.join(known)}")


# ------------------------------------------------------------------------------------------------ files


def hash_file(
    path: str | os.PathLike[str], algo: str = "sha256", read: Callable[[int], object] | None = None
) -> FileDigest:
    """A whole file's digest, read once, 4 MiB at a time. `read` is called with the bytes that have been."""
    check_algorithm(algo)
    with open_source(resolve_path(path)) as source:
        made = git_hasher(source.size) if algo == GIT else ALGORITHMS[algo]()
        update(made, source, read)
        return FileDigest(os.fspath(path), algo, made.hexdigest(), source.size)


# ------------------------------------------------------------------------------------------------ tensors


def hash_model(
    path: str | os.PathLike[str], *, algo: str = "sha256", jobs: int | None = None, progress: Progress | None = None
) -> ModelDigest:
    """The weights at `path`: each tensor's digest and that of all of them."""
    check_algorithm(algo, ALGORITHMS)
    with open_model(path, ALONE) as model:
        tally = _Tally(sum(node.spec.nbytes for node in model.stored.values()), progress)
        found = _parallel(lambda item: _tensor(item[0], item[1], algo, tally.of(item[0])), model.stored.items(), jobs)
    whole = ALGORITHMS[algo]()
    for tensor in sorted(found, key=lambda t: t.name):
        whole.update(f"{tensor.digest}  {tensor.name}\n".encode("utf-8", "surrogatepass"))
    return ModelDigest(os.fspath(path), algo, whole.hexdigest(), tuple(found))


def _tensor(name: str, node: Node, algo: str, read: Callable[[int], None]) -> TensorDigest:
    spec, done = node.spec, 0
    made = ALGORITHMS[algo]()
    made.update(f"weighbridge/tensor/1\n{spec.dtype}[{','.join(map(str, spec.shape))}]\n".encode())
    for part in data_of(node):
        made.update(part)
        done += memoryview(part).nbytes
        read(done)
    return TensorDigest(name, spec.dtype.name, spec.shape, made.hexdigest(), spec.nbytes)


def data_of(node: Node) -> Iterator[Any]:
    """A tensor's logical bytes, some rows at a time."""
    width = node.spec.row_bytes
    rows = max(1, min(node.spec.rows, _CHUNK // max(width, 1)))
    for lo in range(0, node.spec.rows, rows):
        yield node.read(lo, min(lo + rows, node.spec.rows)).data


# ------------------------------------------------------------------------------------------------ llama-gguf-hash


@dataclass(frozen=True)
class DigestLine:
    """A line of llama-gguf-hash: an algorithm, a digest, a file or `file:tensor`."""

    algo: str
    digest: str
    name: str

    def __str__(self) -> str:
        return f"{self.algo:<8}  {self.digest}  {self.name}"


def gguf_hash(path: str | os.PathLike[str], algorithms: Sequence[str] = ("sha256",)) -> list[DigestLine]:
    """The lines that llama-gguf-hash prints: of the bytes of each tensor alone, and of all in the file's order.
    Whatever the container: a safetensors file has such digests too."""
    for algo in algorithms:
        check_algorithm(algo, GGUF_HASHES)
    lines: list[DigestLine] = []
    with open_model(path, ALONE) as model:
        whole = {algo: _of_gguf(algo) for algo in algorithms}
        for name, node in model.stored.items():
            each = {algo: _of_gguf(algo) for algo in algorithms if algo != "uuid"}
            for part in data_of(node):
                for made in (*whole.values(), *each.values()):
                    made.update(part)
            lines += [DigestLine(algo, made.hexdigest(), f"{os.fspath(path)}:{name}") for algo, made in each.items()]
    lines += [DigestLine(algo, _final(algo, made), os.fspath(path)) for algo, made in whole.items()]
    return lines


def _of_gguf(algo: str) -> Hasher:
    made = ALGORITHMS["sha1" if algo == "uuid" else algo]()
    if algo == "uuid":
        made.update(_LLAMA_CPP.bytes)
    return made


def _final(algo: str, made: Hasher) -> str:
    digest = made.hexdigest()
    return str(uuid.UUID(bytes=bytes.fromhex(digest)[:16], version=5)) if algo == "uuid" else digest
