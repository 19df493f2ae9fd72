"""Records checkpoints of Orbax for test_orbax.py, and their arrays as Orbax restores them.

python -m tests.models.record_orbax      writes tests/containers/golden/orbax.zip

Needs orbax-checkpoint 0.12.8 and jax 0.10.
"""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GOLDEN = Path(__file__).parents[1] / "containers" / "golden" / "orbax.zip"
KEY = jax.random.PRNGKey(0)
TREE = {
    "params": {
        "dense": {"kernel": jax.random.normal(KEY, (32, 48)).astype(jnp.bfloat16), "bias": jnp.arange(48.0)},
        "emb": jax.random.normal(KEY, (50, 16)),
    },
    "step": 3, "scale": jnp.float32(2.5), "list": [jnp.arange(5), jnp.ones((2, 2), jnp.int8)],
}  # fmt: skip
#: Folders of items with a restorable tree.
ITEMS = (
    "plain",
    "sharded",
    "many",
    "zarr3",
    "files",
    "files3",
    "run/1/default",
    "run/5/default",
    "items/step_7/params",
)


def sharded() -> dict[str, Any]:
    """Arrays over four devices: in blocks, in rows, and of a size that devices share unevenly."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    parts = {"w": PartitionSpec("a", "b"), "v": PartitionSpec("a"), "u": PartitionSpec(None, "b")}
    arrays = {
        "w": jnp.arange(64 * 48.0).reshape(64, 48).astype(jnp.bfloat16),
        "v": jnp.arange(64.0),
        "u": jnp.ones((3, 8)),
    }
    return {name: jax.device_put(array, NamedSharding(mesh, parts[name])) for name, array in arrays.items()}


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for key, value in rows:
        yield from leaves(value, f"{name}{key}.")
    if not isinstance(tree, dict | list | tuple):
        yield name[:-1], np.asarray(tree)


def save(root: Path) -> None:
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(root / "plain", TREE)
    checkpointer.save(root / "sharded", sharded())
    checkpointer.save(root / "many", {f"layer_{n}": {"w": jnp.full((3,), n)} for n in range(300)})  # nodes below nodes
    checkpointer.wait_until_finished()
    manager = ocp.CheckpointManager(root / "run")
    for step in (1, 5):
        manager.save(step, args=ocp.args.StandardSave({**TREE, "step": step}))
    manager.wait_until_finished()
    manager = ocp.CheckpointManager(root / "items", options=ocp.CheckpointManagerOptions(step_prefix="step"))
    items = {"params": TREE["params"], "opt": {"mu": TREE["params"]}}
    manager.save(7, args=ocp.args.Composite(**{name: ocp.args.StandardSave(tree) for name, tree in items.items()}))
    manager.wait_until_finished()
    for name, database, zarr3 in (("zarr3", True, True), ("files", False, False), ("files3", False, True)):
        handler = ocp.PyTreeCheckpointHandler(use_ocdbt=database, use_zarr3=zarr3)
        ocp.Checkpointer(handler).save(root / name, {**sharded(), "t": TREE["params"]})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
        root = Path(folder)
        save(root)
        for path in sorted(
            p for p in root.rglob("*") if p.is_file() and p.name != "_sharding" and p.parent.name != "array_metadatas"
        ):
            name = zipfile.ZipInfo(path.relative_to(root).as_posix(), (2026, 1, 1, 0, 0, 0))
            archive.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED)
        arrays: dict[str, Any] = {}
        for item in ITEMS:
            tree = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(root / item)
            arrays |= {f"{item}|{name}": np.frombuffer(array.tobytes(), np.uint8) for name, array in leaves(tree)}
        np.savez_compressed(out := io.BytesIO(), **arrays)
        archive.writestr(zipfile.ZipInfo("restored.npz", (2026, 1, 1, 0, 0, 0)), out.getvalue())


if __name__ == "__main__":
    main()
