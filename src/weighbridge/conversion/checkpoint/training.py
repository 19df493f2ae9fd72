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
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.torch import write as torch_write
from weighbridge.containers.torch.tree import FORMATS, read_tree
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.losses.shared_storage import share
from weighbridge.conversion.plan.model import Loss, Plan
from weighbridge.conversion.plan.writers import planned
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.training_state import FILE, State, encode, file_of, is_checkpoint, read_state
from weighbridge.tensors.nodes import Node, Stored
from weighbridge.unpickle.tree import Gap, TensorLeaf

#: The target's name on the command line.
NAME = "checkpoint"


def plan_checkpoint(model: Checkpoint, target: Path, write: WriteOptions) -> Plan:
    """A training checkpoint as a folder. UnsupportedError for a source without structure."""
    if model.format not in FORMATS or len(model.index.files) == 0:
        hint = "use a PyTorch training checkpoint (.pt, .pth, .ckpt)"
        raise UnsupportedError(f"{model.place.path}: a {model.format} file contains no training state", hint=hint)
    state, losses = of_torch(model)
    losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    return folder_plan(state, target, write, str(model.place.path), losses)


def folder_plan(
    state: State, target: Path, write: WriteOptions, source: str = "memory", losses: list[Loss] | None = None
) -> Plan:
    """The folder for a state: one safetensors file per part with tensors, and the structure."""
    files: dict[str, dict[str, Node]] = {}
    for storage, node in state.storages.items():
        file, _, name = storage.partition("/")
        files.setdefault(file, {})[name] = _kept(name, node)
    made = []
    for file, tensors in files.items():
        layout = safetensors.layout([(n, t.spec) for n, t in tensors.items()], {"format": "pt"})
        made.append(planned(f"{file}.safetensors", layout, tensors))
    return Plan(
        source=source, target=target, format=NAME, folder=True, files=tuple(made), texts={FILE: encode(state.value)},
        losses=tuple(losses or ()), write=write,
    )  # fmt: skip


def _kept(name: str, node: Node) -> Node:
    """The node itself, or its bytes if safetensors has no such dtype."""
    if node.spec.dtype.safetensors:
        return node
    if isinstance(node, Stored) and not node.swap:
        return Stored(Spec((node.spec.nbytes,), U8), node.source, node.offset)
    raise UnsupportedError(f"{name} is {node.spec.dtype}, which safetensors can't store")


# ------------------------------------------------------------------------------------------------ from a .pt


def of_torch(model: Checkpoint) -> tuple[State, list[Loss]]:
    """The state in a PyTorch file, and the objects in it that aren't data."""
    value = read_tree(model.index.files[0], model.index.format)
    value = value if isinstance(value, dict) else {"value": value}
    shared = share(model.stored)
    reader = _Reader(shared.views, shared.storages)
    for top, part in value.items():
        reader.names(part, file_of(top) if isinstance(part, dict | list | tuple) else "state", f"{top}.")
    storages = {reader.storage[name]: node for name, node in shared.storages.items()}
    return State(reader.kept(value, ""), storages), reader.losses


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

    def kept(self, value: Any, path: str) -> Any:
        """The value with `Ref`s instead of tensors, without objects that aren't data."""
        match value:
            case TensorLeaf():
                return self.ref(value.name)
            case dict():
                parts = {k: v for k, v in value.items() if not self.lost(v)}
                return {k: self.kept(v, path) for k, v in parts.items()}
            case tuple() | list():
                return type(value)(self.kept(None if self.lost(v) else v, path) for v in value)
        return value

    def lost(self, value: Any) -> bool:
        """Whether a value isn't data; such values are reported."""
        words = f"not data: {value.words}" if isinstance(value, Gap) else "it can't be read"
        gone = isinstance(value, Gap) or (isinstance(value, TensorLeaf) and value.name not in self.views)
        if gone:
            self.losses.append(Loss(f"omitted, {words}", value.name))
        return gone

    def ref(self, name: str) -> Ref:
        view = self.views[name]
        dtype = self.nodes[view.storage].spec.dtype.name
        return Ref(self.storage[view.storage], dtype, view.shape, view.strides, view.offset)


# ------------------------------------------------------------------------------------------------ to a .pt


def plan_torch(folder: Path, target: Path, write: WriteOptions) -> Plan:
    """A folder's whole checkpoint as one PyTorch file that `torch.load(weights_only=True)` accepts."""
    state = read_state(folder)
    if target.resolve() == folder.resolve():
        raise RefusedError(f"{target} is the source itself", hint="choose another target")
    writer = _Writer(state.storages)
    value = writer.made(state.value)
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

    def made(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.tensor(value)
        if isinstance(value, Ordered):
            return torch_write.ordered_dict([(k, self.made(v)) for k, v in value.items()])
        if isinstance(value, dict):
            return {k: self.made(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.made(v) for v in value)
        return value

    def tensor(self, ref: Ref) -> Any:
        dtype = BY_NAME[ref.dtype]
        node = self.storages[ref.storage]
        if ref.kind == "scalar":
            return _number(node, ref)
        if ref.kind == "numpy":
            self.losses.append(Loss("a numpy array becomes a tensor: torch's safe loader rejects arrays", ref.storage))
        key = (ref.storage, ref.dtype)
        if key not in self.nodes:
            self.nodes[key] = _typed(node, Spec((node.spec.nbytes // dtype.size * dtype.block,), dtype))
        number = self.numbers.setdefault(key, len(self.numbers))
        view = torch_write.View("", ref.shape, ref.strides, ref.offset)
        return torch_write.tensor(view, str(number), self.nodes[key].spec)


def _typed(node: Node, spec: Spec) -> Node:
    """A stored tensor's bytes as a flat tensor of another dtype: a storage has no shape."""
    if isinstance(node, Stored):
        return Stored(spec, node.source, node.offset, node.swap)
    raise UnsupportedError(f"a tensor of {node.spec} that isn't stored")


def _number(node: Node, ref: Ref) -> Any:
    kind = BY_NAME[ref.dtype].numpy
    return node.read_all().view(np.dtype(kind))[ref.offset].item()


def wanted(model_path: Path, kind: str) -> bool:
    """Whether a folder's whole checkpoint is requested rather than the model in it."""
    return kind == "torch" and model_path.is_dir() and is_checkpoint(model_path)
