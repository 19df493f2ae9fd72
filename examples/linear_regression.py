"""A model of two numbers through every format: trained, saved by PyTorch, read as the pickle that it is, then as
safetensors and as GGUF. Run it with `python examples/linear_regression.py [FOLDER]`; docs/guide-pickle.md walks along.

Every step checks that the numbers are still the same.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import torch

import weighbridge as wb
from weighbridge.reports.explain import explain

Weights = dict[str, list[float]]


def main(folder: Path) -> Weights:
    weights = train()
    pickled = save(weights, folder / "line.pt")
    look(pickled)
    safe = to_safetensors(pickled, folder / "line.safetensors")
    to_gguf(safe, folder / "line.gguf")
    return weights


# [train]
def train() -> Weights:
    """Points on the line y = 3x - 1, with noise; gradient descent finds the line back."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64).reshape(64, 1)
    y = 3 * x - 1 + 0.05 * torch.randn(64, 1)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(200):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}
    print(f"trained: weight {weights['weight'][0]:.4f}, bias {weights['bias'][0]:.4f} (the line was 3, -1)")
    return weights


# [save]
def save(weights: Weights, path: Path) -> Path:
    """torch.save makes a zip: a pickle that describes the dict, and one member of raw numbers for each tensor."""
    torch.save({name: torch.tensor(values) for name, values in weights.items()}, path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            print(f"  {member.file_size:4} bytes  {member.filename}")
        numbers = struct.unpack("<f", archive.read("line/data/0"))
    assert list(numbers) == weights["weight"]
    return path


# [look]
def look(path: Path) -> None:
    """The pickle is a program. Here is what it would make Python do; Weighbridge reads it without doing it."""
    (pickle,) = explain(path, calls=True).pickles
    for line in pickle.lines:
        print(f"  {line.at:4}  {line.op:10} {line.words}")
    assert {name.name for name in pickle.names} == {
        "torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "collections.OrderedDict",
    }  # fmt: skip


# [safetensors]
def to_safetensors(source: Path, path: Path) -> Path:
    """Safetensors has no program: eight bytes that tell the length of a JSON text, the text, the numbers."""
    wb.convert(source, path, overwrite=True)
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    print(f"  {json.dumps(header['weight'])}")
    begin, end = header["weight"]["data_offsets"]
    with wb.open(source) as model:
        assert data[8 + length + begin : 8 + length + end] == model["weight"].numpy().tobytes()
    return path


# [gguf]
def to_gguf(source: Path, path: Path) -> Path:
    """GGUF by hand: magic, version, counts; keys with typed values; tensor infos; the numbers, aligned to 32."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    with wb.open(source) as model:
        tensors = {name: model[name].numpy().copy() for name in model}
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text("line")  # 8: a string
    at = 0
    for name, array in tensors.items():
        header += text(name) + struct.pack(f"<I{array.ndim}QIQ", array.ndim, *array.shape[::-1], 0, at)  # 0: F32
        at += -(-array.nbytes // 32) * 32
    header += bytes(-len(header) % 32)
    path.write_bytes(header + b"".join(a.tobytes() + bytes(-a.nbytes % 32) for a in tensors.values()))
    with wb.open(path) as model:
        assert {name: model[name].numpy().tolist() for name in model} == {n: a.tolist() for n, a in tensors.items()}
    assert wb.identify(path).format == "gguf"
    print(f"  {len(tensors)} tensors in {path.stat().st_size} bytes")
    return path


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
