"""Digests of files, of tensors and of a model's weights, streamed and computed in threads.

A tensor's digest covers its type, shape and logical bytes (little-endian, C order), so it doesn't depend on the
container, byte order or view:

    H("weighbridge/tensor/1\\n" "BF16[128,64]\\n" bytes)

The digest of the weights covers the tensors' digests and names, sorted by name: H("digest  name\\n" ...). It changes
only with a tensor's name, type, shape or values."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import MIB
from weighbridge.base.options import Progress, accepting
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.io.digest import GIT, git_hasher, update
from weighbridge.io.location import open_source, path_text
from weighbridge.io.options import cores
from weighbridge.io.workers import Workers
from weighbridge.models.locate import DCP_DATA, DCP_METADATA
from weighbridge.models.model import data_elsewhere
from weighbridge.models.open import ALONE, open_model
from weighbridge.reports.links import check_links
from weighbridge.reports.options import FILE_ALGORITHMS, HashOptions

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_CHUNK: Final = 4 * MIB
_MOST_JOBS: Final = 8


class Hasher(Protocol):
    def update(self, data: Any, /) -> Any: ...

    def hexdigest(self) -> str: ...


def _external_hasher(module: str, name: str) -> Hasher:
    try:
        hasher: Hasher = getattr(import_module(module), name)()
    except ImportError:
        raise UnsupportedError(f"{module} is not installed", hint="pip install 'weighbridge[hash]'") from None
    return hasher


#: Algorithms for tensors; those outside `hashlib` need the extra `hash`.
ALGORITHMS: Final[Mapping[str, Callable[[], Hasher]]] = MappingProxyType(
    {
        "sha256": hashlib.sha256,
        "sha1": lambda: hashlib.sha1(usedforsecurity=False),
        "sha512": hashlib.sha512,
        "md5": lambda: hashlib.md5(usedforsecurity=False),
        "blake2b": hashlib.blake2b,
        "blake3": partial(_external_hasher, "blake3", "blake3"),
        "xxh3": partial(_external_hasher, "xxhash", "xxh3_128"),
        "xxh64": partial(_external_hasher, "xxhash", "xxh64"),
    }
)
#: Algorithms for files; git's digest includes the file's size.
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
    """The digest of a model's weights, and of each tensor."""

    path: str
    algo: str
    digest: str
    tensors: tuple[TensorDigest, ...]


@dataclass(frozen=True, repr=False)
class HashReport:
    """`notes`: files whose data is in other files, which aren't hashed."""

    files: tuple[FileDigest, ...] = ()
    models: tuple[ModelDigest, ...] = ()
    notes: tuple[str, ...] = ()
    schema: str = "weighbridge/hash/1"

    def __repr__(self) -> str:
        return f"<HashReport {plural(len(self.files), 'file')}, {plural(len(self.models), 'model')}>"


@accepting(HashOptions)
def hash(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], options: HashOptions) -> HashReport:
    """Computes the digests of the files at `paths` and in folders. `tensors`: computes those of each model's tensors
    and weights instead, which don't depend on the container. `progress(done, total, name)`: bytes, for each model
    separately."""
    algorithms = [options.algo] if isinstance(options.algo, str) else options.algo
    if len(algorithms) != 1:
        raise UsageError("only one digest is computed at a time")
    algo, jobs, progress = algorithms[0], options.jobs, options.progress
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    if options.tensors:
        return HashReport(models=tuple(hash_model(p, algo=algo, jobs=jobs, progress=progress) for p in paths))
    files = [file for path in paths for file in files_of(resolve_path(path))]
    tally = Tally(sum(file.stat().st_size for file in files), progress)
    digests = tuple(map_parallel(lambda f: hash_file(f, algo, tally.of(f.name)), files, jobs))
    return HashReport(digests, notes=tuple(not_covered(files)))


def not_covered(files: Collection[Path]) -> Iterator[str]:
    """Yields a note on each file whose data is in other files that aren't among these."""
    for file in files:
        if missing := [path.name for path in data_elsewhere(file) if path not in files]:
            names = ", ".join(missing[:4])
            yield f"{path_text(file)} has its data in other files, which its digest doesn't cover: {names}"


class Tally:
    """Sums the bytes read by all threads, and reports them to `progress` from one thread at a time."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total, self.progress = total, progress
        self._done, self._lock = 0, threading.Lock()

    def of(self, name: str) -> Callable[[int], None]:
        """Returns a callback for the number of bytes read of one item."""
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
    """Returns the file, or all files in a folder except hidden ones and those in hidden folders, sorted. The list of a
    distributed checkpoint has a hidden name and counts. Raises LinkOutsideError for a training checkpoint with a link
    out of its folder."""
    if not path.is_dir():
        return [path]
    check_links(path)
    files = [p for p in path.rglob("*") if p.is_file()]
    lists = {p.with_name(DCP_METADATA) for p in files if p.name.endswith(DCP_DATA)}
    hidden = (any(x.startswith(".") for x in (p.parent if p in lists else p).relative_to(path).parts) for p in files)
    return sorted(p for p, is_hidden in zip(files, hidden, strict=True) if not is_hidden)


def map_parallel(function: Callable[[Any], Any], items: Iterable[Any], jobs: int | None) -> list[Any]:
    with Workers(jobs or min(cores(), _MOST_JOBS), "hash") as pool:
        return list(pool.map(function, items))


def check_algorithm(algo: str, algorithms: Iterable[str] = FILE_ALGORITHMS) -> None:
    if algo not in algorithms:
        raise UsageError(f"unknown digest {algo!r}", hint=f"choose one of {', '.join(algorithms)}")


# ------------------------------------------------------------------------------------------------ files


def hash_file(
    path: str | os.PathLike[str], algo: str = "sha256", read: Callable[[int], object] | None = None
) -> FileDigest:
    """Computes a file's digest, 4 MiB at a time. `read` is called with the number of bytes read."""
    check_algorithm(algo)
    with open_source(resolve_path(path)) as source:
        hasher = git_hasher(source.size) if algo == GIT else ALGORITHMS[algo]()
        update(hasher, source, read)
        return FileDigest(path_text(path), algo, hasher.hexdigest(), source.size)


def hash_range(path: Path, algo: str, start: int, end: int, read: Callable[[int], object] | None = None) -> str:
    """Computes the digest of the bytes `start` to `end` of a file, in hex."""
    with open_source(path) as source:
        hasher = ALGORITHMS[algo]()
        update(hasher, source.window(start, end - start), read)
        return hasher.hexdigest()


# ------------------------------------------------------------------------------------------------ tensors


def hash_model(
    path: str | os.PathLike[str], *, algo: str = "sha256", jobs: int | None = None, progress: Progress | None = None
) -> ModelDigest:
    """Computes the digests of the weights at `path` and of each tensor."""
    check_algorithm(algo, ALGORITHMS)
    with open_model(path, ALONE) as model:
        tally = Tally(sum(node.spec.nbytes for node in model.stored.values()), progress)
        items = model.stored.items()
        digests = map_parallel(lambda item: _hash_tensor(item[0], item[1], algo, tally.of(item[0])), items, jobs)
    whole = ALGORITHMS[algo]()
    for tensor in sorted(digests, key=lambda t: t.name):
        whole.update(f"{tensor.digest}  {tensor.name}\n".encode("utf-8", "surrogatepass"))
    return ModelDigest(path_text(path), algo, whole.hexdigest(), tuple(digests))


def _hash_tensor(name: str, node: Node, algo: str, read: Callable[[int], None]) -> TensorDigest:
    spec, done = node.spec, 0
    hasher = ALGORITHMS[algo]()
    hasher.update(f"weighbridge/tensor/1\n{spec.dtype}[{','.join(map(str, spec.shape))}]\n".encode())
    for part in data_of(node):
        hasher.update(part)
        done += memoryview(part).nbytes
        read(done)
    return TensorDigest(name, spec.dtype.name, spec.shape, hasher.hexdigest(), spec.nbytes)


def data_of(node: Node) -> Iterator[Any]:
    """Yields a tensor's logical bytes, a few rows at a time."""
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
    """Returns the lines that llama-gguf-hash prints: digests of each tensor's bytes, and of all bytes in file order. It
    works for every container, not only GGUF."""
    for algo in algorithms:
        check_algorithm(algo, GGUF_HASHES)
    lines: list[DigestLine] = []
    with open_model(path, ALONE) as model:
        whole = {algo: ALGORITHMS["sha1" if algo == "uuid" else algo]() for algo in algorithms}
        if "uuid" in whole:
            whole["uuid"].update(_LLAMA_CPP.bytes)
        for name, node in model.stored.items():
            each = {algo: ALGORITHMS[algo]() for algo in algorithms if algo != "uuid"}
            for part in data_of(node):
                for hasher in (*whole.values(), *each.values()):
                    hasher.update(part)
            lines += [DigestLine(algo, h.hexdigest(), f"{path_text(path)}:{name}") for algo, h in each.items()]
    for algo, hasher in whole.items():
        digest = hasher.hexdigest()
        if algo == "uuid":
            digest = str(uuid.UUID(bytes=bytes.fromhex(digest)[:16], version=5))
        lines.append(DigestLine(algo, digest, path_text(path)))
    return lines
