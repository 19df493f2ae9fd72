"""Records models of ONNX, TensorFlow, Keras, h5py, Flax, OpenVINO and CTranslate2 for test_frameworks.py, and their
tensors as these libraries read them.

python -m tests.containers.record_frameworks      writes tests/containers/golden/frameworks.zip

Needs onnx, tensorflow, keras, h5py, flax, openvino, ctranslate2 and torch in one environment of Python 3.11.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}

import ctranslate2.specs as ct2
import flax.serialization as flax
import h5py
import keras
import ml_dtypes
import numpy as np
import onnx
import openvino
import tensorflow as tf
import torch
from ctranslate2.specs import model_spec
from onnx import TensorProto, helper, numpy_helper
from openvino import opset13 as ops

GOLDEN = Path(__file__).with_name("golden") / "frameworks.zip"
W = np.arange(6, dtype=np.float32).reshape(2, 3)
Read = dict[str, Any]


def record_onnx(folder: Path) -> Read:
    ints = {
        k: helper.make_tensor(k, t, [3], [1, -2, 7]) for k, t in (("i4", TensorProto.INT4), ("i64", TensorProto.INT64))
    }
    ints["f16"] = helper.make_tensor("f16", TensorProto.FLOAT16, [2], [1.5, -2.0])
    ints["bf16"] = helper.make_tensor("bf16", TensorProto.BFLOAT16, [2], [1.5, -2.0])
    ints["flag"] = helper.make_tensor("flag", TensorProto.BOOL, [2], [True, False])
    ints["typed"] = helper.make_tensor("typed", TensorProto.FLOAT, [2, 3], W.ravel())
    ints["double"] = helper.make_tensor("double", TensorProto.DOUBLE, [2], [0.5, 3])
    ints["text"] = helper.make_tensor("text", TensorProto.STRING, [1], [b"abc"])
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(W.T.copy(), "unused"))
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["deep"], value=numpy_helper.from_array(W[0], ""))],
        "in",
        [],
        [helper.make_tensor_value_info("deep", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(W[1], "far")],
    )
    branch = helper.make_node("If", ["flag"], ["out"], name="choice", then_branch=inner, else_branch=inner)
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    nodes = [constant, branch, helper.make_node("MatMul", ["x", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    graph = helper.make_graph(nodes, "g", [x], [value], [numpy_helper.from_array(W, "w"), *ints.values()])
    model = helper.make_model(graph, producer_name="weighbridge-tests")
    onnx.save(model, folder / "a.onnx")
    small = helper.make_model(
        helper.make_graph(
            nodes[2:], "g", [x], [value], [numpy_helper.from_array(W, "w"), numpy_helper.from_array(W + 1, "v")]
        )
    )
    onnx.save(small, folder / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    read = {
        t.name: numpy_helper.to_array(t)
        for t in onnx.load(folder / "a.onnx").graph.initializer
        if t.name not in ("text", "i4")
    }
    read |= {"k": W.T.copy(), "i4": np.array([0xE1, 7], np.uint8)}
    for name in ("then_branch", "else_branch"):
        read |= {f"choice/{name}/far": W[1], f"choice/{name}/deep": W[0]}
    external = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "e.onnx").graph.initializer}
    return {"a.onnx": read, "e.onnx": external}


def record_tensorflow(folder: Path) -> Read:
    class Module(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.w = tf.Variable(W)
            self.b = tf.Variable(tf.constant([1, 2, 3], tf.bfloat16))
            self.n = tf.Variable(tf.constant([5], tf.int64))

        @tf.function(input_signature=[tf.TensorSpec([1, 2], tf.float32)])
        def call(self, x: Any) -> Any:
            return tf.matmul(x, self.w)

    module = Module()
    tf.saved_model.save(module, str(folder / "saved"))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.call.get_concrete_function()], module)
    (folder / "a.tflite").write_bytes(converter.convert())
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        v1.get_variable("model/h0/attn/c_attn/w", initializer=np.arange(12, dtype=np.float32).reshape(1, 3, 4))
        for name, shape, axis in (("rows", (4, 3), 0), ("columns", (1, 200), 1)):
            cut = v1.fixed_size_partitioner(2, axis=axis)
            v1.get_variable(name, shape=shape, initializer=_ramp, partitioner=cut, dtype=tf.float32)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for name, version in (("v2", v1.train.SaverDef.V2), ("v1", v1.train.SaverDef.V1)):
                (folder / name).mkdir(exist_ok=True)
                v1.train.Saver(write_version=version).save(
                    session, str(folder / name / "model.ckpt"), write_meta_graph=False
                )
    out: Read = {}
    for name, path in (
        ("saved/variables/variables.index", "saved/variables/variables"),
        ("v2/model.ckpt.index", "v2/model.ckpt"),
    ):
        reader = tf.train.load_checkpoint(str(folder / path))
        names = [n for n in reader.get_variable_to_shape_map() if n != "_CHECKPOINTABLE_OBJECT_GRAPH"]
        out[name] = {n: reader.get_tensor(n) for n in names}
    whole = out["v2/model.ckpt.index"]
    columns_whole = whole.pop("columns")
    halves = {
        "columns[0:1, 0:100]": columns_whole[:, :100].copy(),
        "columns[0:1, 100:200]": columns_whole[:, 100:].copy(),
    }
    out["v1/model.ckpt"] = {"model/h0/attn/c_attn/w": whole["model/h0/attn/c_attn/w"], **halves}
    out["v1/model.ckpt"] |= {"rows[0:2, 0:3]": whole["rows"][:2], "rows[2:4, 0:3]": whole["rows"][2:]}
    whole |= halves
    interpreter = tf.lite.Interpreter(model_path=str(folder / "a.tflite"))
    interpreter.allocate_tensors()
    details = {d["name"]: d["index"] for d in interpreter.get_tensor_details()}
    out["a.tflite"] = {"MatMul": interpreter.get_tensor(details["MatMul"])}
    return out


def _ramp(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
    """A part of 0, 1, 2 ..., by its place in the whole variable."""
    full = np.arange(np.prod(partition_info.full_shape), dtype=np.float32).reshape(partition_info.full_shape)
    return full[tuple(slice(at, at + n) for at, n in zip(partition_info.var_offset, shape, strict=True))]


def record_hdf5(folder: Path) -> Read:
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(3, name="d1"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2, dtype="bfloat16"),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.save(folder / "k.keras")
    model.save_weights(folder / "k.weights.h5")
    model.save(folder / "old.h5")
    table = np.arange(60, dtype="f4").reshape(6, 10)
    with h5py.File(folder / "chunks.h5", "w") as f:
        f.create_dataset("a/w", data=table, chunks=(4, 4), compression="gzip", shuffle=True, fletcher32=True)
        f.create_dataset("c", data=table, chunks=(4, 4))
        f.create_dataset("s", data=np.float64(3.5))
        f.create_dataset("h", data=np.arange(4, dtype="f2"))
        f.create_dataset("b", data=np.array([True, False]))
        f.create_dataset("empty", shape=(0, 3), dtype="f4")
        f["again"] = f["h"]
        f["text"] = "hello"
        f.create_dataset("unset", shape=(3,), dtype="i8")
    with h5py.File(folder / "latest.h5", "w", libver="latest") as f:
        f.create_dataset("a/w", data=W)
        f.create_dataset("one", data=table, chunks=(6, 10), compression="gzip")
        f.create_dataset("many", data=table, chunks=(4, 4))
    with h5py.File(folder / "big.h5", "w") as f:
        f.create_dataset("w", data=W.astype(">f4"))
    with h5py.File(folder / "hostile.h5", "w") as f:
        f.create_dataset("external", (4,), dtype="u1", external=[("/etc/hostname", 0, 4)])
        f["soft"] = h5py.SoftLink("/external")
        f["link"] = h5py.ExternalLink("other.h5", "/w")
        f.create_dataset("bomb", shape=(1 << 40,), dtype="f4", chunks=(1 << 20,), compression="gzip")
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "w", (3,))
        f.create_virtual_dataset("virtual", layout)
        f.create_dataset("honest", data=W)
    with zipfile.ZipFile(folder / "k.keras") as archive:
        (folder / "inside.h5").write_bytes(archive.read("model.weights.h5"))
    kept = {
        "hostile.h5": {"honest"},
        "latest.h5": {"a/w", "one"},
        "chunks.h5": {"a/w", "c", "s", "h", "b", "empty", "again"},
    }
    out: Read = {}
    for name in ("inside.h5", "k.weights.h5", "old.h5", "chunks.h5", "latest.h5", "big.h5", "hostile.h5"):
        read: Read = {}
        with h5py.File(folder / name) as f:
            for path in kept.get(name) or _datasets(f):
                read[path] = f[path][()]
        out[name] = read
    (folder / "inside.h5").unlink()
    return {"k.keras": out.pop("inside.h5"), **out}


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def record_flax(folder: Path) -> Read:
    dense = {"kernel": W.astype(ml_dtypes.bfloat16), "bias": np.arange(3, dtype=np.float32)}
    tree = {
        "params": {
            "dense": dense,
            "s": np.int32(7),
            "c": np.array([1 + 2j], np.complex64),
            "e": np.zeros((0, 2), np.int8),
        },
        "step": 3,
    }
    (folder / "a.msgpack").write_bytes(flax.to_bytes(tree))
    flax.MAX_CHUNK_SIZE = 16
    chunked = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.arange(2, dtype=np.float32)}
    (folder / "chunked.msgpack").write_bytes(flax.to_bytes(chunked))
    flax.MAX_CHUNK_SIZE = 2**30
    params = flax.msgpack_restore((folder / "a.msgpack").read_bytes())["params"]
    flat = {f"params.dense.{k}": v for k, v in params["dense"].items()} | {
        f"params.{k}": params[k] for k in ("s", "c", "e")
    }
    return {"a.msgpack": flat, "chunked.msgpack": flax.msgpack_restore((folder / "chunked.msgpack").read_bytes())}


def record_openvino(folder: Path) -> Read:
    x = ops.parameter([1, 2], np.float32, name="x")
    w, half = ops.constant(W, name="w"), ops.constant(np.array([1, 2, 3], np.float16), name="half")
    y = ops.add(ops.matmul(x, w, False, False), ops.convert(half, np.float32))
    openvino.save_model(openvino.Model([y], [x], "m"), folder / "ir.xml", compress_to_fp16=False)
    model = openvino.Core().read_model(folder / "ir.xml")
    return {"ir.xml": {op.get_friendly_name(): op.data for op in model.get_ops() if op.get_type_name() == "Constant"}}


def record_ctranslate2(folder: Path) -> Read:
    class Spec(model_spec.LanguageModelSpec):  # type: ignore[misc]
        name, revision = "ToySpec", 1

        def __init__(self) -> None:
            super().__init__()
            self.lin, self.other = ct2.common_spec.LinearSpec(), ct2.common_spec.LinearSpec()

        def get_default_config(self) -> Any:
            return model_spec.LanguageModelConfig()

        def get_vocabulary_size(self) -> int:
            return 4

    spec = Spec()
    spec.lin.weight, spec.lin.bias = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(3, dtype=np.float32)
    spec.other.weight = spec.lin.weight
    spec.register_vocabulary(["a", "b", "c", "d"])
    spec.validate()
    spec.optimize("int8")
    (folder / "ct2").mkdir()
    spec._serialize(str(folder / "ct2" / "model.bin"))
    read = {
        name.replace(".", "/"): value.numpy() if hasattr(value, "numpy") else value
        for name, value in spec.variables().items()
        if not isinstance(value, str)
    }
    read["other/weight"], read["other/weight_scale"] = read["lin/weight"], read["lin/weight_scale"]
    return {"ct2/model.bin": read}


def record_torch(folder: Path) -> Read:
    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(3, 2)
            self.register_buffer("buf", torch.arange(4, dtype=torch.bfloat16))
            self.turned = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
            self.k = torch.arange(3.0)

        def forward(self, x: Any) -> Any:
            return self.lin(x) + self.buf[:2].float() + self.turned.sum() + self.k.sum()

    model = Model()
    model.lin.weight.data, model.lin.bias.data = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    torch.export.save(torch.export.export(model, (torch.ones(1, 3),)), folder / "m.pt2")
    program = torch.export.load(folder / "m.pt2")
    tensors = {**program.state_dict, **program.constants}
    buffer = tensors.pop("buf")
    return {"m.pt2": {k: v.detach().numpy() for k, v in tensors.items()} | {"buf": buffer.view(torch.uint16).numpy()}}


RECORDERS: tuple[Callable[[Path], Read], ...] = (
    record_onnx, record_tensorflow, record_hdf5, record_flax, record_openvino, record_ctranslate2, record_torch,
)  # fmt: skip


def plain(value: Any) -> list[Any]:
    """A tensor's shape and bytes, little-endian."""
    array = np.asarray(value)
    array = array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
    return [list(array.shape), array.tobytes().hex()]


def main() -> None:
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for record in RECORDERS:
            for name, tensors in record(folder).items():
                expected[name] = {key: plain(value) for key, value in sorted(tensors.items())}
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                archive.writestr(
                    zipfile.ZipInfo(path.relative_to(folder).as_posix()), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
            text = json.dumps(expected, indent=1)
            archive.writestr(zipfile.ZipInfo("expected.json"), text, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
