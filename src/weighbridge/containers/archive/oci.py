"""Models as blobs named by their digests, and a manifest that lists them: OCI image layouts, and the store and the
archives of Docker's model runner. Docker's models, ModelKits of KitOps, ModelPack, models of Ollama, artifacts of ORAS
and images of containers are manifests with different media types.

    oci-layout, index.json       an OCI image layout; the index lists manifests, and other indexes
    models.json, manifests/      the store of Docker's model runner
    manifest.json                an archive of Docker's model runner with one manifest
    blobs/sha256/<hex>           manifests, configs and layers

A layer is a file, named by an annotation or else by its media type, or a tar with files. The layers of an image hide
files of those below them. Every size is compared with the manifest's before a blob is read; `verify` compares digests.

References: opencontainers/image-spec 1.1, image-layout.md and layer.md; docker/model-runner 642c721, pkg/distribution;
kitops-ml/kitops a041892, pkg/lib/constants/mediaType.go; modelpack/model-spec d78bf32, docs/spec.md; oras.land's
annotations of packed folders.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import MANIFEST, MANIFEST_DEPTH, SNIFF_HEAD, WRAPPED_DEPTH
from weighbridge.base.words import plural
from weighbridge.containers.archive import tar
from weighbridge.containers.archive.wrapped import WRAPPERS, WrappedContents, WrappedFile, check_count, member_name
from weighbridge.io.decompress import WITH_MAGIC, codec_of
from weighbridge.io.digest import BlobManifest, Descriptor, decode, parse_digest, parse_index, parse_manifest
from weighbridge.io.location import is_remote
from weighbridge.io.source import Source

_DOCKER, _CNCF, _OLLAMA = "application/vnd.docker.ai.", "application/vnd.cncf.model.", "application/vnd.ollama.image."
#: Media type -> the name of an untitled layer: that under which llama.cpp's and transformers' loaders know the file.
NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        f"{_DOCKER}gguf.v3": "model.gguf",
        f"{_DOCKER}model.file.v1+gguf": "model.gguf",
        f"{_DOCKER}safetensors": "model.safetensors",
        f"{_DOCKER}dduf": "model.dduf",
        f"{_DOCKER}mmproj": "mmproj.gguf",
        f"{_DOCKER}chat.template.jinja": "chat_template.jinja",
        f"{_DOCKER}license": "LICENSE",
        f"{_CNCF}weight.v1.gguf": "model.gguf",
        f"{_CNCF}weight.v1.safetensors": "model.safetensors",
        f"{_OLLAMA}model": "model.gguf",
        f"{_OLLAMA}projector": "mmproj.gguf",
        f"{_OLLAMA}adapter": "adapter.gguf",
        f"{_OLLAMA}license": "LICENSE",
        **{f"{_OLLAMA}{part}": part for part in ("template", "system", "params", "messages")},
    }
)
#: The annotations that name a layer's file, the first that is there: ModelPack's, its older name, OCI's.
TITLES: Final = ("org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title")
#: A folder that ORAS packed.
_UNPACK: Final = "io.deis.oras.content.unpack"
_IMAGE: Final = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
_TAR: Final = re.compile(r"\btar\b")
_EMPTY: Final = "application/vnd.oci.empty.v1+json"
#: Layers without parts of a model, which are left out: data sets.
_DATA_SETS: Final = ("application/vnd.kitops.modelkit.dataset.", f"{_CNCF}dataset.")
_INDEXES: Final = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)
_REF: Final = ("org.opencontainers.image.ref.name", "io.containerd.image.name")
_ATTESTATION: Final = "vnd.docker.reference.type"
# Whiteouts of image layers: one hides a file, the other all entries of a folder.
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


class LayoutFolder(NamedTuple):
    """The files of a layout: functions that return a file's bytes (None if it is missing) and open it by its name.
    `title`: the layout's path."""

    title: str
    size: Callable[[str], int | None]
    open: Callable[[str], Source]

    def read(self, name: str) -> bytes:
        """Returns a small file. FormatError if it is too large."""
        with self.open(name) as source:
            if source.size > MANIFEST:
                raise FormatError("the manifest is too large", path=source.name, expected=f"at most {MANIFEST} bytes")
            return source.read(0, source.size)

    def check(self, name: str, size: int) -> str:
        """Returns the name of a blob. FormatError if it is missing, or of another size than the manifest declares."""
        actual = self.size(name)
        if actual is None:
            raise FormatError("a blob is missing", path=self.title, field=name, hint="copy the layout again")
        if actual != size:
            raise FormatError("a blob's size isn't the one in the manifest", path=self.title, field=name,
                              expected=f"{size} bytes", found=actual, hint="copy the layout again")  # fmt: skip
        return name


class ListedModel(NamedTuple):
    """A manifest that a layout lists. `name`: its reference, else a part of its digest. `path`: its file; `digest`:
    its algorithm and hex digits."""

    name: str
    path: str
    digest: tuple[str, str]
    size: int


class LayoutListing(NamedTuple):
    """The manifests of a layout. `left_out`: those that aren't of models, each with its kind."""

    title: str
    models: tuple[ListedModel, ...]
    left_out: tuple[str, ...]

    def only(self, folder: LayoutFolder) -> ListedModel:
        """Returns the only model, without those that belong to another one. Raises UsageError with the names if there
        are several, FormatError if there is none."""
        models = {model.digest: model for model in reversed(self.models)}
        if len(models) > 1:
            models = {key: model for key, model in models.items() if not manifest_of(folder, model).is_attached}
        if not models:
            raise FormatError("the layout lists no manifest of a model", path=folder.title)
        if len(models) > 1:
            names = [f"{folder.title}/{name}" for name in sorted(model.name for model in models.values())]
            step = "fetch it first (wb fetch)" if is_remote(folder.title) else "continue the path with one of them"
            hint = f"{step}: {', '.join(names[:8])}"
            raise UsageError(f"{folder.title} has {plural(len(models), 'model')}", hint=hint)
        return next(iter(models.values()))


def blob_path(algo: str, hex: str) -> str:
    """Returns the name of a blob in a layout."""
    return f"blobs/{algo}/{hex}"


def manifest_of(folder: LayoutFolder, model: ListedModel) -> BlobManifest:
    """Reads the manifest of a model. Raises FormatError, UnsupportedError."""
    return parse_manifest(folder.read(folder.check(model.path, model.size)), f"{folder.title}/{model.path}")


# ---- the lists of manifests ----


class _Indexes:
    """Collects the manifests of an index and of those in it, each index parsed once."""

    def __init__(self, folder: LayoutFolder) -> None:
        self.folder = folder
        self.parsed: dict[str, Sequence[Descriptor]] = {}
        self.found: list[tuple[str, Descriptor]] = []
        self.left_out: list[str] = []
        self.count = 0

    def walk(self, path: str, name: str = "", above: tuple[str, ...] = ()) -> None:
        """Collects those of the index in a file. `name`: the index's reference; `above`: the indexes around it."""
        where = f"{self.folder.title}/{path}"
        if path in above:
            raise FormatError("an index contains itself", path=where)
        if len(above) >= MANIFEST_DEPTH:
            raise FormatError(f"more than {MANIFEST_DEPTH} indexes in each other", path=where)
        if path not in self.parsed:
            self.parsed[path] = parse_index(self.folder.read(path), where)
        for blob in self.parsed[path]:
            check_count(where, self.count)
            self.count += 1
            ref = next((blob.annotations[key] for key in _REF if blob.annotations.get(key)), "")
            label = "/".join(part for part in (name, ref or (name and blob.platform)) if part)
            if _ATTESTATION in blob.annotations:
                self.left_out.append(f"{blob.short} ({blob.annotations[_ATTESTATION]})")
            elif blob.media in _INDEXES:
                inner = self.folder.check(blob_path(blob.algo, blob.hex), blob.size)
                self.walk(inner, label, (*above, path))
            else:
                self.found.append((_reference(label or blob.short, where), blob))


def _reference(text: str, where: str) -> str:
    """Returns the name of a model as the end of a path. FormatError if it leads out of the layout."""
    member_name(text.replace(":", ""), where)
    return posixpath.normpath(text)


def _image_layout(folder: LayoutFolder) -> LayoutListing:
    version = decode(folder.read("oci-layout"), f"{folder.title}/oci-layout").get("imageLayoutVersion")
    if version != "1.0.0":
        raise UnsupportedError(f"{folder.title}: version {version!r} of OCI image layouts", hint="supported: 1.0.0")
    indexes = _Indexes(folder)
    indexes.walk("index.json")
    blobs = dict.fromkeys((name, blob.algo, blob.hex, blob.size) for name, blob in indexes.found)
    counts = Counter(name for name, *_ in blobs)
    models = [
        ListedModel(name if counts[name] == 1 else f"{algo}-{hex[:12]}", blob_path(algo, hex), (algo, hex), size)
        for name, algo, hex, size in blobs
    ]
    return LayoutListing("an OCI image layout", tuple(models), tuple(indexes.left_out))


def _docker_store(folder: LayoutFolder) -> LayoutListing:
    where = f"{folder.title}/models.json"
    rows = decode(folder.read("models.json"), where).get("models")
    models = []
    for row in rows if isinstance(rows, list) else ():
        row = row if isinstance(row, dict) else {}
        algo, hex = parse_digest(str(row.get("id")), where)
        path, tags = f"manifests/{algo}/{hex}", row.get("tags")
        size = folder.size(path)
        if size is None:
            raise FormatError("a manifest is missing", path=folder.title, field=path)
        for tag in tags if isinstance(tags, list) and tags else [f"{algo}-{hex[:12]}"]:
            models.append(ListedModel(_reference(str(tag), where), path, (algo, hex), size))
    return LayoutListing("a store of Docker's model runner", tuple(models), ())


def _docker_archive(folder: LayoutFolder) -> LayoutListing:
    raw = folder.read("manifest.json")
    digest = hashlib.sha256(raw).hexdigest()
    model = ListedModel(f"sha256-{digest[:12]}", "manifest.json", ("sha256", digest), len(raw))
    return LayoutListing("an archive of Docker's model runner", (model,), ())


#: The files that mark a layout, and the function that lists its manifests. Archives of images by older versions of
#: Docker have a manifest.json too, but no folder of blobs.
_LAYOUTS: Final[Sequence[tuple[tuple[str, ...], Callable[[LayoutFolder], LayoutListing]]]] = (
    (("oci-layout", "index.json"), _image_layout),
    (("models.json", "layout.json"), _docker_store),
    (("manifest.json",), _docker_archive),
)


def marker_of(folder: LayoutFolder) -> str | None:
    """Returns the file that lists the manifests of a folder with blobs; None if it isn't a layout."""
    return next((names[-1] if names[0] == "oci-layout" else names[0] for names, _ in _LAYOUTS
                 if all(folder.size(name) is not None for name in names)), None)  # fmt: skip


def listing_of(folder: LayoutFolder, marker: str) -> LayoutListing:
    """Lists the manifests of a layout. Raises FormatError, UnsupportedError."""
    return next(read for names, read in _LAYOUTS if marker in names)(folder)


# ---- the files of a manifest ----


def contents_of(folder: LayoutFolder, manifest: BlobManifest) -> WrappedContents:
    """Returns the files of all layers. Layers with a compressed tar are decoded. Raises FormatError, UnsupportedError,
    RefusedError."""
    contents, hidden = WrappedContents({}, []), set[str]()
    owners: dict[str, str] = {}
    names = _untitled(manifest.layers)
    for layer in reversed(manifest.layers):  # the upper layers of an image hide files of the lower ones
        if layer.media == _EMPTY:
            continue
        if layer.media.startswith(_DATA_SETS):
            contents.left_out.append(f"{layer.short} (a data set of {layer.size:,} bytes)")
            continue
        if layer.media.endswith("+encrypted"):
            raise UnsupportedError(f"{folder.title}: layer {layer.short} is encrypted", hint="decrypt it first")
        files = _layer_files(folder, layer, names, contents.left_out)
        new = set[str]()
        for name, file in files.items():
            above, slash, base = name.rpartition("/")
            if _is_file_system(layer) and base.startswith(_WHITEOUT):
                new.add(above if base == _OPAQUE else f"{above}{slash}{base[len(_WHITEOUT) :]}")
            elif _is_file_system(layer) and (name in contents.files or _is_hidden(name, hidden)):
                continue
            elif owners.setdefault(name, layer.digest) != layer.digest:
                raise FormatError("two layers have a file of one name", path=folder.title, field=repr(name))
            else:
                check_count(folder.title, len(contents.files))
                contents.files[name] = file
                new.add(name)
        hidden |= new
    return contents


def _is_file_system(layer: Descriptor) -> bool:
    """Whether a layer is a part of an image's file system; ORAS gives its type to any file, with a title."""
    return layer.media.startswith(_IMAGE) and not any(key in layer.annotations for key in (*TITLES, _UNPACK))


def _is_hidden(name: str, hidden: set[str]) -> bool:
    """Whether an upper layer hides a file or one of the folders above it."""
    parts = name.split("/")
    return any("/".join(parts[:count]) in hidden for count in range(len(parts) + 1))


def _untitled(layers: Iterable[Descriptor]) -> dict[str, str]:
    """Returns the names of layers without a title, by digest."""
    untitled = {layer.digest: layer for layer in layers if not any(key in layer.annotations for key in TITLES)}
    counts = Counter(NAMES.get(layer.media, layer.short) for layer in untitled.values())
    numbers: Counter[str] = Counter()
    names: dict[str, str] = {}
    for digest, layer in untitled.items():
        name = NAMES.get(layer.media, layer.short)
        numbers[name] += 1
        stem, dot, suffix = name.partition(".")
        several = f"{stem}-{numbers[name]:05d}-of-{counts[name]:05d}{dot}{suffix}"
        names[digest] = several if counts[name] > 1 else name
    return names


def _layer_files(
    folder: LayoutFolder, layer: Descriptor, names: Mapping[str, str], left_out: list[str]
) -> Mapping[str, WrappedFile]:
    """Returns the files of a layer, and adds those that are left out."""
    path = folder.check(blob_path(layer.algo, layer.hex), layer.size)
    title = next((layer.annotations[key] for key in TITLES if key in layer.annotations), "")
    packed = layer.annotations.get(_UNPACK) == "true"
    declared = _TAR.search(layer.media) and (not layer.media.startswith(_IMAGE) or _is_file_system(layer))
    if declared or packed:
        inside = _unpacked(folder.open(path))
        if inside is not None:
            left_out += inside.left_out
            return inside.files
        if not title:
            raise FormatError("a layer isn't the tar that its media type declares", path=folder.title, field=path,
                              found=layer.media)  # fmt: skip
    name = member_name(title or names[layer.digest], folder.title)
    return {name: WrappedFile(layer.size, lambda: folder.open(path))}


def _unpacked(source: Source) -> WrappedContents | None:
    """Returns the files of a tar, which may be compressed; None if it is something else."""
    for _ in range(WRAPPED_DEPTH):
        head = source.head(SNIFF_HEAD)
        if tar.begins(source):
            return WRAPPERS["tar"](source)
        if source.size and not any(head) and not source.size % tar.BLOCK:  # a tar without members
            return WrappedContents({}, [])
        if (codec := codec_of(head)) not in WITH_MAGIC:
            break
        (content,) = WRAPPERS[str(codec)](source).files.values()
        source = content.open()
    source.close()
    return None


def listed_blobs(model: ListedModel, manifest: BlobManifest) -> Iterator[tuple[str, str, str]]:
    """Yields the name, the algorithm and the hex digits of each blob that a model consists of."""
    yield model.path, *model.digest
    for blob in dict.fromkeys((blob.algo, blob.hex) for blob in (manifest.config, *manifest.layers)):
        yield blob_path(*blob), *blob


def kind_of(manifest: BlobManifest) -> str:
    """The kind of a model, by its media types."""
    types = [manifest.kind, *(layer.media for layer in manifest.layers)]
    return next((title for start, title in _KINDS if any(media.startswith(start) for media in types)), "artifact")


_KINDS: Final = (
    (f"{_DOCKER}model.", "model of Docker's model runner"),
    ("application/vnd.kitops.modelkit.", "ModelKit of KitOps"),
    (_CNCF, "ModelPack"),
    (_OLLAMA, "model of Ollama"),
    ("application/vnd.oci.image.config.", "container image"),
    ("application/vnd.docker.container.image.", "container image"),
)
