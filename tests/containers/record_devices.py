"""Records models of ExecuTorch and Core ML for test_devices.py, and their tensors as these libraries read them.

python -m tests.containers.record_devices      writes tests/containers/golden/devices.zip

Needs executorch 1.5, torch 2.13 and coremltools 9.0.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import torch
from coremltools.converters.mil import Builder
from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter
from coremltools.proto import MIL_pb2
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.exir.scalar_type import ScalarType
from executorch.exir.schema import Tensor
from executorch.extension.flat_tensor.serialize.serialize import Cord, FlatTensorConfig, FlatTensorSerializer

GOLDEN = Path(__file__).with_name("golden") / "devices.zip"
Read = dict[str, list[Any]]


class Small(torch.nn.Module):  # type: ignore[misc]  # torch may be missing
    def __init__(self) -> None:
        super().__init__()
        self.l = torch.nn.Linear(3, 4)
        self.register_buffer("k", torch.arange(4, dtype=torch.int64))
        self.register_buffer("st", torch.full((2,), 1.5))
        self.h = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).half())
        self.c = torch.nn.Conv2d(2, 3, 1).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.st.add_(1)
        return self.l(x) + self.k + self.h.float().sum() + self.st.sum() + self.c.weight.sum()


def read_program(data: bytes) -> Read:
    """Type number, shape and bytes of each constant, as executorch's deserializer returns them."""
    file = deserialize_pte_binary(data)
    program, out = file.program, Read()
    for value in program.execution_plan[0].values:
        tensor = value.val
        if not isinstance(tensor, Tensor) or not tensor.data_buffer_idx:
            continue
        extra = tensor.extra_tensor_info
        if extra is not None and extra.location:
            continue
        buffers = file.mutable_data if tensor.allocation_info else program.constant_buffer
        kind = "mutable" if tensor.allocation_info else "buffer"
        name = (extra and extra.fully_qualified_name) or f"{kind}_{tensor.data_buffer_idx}"
        out[name] = in_order(tensor, buffers[tensor.data_buffer_idx].storage)
    for entry in file.named_data.pte_data if file.named_data else ():
        raw = file.named_data.buffers[file.named_data.pte_data[entry].buffer_index]
        out[entry] = [[len(raw)], bytes(raw).hex()]
    return out


_NUMPY = {4: "<i8", 5: "<f2", 6: "<f4"}


def in_order(layout: Any, raw: bytes) -> list[Any]:
    """The shape, and the bytes with the last axis innermost."""
    order, dtype = list(layout.dim_order), np.dtype(_NUMPY[int(layout.scalar_type)])
    stored = np.frombuffer(raw, dtype, int(np.prod(layout.sizes))).reshape([layout.sizes[axis] for axis in order])
    values = stored.transpose([order.index(axis) for axis in range(len(order))])
    return [list(layout.sizes), values.tobytes().hex()]


def record_executorch(folder: Path) -> dict[str, Read]:
    torch.manual_seed(0)
    module = Small().eval()
    exported = torch.export.export(module, (torch.ones(2, 3),))
    files = {"a.pte": to_edge(exported).to_executorch()}
    passes = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["st"])])
    files["mutable.pte"] = to_edge(exported).to_executorch(passes)
    external = to_edge(exported).to_executorch(ExecutorchBackendConfig(external_constants=True))
    files["external.pte"] = external
    files["xnnpack.pte"] = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).to_executorch()
    for name, program in files.items():
        (folder / name).write_bytes(program.buffer)
    external.write_tensor_data_to_file(folder)
    (folder / "_default_external_constant.ptd").rename(folder / "external.ptd")
    read = {name: read_program((folder / name).read_bytes()) for name in files}
    data = FlatTensorSerializer(FlatTensorConfig()).deserialize(Cord((folder / "external.ptd").read_bytes()))
    entries = data.named_data.items()
    read["external.ptd"] = {name: in_order(e.tensor_layout, data.buffers[e.buffer_index]) for name, e in entries}
    return read


def record_core_ml(folder: Path) -> dict[str, Read]:
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape).astype(np.float32) for shape in ((32, 16), (64, 32)))

    @Builder.program(input_specs=[Builder.TensorSpec(shape=(1, 16))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        inner = Builder.linear(x=x, weight=first, bias=np.arange(32, dtype=np.float32), name="lin")
        return Builder.linear(x=inner, weight=second, bias=np.ones(64, np.float32), name="lin2")

    half = ct.convert(
        program, convert_to="mlprogram", compute_precision=ct.precision.FLOAT16,
        minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
    )  # fmt: skip
    config = cto.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_channel", weight_threshold=0
    )
    packed = cto.linear_quantize_weights(half, cto.OptimizationConfig(global_config=config))
    read = {}
    for name, model in (("half.mlpackage", half), ("int4.mlpackage", packed)):
        model.save(str(folder / name))
        read[name] = read_package(model, folder / name / "Data/com.apple.CoreML/weights/weight.bin")
    writer = _BlobStorageWriter(str(folder / "w.bin"), True)
    writer.write_float_data(np.arange(4, dtype=np.float32))
    writer.write_fp16_data(np.array([1, 2, -3], np.float16).view(np.uint16))
    del writer
    read["w.bin"] = {
        "blob_64": [[4], np.arange(4, dtype="<f4").tobytes().hex()],
        "blob_192": [[3], np.array([1, 2, -3], "<f2").tobytes().hex()],
    }
    return read


def read_package(model: Any, weights: Path) -> Read:
    """The blobs that the program names, through coremltools' message and its reader of blobs."""
    reader, out = _BlobStorageReader(str(weights)), Read()
    block = next(iter(model.get_spec().mlProgram.functions["main"].block_specializations.values()))

    def add(name: str, value: MIL_pb2.Value) -> None:
        if value.WhichOneof("value") != "blobFileValue":
            return
        offset, kind = value.blobFileValue.offset, value.type.tensorType.dataType
        shape = [d.constant.size for d in value.type.tensorType.dimensions]
        if kind == MIL_pb2.FLOAT16:
            out[name] = [shape, np.asarray(reader.read_fp16_data(offset), np.uint16).tobytes().hex()]
        else:
            codes = np.asarray(reader.read_int4_data(offset), np.int8).ravel() & 15
            packed = (codes[0::2] | codes[1::2] << 4).astype(np.uint8)
            out[name] = [[len(packed)], packed.tobytes().hex()]

    for operation in block.operations:
        result = operation.outputs[0].name
        if "val" in operation.attributes:
            add(result, operation.attributes["val"])
        for key, argument in operation.inputs.items():
            for binding in argument.arguments:
                if binding.WhichOneof("binding") == "value":
                    add(f"{result}/{key}", binding.value)
    return out


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        expected = {**record_executorch(folder), **record_core_ml(folder)}
        types = {"executorch": {t.name: int(t) for t in ScalarType}, "coreml": dict(MIL_pb2.DataType.items())}
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        with zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, table in (("expected.json", expected), ("types.json", types)):
                files[name] = json.dumps(table, indent=1).encode()
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
