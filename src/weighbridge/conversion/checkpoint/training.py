"""Converts whole training checkpoints from live objects, a PyTorch file or a folder to a folder or a PyTorch file.

Structure is preserved: nested dicts with keys of any plain type, lists, tuples, numbers, and shared storages.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weighbridge.base.dtypes import BY_NAME, U8
from weighbridge.base.errors import RefusedError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.base.state import Ordered, Ref
from weighbridge.containers.formats import PYTORCH
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.torch import write as torch_write
from weighbridge.containers.torch.tree import read_tree
from weighbridge.conversion.options import CHECKPOINT, WriteOptions
from weighbridge.conversion.plan.losses.shared_storage import share
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.writers import planned, specs
from weighbridge.conversion.result import Loss
from weighbridge.models.model import OpenModel
from weighbridge.models.training_state import FILE, State, encode, file_of, read_state
from weighbridge.tensors.nodes import Node, Stored
from weighbridge.unpickle.tree import Gap, TensorLeaf


def plan_checkpoint(model: OpenModel, target: Path, write: WriteOptions) -> Plan:
    """Plans a training checkpoint as a folder. Raises UnsupportedError for a source without structure."""
    if model.format not in PYTORCH or len(model.index.files) == 0:
        hint = "use a PyTorch training checkpoint (.pt, .pth, .ckpt)"
        raise UnsupportedError(f"{model.place.path}: a {model.format} file contains no training state", hint=hint)
    state, losses = of_torch(model)
    losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    return folder_plan(state, target, write, str(model.place.path), losses)


def folder_plan(
    state: State, target: Path, write: WriteOptions, source: str = "memory", losses: list[Loss] | None = None
) -> Plan:
    """Plans the folder for a state: one safetensors file per part with tensors, and the structure.

    Tensors of dtypes that safetensors lacks are stored as bytes.
    """
    parts: dict[str, dict[str, Node]] = {}
    for storage, node in state.storages.items():
        part, _, name = storage.partition("/")
        if not node.spec.dtype.safetensors:
            if not isinstance(node, Stored) or node.swap:
                raise UnsupportedError(f"{name} is {node.spec.dtype}, which safetensors can't store")
            node = Stored(Spec((node.spec.nbytes,), U8), node.source, node.offset)
        parts.setdefault(part, {})[name] = node
    files = tuple(
        planned(f"{part}.safetensors", safetensors.layout(specs(tensors), {"format": "pt"}), tensors)
        for part, tensors in parts.items()
    )
    return Plan(
        source=source, target=target, format=CHECKPOINT, folder=True, files=files, texts={FILE: encode(state.value)},
        losses=tuple(losses or ()), write=write,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ from a .pt


def of_torch(model: OpenModel) -> tuple[State, list[Loss]]:
    """Reads the state in a PyTorch file; the losses list the objects in it that aren't data."""
    value = read_tree(model.index)
    value = value if isinstance(value, dict) else {"value": value}
    shared = share(model.stored)
    reader = _Reader(shared.views, shared.storages)
    for top, part in value.items():
        reader.names(part, file_of(top) if isinstance(part, dict | list | tuple) else "state", f"{top}.")
    storages = {reader.storage[name]: node for name, node in shared.storages.items()}
    return State(reader.read(value), storages), reader.losses


class _Reader:
    def __init__(self, views: Mapping[str, torch_write.View], nodes: Mapping[str, Node]) -> None:
        self.views, self.nodes = views, nodes
        self.storage: dict[str, str] = {name: f"state/{name}" for name in nodes}
        self.losses: list[Loss] = []

    def names(self, value: Any, file: str, front: str) -> None:
        """Assigns each storage to the file of the part that refers to it first."""
        if isinstance(value, TensorLeaf):
            if value.name in self.nodes:
                self.storage[value.name] = f"{file}/{value.name.removeprefix(front)}"
        elif isinstance(value, dict | list | tuple):
            for part in value.values() if isinstance(value, dict) else value:
                self.names(part, file, front)

    def read(self, value: Any) -> Any:
        """The value with `Ref`s instead of tensors, without objects that aren't data."""
        match value:
            case TensorLeaf():
                view = self.views[value.name]
                dtype = self.nodes[view.storage].spec.dtype.name
                return Ref(self.storage[view.storage], dtype, view.shape, view.strides, view.offset)
            case dict():
                parts = {k: v for k, v in value.items() if self.holds(v)}
                return {k: self.read(v) for k, v in parts.items()}
            case tuple() | list():
                return type(value)(self.read(v if self.holds(v) else None) for v in value)
        return value

    def holds(self, value: Any) -> bool:
        """Whether a value is data; adds a loss if it isn't."""
        if isinstance(value, Gap):
            self.losses.append(Loss(f"omitted, not data: {value.reason}", value.name))
        elif isinstance(value, TensorLeaf) and value.name not in self.views:
            self.losses.append(Loss("omitted, it can't be read", value.name))
        else:
            return True
        return False


# ------------------------------------------------------------------------------------------------ to a .pt


def plan_torch(folder: Path, target: Path, write: WriteOptions) -> Plan:
    """Plans a folder's whole checkpoint as one PyTorch file that `torch.load(weights_only=True)` accepts."""
    state = read_state(folder)
    if target.resolve() == folder.resolve():
        raise RefusedError(f"{target} is the source itself", hint="choose another target")
    writer = _Writer(state.storages)
    value = writer.write(state.value)
    nodes = {f"{i}": node for i, node in enumerate(writer.nodes.values())}
    layout = torch_write.archive(value, [(key, node.spec) for key, node in nodes.items()])
    return Plan(
        source=str(folder), target=target, format="torch", folder=False, files=(planned(target.name, layout, nodes),),
        losses=tuple(writer.losses), write=write,
    )  # fmt: skip


class _Writer:
    def __init__(self, storages: Mapping[str, Node]) -> None:
        self.storages = storages
        self.nodes: dict[tuple[str, str], Node] = {}
        self.numbers: dict[tuple[str, str], int] = {}
        self.losses: list[Loss] = []

    def write(self, value: Any) -> Any:
        """The value with the writer's tensors instead of `Ref`s."""
        if isinstance(value, Ref):
            return self.tensor(value)
        if isinstance(value, Ordered):
            return torch_write.ordered_dict([(k, self.write(v)) for k, v in value.items()])
        if isinstance(value, dict):
            return {k: self.write(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.write(v) for v in value)
        return value

    def tensor(self, ref: Ref) -> Any:
        """A tensor, or the number of a scalar. Adds the storage of the tensor to `nodes`, as a flat tensor."""
        dtype = BY_NAME[ref.dtype]
        node = self.storages[ref.storage]
        if ref.kind == "scalar":
            return node.read_all().view(np.dtype(dtype.numpy))[ref.offset].item()
        if ref.kind == "numpy":
            self.losses.append(Loss("a numpy array becomes a tensor: torch's safe loader rejects arrays", ref.storage))
        key = (ref.storage, ref.dtype)
        if key not in self.nodes:
            if not isinstance(node, Stored):
                raise UnsupportedError(f"a tensor of {node.spec} that isn't stored")
            spec = Spec((node.spec.nbytes // dtype.size * dtype.block,), dtype)
            self.nodes[key] = Stored(spec, node.source, node.offset, node.swap)
        number = self.numbers.setdefault(key, len(self.numbers))
        view = torch_write.View("", ref.shape, ref.strides, ref.offset)
        return torch_write.tensor(view, str(number), self.nodes[key].spec)
