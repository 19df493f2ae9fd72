"""Opens layouts of blobs (`containers/archive/oci.py`): folders on this machine, in archives and elsewhere. No link in
a layout is followed out of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from weighbridge.base.errors import FormatError
from weighbridge.base.words import plural
from weighbridge.io.filesystem import is_inside, own_folders
from weighbridge.io.location import TreePath, WrappedPath, open_source
from weighbridge.io.source import Source

if TYPE_CHECKING:
    from weighbridge.containers.archive.oci import LayoutFolder, LayoutListing, ListedModel
    from weighbridge.containers.archive.wrapped import WrappedTree


def find_layout(folder: Path) -> ModelLayout | None:
    """Returns the layout in a folder; None for any other folder."""
    has_blobs = "blobs" in folder.children() if isinstance(folder, TreePath) else (folder / "blobs").is_dir()
    if not has_blobs:
        return None
    from weighbridge.containers.archive import oci  # late: few folders are layouts

    opened = _open_folder(folder)
    marker = oci.marker_of(opened)
    return None if marker is None else ModelLayout(folder, opened, marker)


class ModelLayout:
    """A layout in a folder. `marker`: the file that lists its models."""

    def __init__(self, folder: Path, opened: LayoutFolder, marker: str) -> None:
        self._folder, self._opened, self._name = folder, opened, marker
        self.marker = folder / marker

    @cached_property
    def listing(self) -> LayoutListing:
        """The models in it. Raises FormatError, UnsupportedError."""
        from weighbridge.containers.archive import oci  # late, as above

        return oci.listing_of(self._opened, self._name)

    def only(self) -> ListedModel:
        """Returns the only model. Raises UsageError with the names of all if there are several."""
        return self.listing.only(self._opened)

    def named(self, parts: Sequence[str]) -> tuple[ListedModel, Sequence[str]] | None:
        """Returns the model whose name a path begins with, and the rest of the path; None without one."""
        models = {tuple(model.name.split("/")): model for model in self.listing.models}
        for count in range(len(parts), 0, -1):
            if (model := models.get(tuple(parts[:count]))) is not None:
                return model, parts[count:]
        return None

    def title_of(self, model: ListedModel) -> str:
        """Returns the path of a model as a user writes it."""
        return f"{self._opened.title}/{model.name}"

    def kind_of(self, model: ListedModel) -> str:
        """Returns the kind of a model, by its media types."""
        from weighbridge.containers.archive import oci  # late, as above

        return oci.kind_of(oci.manifest_of(self._opened, model))

    def tree(self, model: ListedModel, version: str) -> WrappedTree:
        """Returns the files of a model. Raises FormatError, UnsupportedError, RefusedError."""
        from weighbridge.containers.archive import oci, wrapped  # late, as above

        manifest = oci.manifest_of(self._opened, model)
        contents = oci.contents_of(self._opened, manifest)
        contents.left_out.extend(self.listing.left_out)
        blobs = tuple((self._folder / name, algo, hex) for name, algo, hex in oci.listed_blobs(model, manifest))
        around = self._folder.notes if isinstance(self._folder, WrappedPath) else ()
        files = plural(len(contents.files), "file")
        what = f"{self.listing.title}: {oci.kind_of(manifest)} with {files}"
        return wrapped.WrappedTree(contents, what, self.title_of(model), version, around, blobs)


def _open_folder(folder: Path) -> LayoutFolder:
    """Returns the files of a folder. FormatError for links that lead out of it."""
    from weighbridge.containers.archive.oci import LayoutFolder  # late, as above

    own = () if isinstance(folder, TreePath) else own_folders(str(folder))

    def place(name: str) -> Path:
        path = folder / name
        if own and not is_inside(str(path), own):
            raise FormatError("a blob is a link that leads out of the layout", path=str(folder), field=name)
        return path

    def size(name: str) -> int | None:
        path = place(name)
        return path.stat().st_size if path.is_file() else None

    def opened(name: str) -> Source:
        return open_source(place(name))

    return LayoutFolder(str(folder), size, opened)
