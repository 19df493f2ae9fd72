"""What config.json says of a quantized model, against what the libraries write and read; and each row of the table of
schemes changed turns that red."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from weighbridge.conversion.options import SchemeOptions
from weighbridge.conversion.schemes import configs as scheme_configs
from weighbridge.conversion.schemes import plan as planning
from weighbridge.conversion.schemes import table as schemes
from weighbridge.conversion.schemes.plan import choose_scheme
from weighbridge.conversion.schemes.table import Settings

if os.environ.get("CI") != "true":
    pytest.importorskip("compressed_tensors", reason="SCHEMES WERE NOT PROVED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
PRESETS = [name for name, scheme in schemes.SCHEMES.items() if scheme.method == "compressed-tensors"]

# Names of their own, since another scheme has the library's.
PRESET_NAMES = {"fp8_static": "FP8"}


def told(scheme: str, **options: Any) -> dict[str, Any]:
    how = choose_scheme(SchemeOptions(scheme=scheme, **options))
    settings = {"model.layers.0.mlp.up_proj": Settings(how.bits, how.group, how.symmetric)}
    return scheme_configs.config(how, settings, ["lm_head"])


def check_preset(name: str) -> None:
    """Our config of a preset is the library's own, but for what it says of experts."""
    import compressed_tensors
    import torch
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    preset = preset_name_to_scheme(PRESET_NAMES.get(name, name), ["Linear"])
    preset.format = infer_module_format(torch.nn.Linear, preset)
    want = QuantizationConfig(
        config_groups={"group_0": preset}, quantization_status="compressed", format=preset.format, ignore=["lm_head"]
    ).model_dump()
    want.pop("moe_sparsity_config")
    found = told(name)
    assert found.pop("version") == compressed_tensors.__version__
    assert found.pop("transform_config") == {}
    assert found == json.loads(json.dumps(want, default=str))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_the_library_writes(name: str) -> None:
    check_preset(name)


def test_options_are_in_the_config() -> None:
    weights = told("w4a16", q_group_size=-1, sym=False)["config_groups"]["group_0"]["weights"]
    assert (weights["strategy"], weights["group_size"], weights["symmetric"]) == ("channel", None, False)
    assert told("w4a16", q_group_size=64)["config_groups"]["group_0"]["weights"]["group_size"] == 64
    gptq = told("gptq", q_bits=8, q_group_size=-1)
    assert (gptq["bits"], gptq["group_size"], gptq["sym"], gptq["checkpoint_format"]) == (8, -1, True, "gptq")
    assert told("gptq", sym=False)["checkpoint_format"] == "gptq_v2"
    assert told("awq")["zero_point"] is True
    assert told("fp8")["weight_block_size"] == [128, 128]


def test_modules_with_settings_of_their_own() -> None:
    """compressed-tensors has a group for each; GPTQModel's `dynamic` names those that differ, and those left out."""
    from compressed_tensors.quantization import QuantizationConfig

    settings = {"a.q": Settings(4, 32, True), "a.k": Settings(4, 32, True), "a.v": Settings(8, 0, True)}
    packed = scheme_configs.config(schemes.SCHEMES["w4a16"], settings, ["lm_head", "a.o"])
    groups = packed["config_groups"]
    assert [(g["targets"], g["weights"]["num_bits"]) for g in groups.values()] == [(["a.q", "a.k"], 4), (["a.v"], 8)]
    kept = {k: v for k, v in packed.items() if k not in ("version", "transform_config")}
    assert QuantizationConfig.model_validate(kept).ignore == ["lm_head", "a.o"]
    gptq = scheme_configs.config(schemes.SCHEMES["gptq"], settings, ["lm_head", "a.o"])
    assert gptq["dynamic"] == {"+:^a\\.v$": {"bits": 8, "group_size": -1}, "-:^a\\.o$": {}}
    assert not gptq["lm_head"]


def _row(name: str, **changes: Any) -> Any:
    return MappingProxyType({**schemes.SCHEMES, name: schemes.SCHEMES[name]._replace(**changes)})


FAULTS: dict[str, tuple[Any, str, Any, Callable[[], None]]] = {
    **{f"format of {name}": (planning, "SCHEMES", _row(name, format="dense"), partial(check_preset, name))
       for name in PRESETS},
    **{f"bits of {name}": (planning, "SCHEMES", _row(name, bits=9), partial(check_preset, name))
       for name in PRESETS},
    **{f"groups of {name}": (planning, "SCHEMES", _row(name, group=16 if row.group != 16 else 32),
                             partial(check_preset, name))
       for name, row in schemes.SCHEMES.items() if name in PRESETS},
    **{f"activations of {name}": (planning, "SCHEMES", _row(name, activations={} if row.activations is None else None),
                                  partial(check_preset, name))
       for name, row in schemes.SCHEMES.items() if name in PRESETS},
    "blocks of fp8_block": (planning, "SCHEMES", _row("fp8_block", block=(64, 64)), lambda: check_preset("fp8_block")),
    "scales of 32": (scheme_configs, "_SCALES", {32: "torch.float8_e4m3fn", 16: "torch.float8_e4m3fn"},
                     lambda: check_preset("mxfp4a16")),
    "scales of 16": (scheme_configs, "_SCALES", {32: "torch.uint8", 16: "torch.uint8"},
                     lambda: check_preset("nvfp4a16")),
    "version": (scheme_configs, "_COMPRESSED", "0.17.0", lambda: check_preset("w4a16")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_row_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, wrong, check = FAULTS[fault]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises((AssertionError, KeyError)):
        check()
