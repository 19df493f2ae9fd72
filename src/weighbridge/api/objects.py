"""The two public objects: a lazily read tensor, and a model as a mapping of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, cast

from weighbridge.api.keywords import Path, SourceKeywords
from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import dtype as _dtype
from weighbridge.base.errors import UsageError
from weighbridge.models.names import tensors_named
from weighbridge.models.open import SourceOptions, open_model

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from weighbridge.adapters.cuda import Devices
    from weighbridge.containers.base import Entry
    from weighbridge.models.checkpoint import Checkpoint
    from weighbridge.tensors.nodes import LogicalTensor, Node

Names = Literal["stored", "logical", "canonical", "hf", "gguf", "mlx", "akunu"]
_AS_USUAL: Final = SourceOptions()


def open(path: Path, *, names: Names = "logical", **options: Unpack[SourceKeywords]) -> Model:
    """The model at `path` (a file, a folder, an index, one file of a numbered or tensor-parallel set) as a mapping of
    names to tensors.

    `names`: "logical" keeps the file's names, several stored tensors that are one being one (MLX's weight, scales,
    biases); "stored" keeps those apart; "canonical" gives the same names whatever the file; "hf", "gguf", "mlx" another
    dialect's, "akunu" that engine's. `options`: fields of `SourceOptions`.
    Errors: FormatError, UnsupportedError, OSError.
    """
    source = SourceOptions(**options) if options else _AS_USUAL
    return Model(open_model(path, source), names, source)


class Tensor:
    """One lazily read tensor: `numpy()`, `torch()`, `[rows]`."""

    __slots__ = ("_cache", "_entry", "_model", "_nodes", "name")

    def __init__(
        self,
        name: str,
        nodes: Mapping[str, LogicalTensor],
        cache: dict[Any, Any] | None = None,
        entry: Entry | None = None,
        model: Model | None = None,
    ) -> None:
        self.name, self._nodes, self._cache, self._model = name, nodes, cache, model
        self._entry = entry  # a tensor of the file itself is listed from its header entry, without a node

    @property
    def node(self) -> LogicalTensor:
        """How it is read."""
        return self._nodes[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._entry.shape if self._entry is not None else self.node.spec.shape

    @property
    def dtype(self) -> str:
        """Its number type by name; the packing's for a tensor stored in several parts."""
        if self._entry is not None:
            return self._entry.dtype.name
        packing = getattr(self.node, "packing", None)
        return f"{packing.name}-{packing.bits}" if packing is not None else self.node.spec.dtype.name

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        members = getattr(self.node, "members", None)
        return sum(m.spec.nbytes for m in members.values()) if members else self.node.spec.nbytes

    def numpy(self, dtype: str | None = None) -> NDArray[Any]:
        """The values: a read-only view of the file where its bytes are numpy's, else a new array. Quantized tensors
        come as F32, or as the `dtype` asked for."""
        from weighbridge.adapters.numpy import to_numpy

        self._announce()
        return cast("NDArray[Any]", self._kept(("numpy", dtype), lambda: to_numpy(self.node, _named(dtype))))

    def torch(self, dtype: str | None = None, device: str | None = None) -> torch.Tensor:
        """The values as a torch tensor; on the CPU it shares the file's pages where that is possible."""
        from weighbridge.adapters.cuda import to_devices

        self._announce()
        make = lambda: to_devices({"": self.node}, device, _named(dtype))[""]  # noqa: E731
        return cast("torch.Tensor", self._kept(("torch", dtype, device), make))

    def parts(self) -> dict[str, Tensor]:
        """The stored tensors of this one (MLX: weight, scales, biases); itself if it is a single one."""
        members: Mapping[str, Node] = getattr(self.node, "members", {self.name: self.node})
        return {part: Tensor(part, members) for part in members}

    def raw(self) -> bytes:
        """The bytes as they would be written: ggml blocks stay blocks."""
        node = self.node
        if (packing := getattr(node, "packing", None)) is not None:
            raise UsageError(f"a {packing.name} tensor has no plain bytes; decode it first")
        return cast("Node", node).read_all().tobytes()

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Numpy indexing with integers, slices and `...`; only the rows that the leading indices name are read."""
        from weighbridge.adapters.numpy import to_numpy
        from weighbridge.tensors.slicing import narrow

        node, rest = narrow(self.node, key)
        return to_numpy(node)[rest]

    def rows(self, start: int, stop: int) -> Tensor:
        """Entries start..stop of the first axis as a tensor of its own: read when asked for, in the form asked for
        (`rows(0, 2).torch()`). Quantized parts stay quantized where the cut lies between their blocks."""
        from weighbridge.tensors.slicing import part

        name = f"{self.name}[{start}:{stop}]"
        return Tensor(name, {name: part(self.node, start, stop)}, self._cache)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def _announce(self) -> None:
        """Of a rank's part just these bytes are read, not a window around each page that is touched."""
        if self._model is not None and self._model.share is not None:
            from weighbridge.tensors.prefetch import prefetch

            prefetch([self.node])

    def _kept(self, key: tuple[Any, ...], make: Any) -> Any:
        if self._cache is None:
            return make()
        full = (self.name, *key)
        if full not in self._cache:
            self._cache[full] = make()
        return self._cache[full]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the path of the model and the name: another process opens the file itself."""
        if self._model is None:
            raise TypeError(f"{self!r} is computed and can't be pickled; pickle its model, or .numpy()")
        return _tensor_of, (self._model, self.name)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype}{list(self.shape)}>"

    def _repr_html_(self) -> str:
        from weighbridge.reports.notebook import tensor_html

        return tensor_html(self.name, self.dtype, self.shape, self.nbytes)


class Model(Closing, Mapping[str, Tensor]):
    """A lazy checkpoint: names to tensors, config and metadata. `cache()` keeps what was read until `clear_cache()`. It
    pickles as its path and options."""

    def __init__(
        self, checkpoint: Checkpoint, names: Names = "logical", options: SourceOptions | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """`share`: the rank, of so many, that `checkpoint` is the part of."""
        self.checkpoint, self.names, self._options, self.share = checkpoint, names, options, share
        self._nodes = tensors_named(checkpoint, names)
        own = self._nodes is checkpoint.stored and checkpoint.nodes is None
        self._entries = checkpoint.index.by_name if own else {}
        self._cache: dict[Any, Any] | None = None

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries.get(name)
        if entry is None and name not in self._nodes:
            raise KeyError(name)
        return Tensor(name, self._nodes, self._cache, entry, self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json; for a GGUF the equivalent of its keys."""
        return self.checkpoint.config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's own metadata: GGUF's key-values, safetensors' `__metadata__`."""
        return self.checkpoint.metadata

    @property
    def format(self) -> str:
        return self.checkpoint.format

    def concat(self, names: Sequence[str], axis: int = 0) -> Tensor:
        """Several tensors as one buffer (q|k|v, gate|up), read straight into it. Quantized ones stay quantized where
        their parameters agree: then `parts()` of the result are the joined parts."""
        from weighbridge.tensors.nodes import concat

        if not names:
            raise UsageError("no tensors to concatenate")
        name = "|".join(names)
        return Tensor(name, {name: concat([self._nodes[n] for n in names], axis)}, self._cache)

    def cache(self) -> Model:
        """Keeps arrays once made, so that a second `numpy()` returns the same one."""
        self._cache = self._cache if self._cache is not None else {}
        return self

    def clear_cache(self) -> None:
        """Free every array that was kept."""
        if self._cache is not None:
            self._cache.clear()

    def rank(self, rank: int, *, of: int) -> Model:
        """The part of a tensor-parallel rank: this model's names, each tensor as the rank has it. Only its slices are
        read. Quantized tensors keep their codes; UsageError names the numbers of ranks by which they can be cut."""
        if self.share is not None:
            raise UsageError(f"this is rank {self.share[0]} of {self.share[1]} already")
        if self.names not in ("stored", "logical"):
            raise UsageError(f"a rank has the file's names, not {self.names}", hint="open the model without names=")
        from weighbridge.models.tensor_parallel.rank_view import rank_view

        return Model(rank_view(self.checkpoint, rank, of), self.names, self._options, (rank, of))

    def state_dict(self, device: Devices = None) -> dict[str, torch.Tensor]:
        """As `torch()`, in the form that `load_state_dict` accepts."""
        return self.torch(device)

    def numpy(self) -> dict[str, NDArray[Any]]:
        """All tensors as numpy arrays."""
        self._announce(private=False)
        return {name: self[name].numpy() for name in self}

    def torch(self, device: Devices = None) -> dict[str, torch.Tensor]:
        """All tensors as torch tensors: a state dict. `device`: one for all, or by beginnings of names, the longest of
        which counts (`{"": "cpu", "model.layers": "cuda:0"}`). On CUDA devices what lies in files as it is comes
        through rings of pinned buffers, copied while the next are read."""
        if device is not None:
            from weighbridge.adapters.cuda import to_devices

            return to_devices({name: self[name].node for name in self}, device)
        self._announce(private=True)
        return {name: self[name].torch() for name in self}

    def _announce(self, *, private: bool) -> None:
        """All is read now, or soon, from this mapping of the files: the system may begin."""
        if self.share is None:  # a rank's tensors announce themselves
            from weighbridge.tensors.prefetch import prefetch_behind

            prefetch_behind((self._nodes[name] for name in self), private=private)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.checkpoint.place.path), self.names, self._options, self.share)

    def close(self) -> None:
        """Close the files. Arrays that are views of them stay valid."""
        self.checkpoint.close()

    def __repr__(self) -> str:
        return f"<Model {self.checkpoint.place.path} {self.format}, {len(self)} tensors>"

    def _repr_html_(self) -> str:
        from weighbridge.reports.notebook import model_html
        from weighbridge.reports.select import Selection
        from weighbridge.reports.view.summary import summary

        found = summary(self.checkpoint, selection=Selection())
        return model_html(found.report, found.parts)


def _reopened(path: str, names: Names, options: SourceOptions | None, share: tuple[int, int] | None) -> Model:
    model = Model(open_model(path, options or SourceOptions()), names, options)
    return model if share is None else model.rank(share[0], of=share[1])


def _tensor_of(model: Model, name: str) -> Tensor:
    return model[name]


def _named(dtype: str | None) -> Any:
    return None if dtype is None else _dtype(dtype)
