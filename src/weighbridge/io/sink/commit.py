"""A target elsewhere that takes whole files and shows them by one act: they are staged on this machine first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from weighbridge.io.sink.files import OutFile
from weighbridge.io.sink.target import Sink


class CommitStore(Protocol):
    """A store that publishes a set of files atomically."""

    def commit(self, files: Mapping[str, Path], *, replace: bool) -> object:
        """Uploads each file under its name, then publishes all at once. Raises RefusedError if one of the names was
        taken meanwhile, unless `replace`."""


class CommitSink(Sink):
    """Stages files next to the path `stage`, with the interface of `Sink`; exiting without an error commits them to the
    store under the name `prefix`. With `key`, a failed commit keeps them for the next run."""

    def __init__(
        self,
        store: CommitStore,
        prefix: str,
        stage: Path,
        *,
        folder: bool,
        size: int,
        overwrite: bool,
        key: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(stage, folder=True, size=size, overwrite=overwrite, parents=True, key=key)
        self._store, self._prefix, self._single, self._replace = store, prefix, not folder, overwrite
        self._names: dict[str, str] = {}

    def create(
        self, name: str, size: int, spans: Iterable[tuple[int, int]] | None = None, *, late: bool = False
    ) -> OutFile:
        """A file of `size` bytes, as `Sink.create`."""
        path = self._prefix if self._single else f"{self._prefix}/{name}".strip("/")
        local = path.rpartition("/")[2] if self._single else name
        self._names[path] = local
        return super().create(local, size, spans, late=late)

    def _publish(self) -> None:
        self._note()
        for out in self._open:
            out.sync_data()
        self._store.commit({path: self._stage / local for path, local in self._names.items()}, replace=self._replace)
