"""The laws of providers, for every backend and kind of file; and that each law is seen to be broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import llama_tensors, make_folder
from tests.plugins import installed, write_package

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.providers.arrays import ArrayProvider
from weighbridge.providers.base import Provider
from weighbridge.providers.conformance import LAWS, faults
from weighbridge.tensors import nodes as n

KINDS = ("hf", "q8_0", "q4_0", "f16", "mlx", "torch", "gptq", "arrays", "plugin")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return make_sources(tmp_path_factory.mktemp("providers"))


def make_sources(folder: Path) -> dict[str, Any]:
    """One Llama in every kind of source."""
    hf = make_folder(folder / "hf")
    for dtype in ("q8_0", "f16"):
        wb.convert(hf, folder / f"{dtype}.gguf", dtype=dtype, tokenizer=False)
    wb.quantize(folder / "f16.gguf", folder / "q4_0.gguf", "Q4_0")
    wb.convert(hf, folder / "mlx", to=wb.MlxOptions(q_bits=4, q_group_size=32))
    wb.convert(hf, folder / "torch", to=wb.TorchFolderOptions())
    wb.convert(hf, folder / "gptq", to=wb.SchemeOptions(scheme="gptq", q_group_size=32))
    files = {name: folder / name for name in ("hf", "mlx", "torch", "gptq")}
    return {**files, **{name: folder / f"{name}.gguf" for name in ("q8_0", "q4_0", "f16")}}


BACKEND = """
from weighbridge.providers.arrays import ArrayProvider
from weighbridge.tensors.nodes import const
from weighbridge.base.dtypes import F32
import numpy as np

def open_toy(source, names, options, quantization):
    rows = int(source.partition(":")[2])
    return ArrayProvider({"w": const(np.arange(rows * 4, dtype=np.float32).reshape(rows, 4), F32)}, options=options)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[None]:
    entries = {"weighbridge.providers": {"toy": "toy_provider:open_toy"}}
    write_package(tmp_path, "toy_provider", {"toy_provider.py": BACKEND}, entries)
    with installed(tmp_path):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_keeps_every_law(kind: str, sources: Mapping[str, Any], plugin: None) -> None:
    source: Any = {"arrays": llama_tensors(), "plugin": "toy:3"}.get(kind) or sources[kind]
    with wb.provider(source) as provider:
        assert len(provider) >= 1
        assert faults(provider) == []


def test_a_plug_in_is_chosen_by_name_or_prefix(plugin: None) -> None:
    assert wb.provider("toy:5").shape("w") == (5, 4)
    assert wb.provider("x:2", backend="toy").shape("w") == (2, 4)
    with pytest.raises(UsageError, match="no provider is called 'other'"):
        wb.provider("toy:5", backend="other")


class _Broken(ArrayProvider):
    """Two small matrices, and one law broken by `fault`."""

    def __init__(self, fault: str) -> None:
        rng = np.random.default_rng(0)
        super().__init__({k: n.const(rng.normal(size=(4, 8)).astype(np.float32), F32) for k in "ab"})
        self.fault = fault

    def has(self, name: str) -> bool:
        return self.fault == "names" or super().has(name)

    def get(self, name: str, index: Any = ..., *, dtype: Any = None) -> Any:
        found = super().get(name, index, dtype=dtype)
        return found[:, ::-1] + (index is ...) if self.fault == "values" else found

    def quantization(self, name: str | None = None) -> Any:
        from weighbridge.providers.quantization import WeightQuantization

        found = super().quantization(name)
        return WeightQuantization(99, 1, "none") if self.fault == "types" and name else found

    def buffer(self, *names: str, **options: Any) -> Any:
        found = super().buffer(*names, **({} if self.fault == "refusals" else options))
        if self.fault == "buffers":
            found.data[:4] = 255
        return found

    def fuse(self, *names: str, **options: Any) -> Any:
        return super().fuse(*(names[::-1] if self.fault == "fusion" else names), **options)

    def metadata(self, key: str, default: Any = None) -> Any:
        return "anything" if self.fault == "metadata" else default


@pytest.mark.parametrize("law", LAWS)
def test_a_broken_law_is_seen(law: str) -> None:
    assert faults(_Broken("")) == []
    assert {fault.partition(":")[0] for fault in faults(_Broken(law))} == {law}


def test_what_is_no_provider_is_refused(tmp_path: Path) -> None:
    entries = {"weighbridge.providers": {"odd": "odd_provider:make"}}
    write_package(tmp_path, "odd_provider", {"odd_provider.py": "make = lambda *_: 3"}, entries)
    with installed(tmp_path), pytest.raises(UnsupportedError, match="gives a int, not a Provider"):
        wb.provider("x", backend="odd")
    assert issubclass(ArrayProvider, Provider)
