"""`wb fit`: verdicts, placement, the longest context, devices, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.fit.published import MODELS
from tests.fit.test_weights import write_folder

import weighbridge as wb
from weighbridge.base.dtypes import Q8_0
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import GIB
from weighbridge.cli.main import cli
from weighbridge.fitting import devices
from weighbridge.fitting.cache import RunSettings, cache_memory, cache_of
from weighbridge.fitting.devices import device
from weighbridge.fitting.placement import WeightBytes, most_layers, place
from weighbridge.fitting.runtimes import RUNTIMES, cache_for

LLAMA = MODELS["llama-3.1-8b"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", "seed-oss")


def test_a_report_adds_up(model: Path) -> None:
    report = wb.fit(model, device="rtx4090", context=2048, type="Q8_0")
    parts = {row.part: row.nbytes for row in report.memory}
    host = 704 * 64 * 34 // 32  # the embedding, of which the device has none
    assert report
    assert report.verdict == "fits"
    assert report.needs == parts["weights"] + parts["KV cache"] + parts["compute buffers"] - host
    assert report.needs + report.free == 24 * GIB - devices.RESERVED
    assert report.placement.offloaded == report.placement.layers


def test_the_longest_context_is_where_it_stops_fitting(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 20}))
    small = devices.Device("small", "cuda", 40 << 20, 8 << 20, None)
    monkeypatch.setattr(devices, "device", lambda name: small)
    longest = wb.fit(model, type="Q8_0", parallel=1).longest_context
    assert 0 < longest < 1 << 24
    assert wb.fit(model, type="Q8_0", parallel=1, context=longest).free >= 0
    assert wb.fit(model, type="Q8_0", parallel=1, context=longest + 1).free < 0


def test_what_lies_on_the_device_by_offloaded_layers() -> None:
    """llama.cpp's own figures: Llama 3.1 8B in F32, a context of 8,192; -ngl 1, 16, 33."""
    layer = 872448000
    weights = WeightBytes(2101346304, (layer,) * 32, 2101362688, 0)
    memory = cache_memory(cache_of(LLAMA), RunSettings(context=8192))
    assert place(weights, memory, 0, 1).device == 2101362688
    assert place(weights, memory, 0, 16).device == 2101362688 + 15 * layer + 503316480
    assert place(weights, memory, 0, 33).host == 2101346304
    assert place(weights, memory, 0, 0).device == 0
    one_less = place(weights, memory, 0, 20).device - 1
    assert most_layers(weights, memory, 0, one_less).offloaded == 19


def test_a_shared_embedding_lies_on_both(model: Path) -> None:
    weights = WeightBytes(100, (10, 10), 105, 100)
    memory = cache_memory(cache_of({**MODELS["mamba-2.8b"], "mamba.block_count": 2}), RunSettings(context=512))
    assert weights.total == 125
    whole = place(weights, memory, 0, 3)
    assert whole.device + whole.host == weights.total + 100 + memory.total


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (RunSettings(context=512, type_v=Q8_0, flash_attention=False), "flash attention"),
        (RunSettings(context=0), "at least 1"),
    ],
)
def test_settings_that_llama_cpp_refuses(settings: RunSettings, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cache_memory(cache_of(LLAMA), settings)


def test_a_head_must_be_whole_blocks() -> None:
    keys = {**LLAMA, "llama.attention.key_length": 80}
    with pytest.raises(UsageError, match="80 elements"):
        cache_memory(cache_of(keys), RunSettings(context=512, type_k=Q8_0, type_v=Q8_0))


def test_mla_has_one_type() -> None:
    with pytest.raises(UsageError, match="one type"):
        cache_memory(cache_of(MODELS["deepseek-v3"]), RunSettings(context=512, type_k=Q8_0))


BAD: dict[str, dict[str, Any]] = {
    "llama.block_count": {"llama.block_count": 1 << 40},
    "general.architecture": {"general.architecture": 7},
    "llama.embedding_length": {"llama.embedding_length": "wide"},
    "llama.attention.head_count_kv": {"llama.attention.head_count_kv": [8] * 3},
}


@pytest.mark.parametrize("field", BAD)
def test_bad_keys_are_named(field: str) -> None:
    with pytest.raises(FormatError) as caught:
        cache_of({**LLAMA, **BAD[field]})
    assert caught.value.field == field


def test_a_missing_number_is_named() -> None:
    keys = {key: value for key, value in LLAMA.items() if key != "llama.block_count"}
    with pytest.raises(FormatError, match="block_count"):
        cache_of(keys)


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "memory", "bandwidth"),
    [
        ("rtx4090", 24, 1008e9), ("RTX 4090", 24, 1008e9), ("rtx-3090-ti", 24, 1008e9), ("h200", 141, 4800e9),
        ("m3-max-36gb", 36, 400e9), ("8GB", 8, None), ("a100", 40, 1555e9),
    ],
)  # fmt: skip
def test_devices_by_name(name: str, memory: int, bandwidth: float | None) -> None:
    found = device(name)
    assert (found.memory, found.bandwidth) == (memory * GIB, bandwidth)
    assert 0 < found.usable < found.memory


@pytest.mark.parametrize(("name", "hint"), [("rtx409", "rtx-4090"), ("m3-max-37gb", "36GB"), ("abacus", "this")])
def test_unknown_devices_name_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        device(name)
    assert hint in str(caught.value.hint)


def test_a_macs_share_and_limit() -> None:
    assert devices.metal("M3", 16 * GIB, 100e9).usable == int(16 * GIB * 0.667) - devices.RESERVED
    assert devices.metal("M3", 16 * GIB, 100e9, limit=14 * GIB).usable == 14 * GIB - devices.RESERVED
    assert devices.metal("M3", 16 * GIB, 100e9, limit=99 * GIB).usable == 16 * GIB - devices.RESERVED


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_output", lambda *command: "")
    assert device("this").kind in ("cpu", "metal")
    monkeypatch.setattr(devices, "_output", lambda *command: "NVIDIA GeForce RTX 4090, 24564, 23000\nbroken\n")
    found = device("this")
    assert (found.memory, found.bandwidth, found.separate) == (24564 << 20, 1008e9, True)


def test_every_row_of_the_table_is_found() -> None:
    for name in devices.device_names():
        assert device(name).name.lower().replace(" ", "-") == name


# -- runtimes ----------------------------------------------------------------------------------------------------------


def test_defaults_of_llama_server_and_ollama() -> None:
    server = RUNTIMES["llama.cpp"].settings(8192, None, Q8_0, True, None)
    assert (server.parallel, server.unified, server.context) == (4, True, 8192)
    assert RUNTIMES["llama.cpp"].settings(8192, 2, Q8_0, True, None).unified is False
    ollama = RUNTIMES["ollama"].settings(8192, 2, Q8_0, True, None)
    assert (ollama.context, ollama.ubatch, ollama.unified) == (16384, 1024, False)


@pytest.mark.parametrize(
    ("runtime", "nbytes"),
    [("mlx", 131072 * 1024), ("transformers", 131072 * 1000), ("vllm", 131072 * (1008 + 16))],
)
def test_caches_of_other_runtimes(runtime: str, nbytes: int) -> None:
    """Llama 3.1 8B holds 131,072 bytes a token in 16 bits."""
    assert cache_for(RUNTIMES[runtime], cache_of(LLAMA), RunSettings(context=1000)).total == nbytes


def test_a_type_that_the_runtime_has_not(model: Path) -> None:
    with pytest.raises(UsageError, match="no q8_0 cache"):
        wb.fit(model, device="8GB", runtime="transformers", cache_type="q8_0")
    with pytest.raises(UsageError, match="type doesn't apply"):
        wb.fit(model, device="8GB", runtime="mlx", type="Q4_K_M")


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


def test_the_command(model: Path) -> None:
    code, out = run("fit", model, "--device", "8GB", "--context", "32k")
    assert code == 0
    assert "longest context" in out
    assert "Q4_K_M" in out
    code, out = run("fit", model, "--device", "8GB", "--json")
    data = json.loads(out)
    assert data["schema"] == "weighbridge/fit/1"
    assert data["recommended"] == "Q8_0"
    code, out = run("fit", model, "--device", "8GB", "--type", "q4_k_m", "--explain")
    assert "elements of F16 x" in out
    lines = [line for line in out.splitlines() if " bytes (" in line and not line.startswith(" ")]
    assert len(lines) == 4
    assert all(line.endswith("]") for line in lines)  # the source of each rule
    code, out = run("fit", model, "--device", "8GB", "--runtime", "mlx", "--explain")
    assert "mlx-lm" in out
    assert "llama.cpp" not in out


def test_a_quantized_file_is_taken_as_it_is(model: Path, tmp_path: Path) -> None:
    wb.quantize(model, tmp_path / "q.gguf", "Q8_0", tokenizer=False)
    report = wb.fit(tmp_path / "q.gguf", device="8GB")
    assert [row.type for row in report.types] == ["as it is"]
    assert report.memory[0].nbytes == wb.inspect(tmp_path / "q.gguf").tensor_nbytes
    with pytest.raises(UsageError, match="quantized already"):
        wb.fit(tmp_path / "q.gguf", device="8GB", type="Q4_K_M")


def test_a_file_without_a_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", "seed-oss")
    (folder / "config.json").unlink()
    with pytest.raises(UnsupportedError, match=r"config\.json"):
        wb.fit(folder / "model.safetensors", device="8GB")


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("parallel", [None, 1, 4, 7])
def test_all_that_is_told_has_the_same_number_of_sequences(runtime: str, parallel: int | None, model: Path) -> None:
    report = wb.fit(model, device="24GB", runtime=runtime, parallel=parallel)
    told = " ".join([*report.notes, *report.explanation, *(row.why for row in report.memory)])
    assert set(re.findall(r"(\d+) sequences?", told)) <= {str(report.sequences)}
    assert parallel in (None, report.sequences)
    assert not (parallel and re.search("default|NUM_PARALLEL", told))
