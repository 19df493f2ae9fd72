"""Records models in existing graphs for test_graph.py, as onnx, onnxruntime and ctranslate2 accept them:

    python -m tests.conversion.record_graphs

For each case the archive has the existing model, the weights, and the files that Weighbridge wrote. They are recorded
only if the libraries' checkers pass, and if the outputs of both programs are those of the weights. Needs onnx,
onnxruntime and ctranslate2.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import onnx
import onnxruntime
from ctranslate2.specs import transformer_spec
from onnx import TensorProto, helper, numpy_helper

import weighbridge as wb

GOLDEN = Path(__file__).with_name("golden") / "graphs.zip"
RANDOM = np.random.default_rng(27)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RANDOM.standard_normal(shape).astype(np.float32)


def onnx_model(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], shift: list[int]) -> onnx.ModelProto:
    """y = relu(x @ first) @ second + shift: raw data, numbers of an F16 as varints, a Constant of integers, and one in
    the branches of an If."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["kept"], ["inner"])], "branch", [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [4])],
        [numpy_helper.from_array(np.zeros(4, np.float32), "kept")],
    )  # fmt: skip
    half = helper.make_tensor("second", TensorProto.FLOAT16, second.shape, second.astype(np.float16).ravel())
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Cast", ["second"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["r", "wide"], ["m"]),
        helper.make_node("Constant", [], ["shift"], value=helper.make_tensor("", TensorProto.INT64, [4], shift)),
        helper.make_node("Cast", ["shift"], ["moved"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["m", "moved"], ["s"]),
        helper.make_node("If", ["yes"], ["zero"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["s", "zero"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, size]) for n, size in (("x", 8), ("y", 4)))
    weights = [numpy_helper.from_array(first, "first"), half, helper.make_tensor("yes", TensorProto.BOOL, [], [True])]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check_onnx(path: Path, weights: dict[str, Any]) -> None:
    onnx.checker.check_model(str(path), full_check=True)
    x = floats(2, 8)
    expected = (
        np.maximum(x @ weights["first"].astype(np.float32), 0) @ weights["second"].astype(np.float16).astype(np.float32)
        + weights["shift"]
    )
    session = onnxruntime.InferenceSession(str(path))
    assert np.allclose(session.run(None, {"x": x})[0], expected, atol=1e-5), path


def record_onnx(folder: Path, external: bool) -> None:
    model = onnx_model(floats(8, 6), floats(6, 4), [1, -2, 3, 4])
    onnx.save(
        model, folder / "given.onnx", save_as_external_data=external, location="given.data", size_threshold=64,
        convert_attribute=False,
    )  # fmt: skip
    new = {"first": floats(8, 6), "second": floats(6, 4), "shift": np.array([300, -70000, 0, 5], np.int64)}
    wb.save(new, folder / "weights.safetensors")
    wb.convert(folder / "weights.safetensors", folder / "written/", graph=folder / "given.onnx")
    check_onnx(folder / "written" / "given.onnx", new)


def decoder(kind: str) -> transformer_spec.TransformerDecoderModelSpec:
    """A decoder of one layer."""
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(1, 2, activation=ctranslate2.specs.Activation.GELU)
    width, vocabulary = 16, 12

    def linear(part: Any, rows: int, columns: int) -> None:
        part.weight, part.bias = floats(rows, columns) / 4, floats(rows) / 8

    def norm(part: Any) -> None:
        part.gamma, part.beta = 1 + floats(width) / 8, floats(width) / 8

    inner = spec.decoder
    inner.embeddings.weight = floats(vocabulary, width)
    inner.position_encodings.encodings = floats(32, width)
    inner.scale_embeddings = False
    norm(inner.layer_norm)
    inner.projection.weight, inner.projection.bias = inner.embeddings.weight, floats(vocabulary)
    layer = inner.layer[0]
    for part in (layer.self_attention.layer_norm, layer.ffn.layer_norm):
        norm(part)
    linear(layer.self_attention.linear[0], 3 * width, width)
    linear(layer.self_attention.linear[1], width, width)
    linear(layer.ffn.linear_0, 32, width)
    linear(layer.ffn.linear_1, width, 32)
    spec.register_vocabulary([f"t{i}" for i in range(vocabulary - 3)] + ["<s>", "</s>", "<unk>"])
    spec.validate()
    if kind != "float32":
        spec.optimize(kind)
    return spec


def scores(folder: Path) -> list[float]:
    generator = ctranslate2.Generator(str(folder), compute_type="default")
    tokens = [["<s>", "t1", "t5", "t3", "t8"], ["<s>", "t0", "t0"]]
    return [score for answer in generator.score_batch(tokens) for score in answer.log_probs]


def record_ctranslate2(folder: Path, kind: str) -> None:
    for name in ("given", "other"):  # two models of one structure
        (folder / name).mkdir()
        decoder(kind).save(str(folder / name))
    wb.convert(folder / "other" / "model.bin", folder / "weights.safetensors")
    wb.convert(folder / "weights.safetensors", folder / "written/", graph=folder / "given")
    assert scores(folder / "written") == scores(folder / "other") != scores(folder / "given")


def record_quantized(folder: Path) -> None:
    """Floats into an int8 model give the file that CTranslate2 writes for them."""
    spec = decoder("float32")
    rows = spec.decoder.layer[0].ffn.linear_0.weight.numpy()
    rows[3] = 0
    rows[4] = np.arange(16) - 3.5  # ties
    rows[4, 0] = 127
    rows[5] = 1e-40  # whose scale would overflow
    for name in ("given", "floats", "other"):
        (folder / name).mkdir()
    decoder("int8").save(str(folder / "given"))
    spec.save(str(folder / "floats"))
    wb.convert(folder / "floats" / "model.bin", folder / "weights.safetensors")
    spec.optimize("int8")
    spec.save(str(folder / "other"))
    wb.convert(folder / "weights.safetensors", folder / "written/", graph=folder / "given")
    assert (folder / "written" / "model.bin").read_bytes() == (folder / "other" / "model.bin").read_bytes()
    assert scores(folder / "written") == scores(folder / "other") != scores(folder / "given")


def main() -> None:
    cases: dict[str, Any] = {"onnx": (record_onnx, False), "external": (record_onnx, True)}
    cases |= {kind: (record_ctranslate2, kind) for kind in ("float32", "float16", "bfloat16", "int8")}
    cases["quantized"] = (record_quantized,)
    with tempfile.TemporaryDirectory() as top, zipfile.ZipFile(GOLDEN, "w", zipfile.ZIP_DEFLATED) as archive:
        for case, (record, *how) in cases.items():
            (folder := Path(top) / case).mkdir()
            record(folder, *how)
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not {"other", "floats"} & {*path.parts}:
                    archive.write(path, path.relative_to(top).as_posix())
        versions = {library.__name__: library.__version__ for library in (onnx, onnxruntime, ctranslate2)}
        archive.writestr("versions.json", json.dumps(versions))


if __name__ == "__main__":
    main()
