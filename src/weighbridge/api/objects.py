"""The two public classes: a lazily read tensor, and a model as a mapping of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, cast

from weighbridge.base.closeable import Closing
from weighbridge.base.dtypes import DTypeLike, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.base.words import UnknownNameError, plural
from weighbridge.conversion.options import Path
from weighbridge.models.names import tensors_named, unnamed
from weighbridge.models.open import SourceOptions, open_model

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from weighbridge.adapters.cuda import Devices
    from weighbridge.containers.base import Entry
    from weighbridge.models.model import OpenModel
    from weighbridge.models.stored_tensors import Dropped
    from weighbridge.models.tensor_parallel.rank_view import Experts
    from weighbridge.tensors.nodes import LogicalTensor, Node

Names = Literal["stored", "logical", "canonical", "hf", "gguf", "mlx", "akunu"]


@dataclass(frozen=True, kw_only=True)
class OpenKeywords(SourceOptions):
    names: Names = "logical"


@accepting(OpenKeywords)
def open(path: Path, options: OpenKeywords) -> Model:
    """Opens the model at `path` (a file, a folder, an index, one file of a numbered or tensor-parallel set) as a
    mapping of names to tensors.

    `names`: "logical" keeps the file's names and joins the stored tensors of a packed one (MLX's weight, scales,
    biases); "stored" keeps those separate; "canonical" gives the same names for every format; "hf", "gguf" and "mlx"
    those of another dialect, "akunu" those of that engine.
    Errors: FormatError, UnsupportedError, OSError.
    """
    return Model(open_model(path, options), options.names, options)


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
        self._entry = entry  # lists a tensor of the file from its header entry, without a node

    @property
    def node(self) -> LogicalTensor:
        """The node that reads it."""
        return self._nodes[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._entry.shape if self._entry is not None else self.node.spec.shape

    @property
    def dtype(self) -> str:
        """The name of its number type, or of the packing for a tensor stored in several parts."""
        if self._entry is not None:
            return self._entry.dtype.name
        packing = getattr(self.node, "packing", None)
        return f"{packing.name}-{packing.code_bits}" if packing is not None else self.node.spec.dtype.name

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

    def numpy(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """The values in this shape: a read-only view of the file if the bytes are numpy's, else a new array.
        Quantized tensors are decoded to F32, or to `dtype`."""
        from weighbridge.adapters.numpy import to_numpy

        self._prefetch()
        return cast("NDArray[Any]", self._kept(("numpy", dtype), lambda: to_numpy(self.node, requested_dtype(dtype))))

    def torch(self, dtype: DTypeLike | None = None, device: str | None = None) -> torch.Tensor:
        """The values as a torch tensor of this shape; on the CPU it shares the file's pages if possible."""
        from weighbridge.adapters.cuda import to_devices

        self._prefetch()
        make = lambda: to_devices({"": self.node}, device, requested_dtype(dtype))[""]  # noqa: E731
        return cast("torch.Tensor", self._kept(("torch", dtype, device), make))

    def parts(self) -> dict[str, Tensor]:
        """The stored tensors of this one (MLX: weight, scales, biases), or itself if there is only one."""
        members: Mapping[str, Node] = getattr(self.node, "members", {self.name: self.node})
        return {part: Tensor(part, members) for part in members}

    def raw(self) -> bytes:
        """The stored bytes: ggml blocks stay blocks."""
        node = self.node
        if (packing := getattr(node, "packing", None)) is not None:
            raise UsageError(f"a {packing.name} tensor has no plain bytes; decode it first")
        return cast("Node", node).read_all().tobytes()

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Numpy indexing with integers, slices and `...`; only the rows that the leading indices name are read."""
        from weighbridge.adapters.numpy import to_numpy
        from weighbridge.tensors.slicing import narrow

        node, remaining = narrow(self.node, key)
        return to_numpy(node)[remaining]

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start..stop of the first axis as a lazy tensor (`rows(0, 2).torch()`). Quantized parts stay quantized if
        the cut is between their blocks."""
        from weighbridge.tensors.slicing import part

        name = f"{self.name}[{start}:{stop}]"
        return Tensor(name, {name: part(self.node, start, stop)}, self._cache)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def _prefetch(self) -> None:
        """Prefetches a rank's part: only these bytes, not a window around each touched page."""
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
        """Pickles the path of the model and the name: another process opens the file again."""
        if self._model is None:
            raise TypeError(f"{self!r} is computed and can't be pickled; pickle its model, or .numpy()")
        return Model.__getitem__, (self._model, self.name)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype}{list(self.shape)}>"

    def _repr_html_(self) -> str:
        from weighbridge.reports.notebook import tensor_html

        return tensor_html(self.name, self.dtype, self.shape, self.nbytes)


class Model(Closing, Mapping[str, Tensor]):
    """A lazy model: names to tensors, config and metadata. `cache()` keeps arrays until `clear_cache()`. It pickles as
    its path and options."""

    def __init__(
        self, source: OpenModel, names: Names = "logical", options: SourceOptions | None = None,
        share: tuple[int, int] | None = None, experts: Experts = "cut",
    ) -> None:  # fmt: skip
        """`share`: the rank of `source` and the number of ranks. `experts`: how the ranks divide the experts."""
        self.source, self.names, self._options = source, names, options
        self.share, self.experts = share, experts
        self._nodes = tensors_named(source, names)
        unchanged = self._nodes is source.stored and source.nodes is None
        self._entries = source.index.by_name if unchanged else {}
        self._cache: dict[Any, Any] | None = None

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries.get(name)
        if entry is None and name not in self._nodes:
            raise UnknownNameError(name, "tensor", self)
        return Tensor(name, self._nodes, self._cache, entry, self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The file's tensors without a name in this dialect (a GGUF has none for BERT's training heads)."""
        return tuple(unnamed(self.source, self.names))

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json; for a GGUF the equivalent of its keys."""
        return self.source.config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's metadata: GGUF's key-values, safetensors' `__metadata__`."""
        return self.source.metadata

    @property
    def left_out(self) -> tuple[Dropped, ...]:
        """The parts of a training checkpoint besides the model: optimizer, averages, epoch. `all_parts=True` opens
        them."""
        return self.source.left_out

    @property
    def format(self) -> str:
        return self.source.format

    def concat(self, names: Sequence[str], axis: int = 0) -> Tensor:
        """Concatenates tensors into one buffer (q|k|v, gate|up). Quantized ones stay quantized if their parameters
        agree; `parts()` of the result returns the joined parts."""
        from weighbridge.tensors.nodes import concat

        if not names:
            raise UsageError("no tensors to concatenate")
        name = "|".join(names)
        return Tensor(name, {name: concat([self._nodes[n] for n in names], axis)}, self._cache)

    def cache(self) -> Model:
        """Keeps arrays, so that a second `numpy()` returns the same one."""
        self._cache = self._cache if self._cache is not None else {}
        return self

    def clear_cache(self) -> None:
        """Frees all cached arrays."""
        if self._cache is not None:
            self._cache.clear()

    def rank(self, rank: int, *, of: int, experts: Experts = "cut") -> Model:
        """The part of a tensor-parallel rank, under the same names. Only its slices are read. Quantized tensors keep
        their codes; UsageError lists the numbers of ranks by which they can be cut. `experts`: "whole" gives each rank
        some of the experts, uncut and under their numbers (expert parallelism)."""
        if self.share is not None:
            raise UsageError(f"this is rank {self.share[0]} of {self.share[1]} already")
        if self.names not in ("stored", "logical"):
            raise UsageError(f"a rank has the file's names, not {self.names}", hint="open the model without names=")
        from weighbridge.models.tensor_parallel.rank_view import rank_view

        part = rank_view(self.source, rank, of, experts)
        return Model(part, self.names, self._options, (rank, of), experts)

    def state_dict(self, device: Devices = None) -> dict[str, torch.Tensor]:
        """As `torch()`, in the form that `load_state_dict` accepts."""
        return self.torch(device)

    def numpy(self) -> dict[str, NDArray[Any]]:
        """All tensors as numpy arrays."""
        self._prefetch(private=False)
        return {name: self[name].numpy() for name in self}

    def torch(self, device: Devices = None) -> dict[str, torch.Tensor]:
        """All tensors as torch tensors: a state dict. `device`: one for all, or one per beginning of names; the
        longest match counts (`{"": "cpu", "model.layers": "cuda:0"}`). On CUDA devices, unchanged bytes of files are
        copied through pinned buffers while the next ones are read."""
        if device is not None:
            from weighbridge.adapters.cuda import to_devices

            return to_devices({name: self[name].node for name in self}, device)
        self._prefetch(private=True)
        return {name: self[name].torch() for name in self}

    def _prefetch(self, *, private: bool) -> None:
        """Starts prefetching all tensors."""
        if self.share is None:  # a rank's tensors prefetch separately
            from weighbridge.tensors.prefetch import prefetch_behind

            prefetch_behind((self._nodes[name] for name in self), private=private)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (str(self.source.place.path), self.names, self._options, self.share, self.experts)

    def close(self) -> None:
        """Closes the files. Arrays that are views of them stay valid."""
        self.source.close()

    def __repr__(self) -> str:
        return f"<Model {self.source.place.path} {self.format}, {plural(len(self), 'tensor')}>"

    def _repr_html_(self) -> str:
        from weighbridge.reports.select import Selection
        from weighbridge.reports.summary import summary

        shown = summary(self.source, selection=Selection())
        return shown.report.html([(row.part.name, row.part.nbytes) for row in shown.parts])


def _reopened(
    path: str, names: Names, options: SourceOptions | None, share: tuple[int, int] | None, experts: Experts
) -> Model:
    model = Model(open_model(path, options or SourceOptions()), names, options)
    return model if share is None else model.rank(share[0], of=share[1], experts=experts)
