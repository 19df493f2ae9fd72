"""Models of KerasHub, made by its own converter (`record_keras_roles.py`), become those of transformers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.golden_files import extracted, tensor_bytes
from tests.models.record_keras_roles import CASES
from tests.models.role_rows import remove_row

import weighbridge as wb
from weighbridge.base.errors import FormatError, WeighbridgeError
from weighbridge.models import keras_roles
from weighbridge.models.keras_roles import plain_path

GOLDEN = Path(__file__).with_name("golden") / "keras_roles.zip"
NO_TOKENIZER: Mapping[str, Any] = {"tokenizer": False}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(GOLDEN, tmp_path_factory.mktemp("keras"))


def keras_file(root: Path, case: str) -> Path:
    return root / case / "keras" / CASES[case][-1]


def converted(root: Path, case: str, target: Path) -> dict[str, bytes]:
    wb.convert(keras_file(root, case), target, to="hf", config=root / case)
    return tensor_bytes(target)


@pytest.mark.parametrize("case", CASES)
def test_a_folder_has_the_tensors_of_transformers(case: str, root: Path, tmp_path: Path) -> None:
    result = wb.convert(keras_file(root, case), tmp_path / "out", to="hf", config=root / case)
    assert tensor_bytes(tmp_path / "out") == tensor_bytes(root / case)
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"]
    assert any("KerasHub's names are replaced" in note for note in result.notes)


@pytest.mark.parametrize("case", [case for case in CASES if case != "bert"])
def test_a_gguf_is_that_of_transformers_file(case: str, root: Path, tmp_path: Path) -> None:
    wb.convert(root / case, tmp_path / "theirs.gguf", **NO_TOKENIZER)
    wb.convert(keras_file(root, case), tmp_path / "mine.gguf", config=root / case, **NO_TOKENIZER)
    assert tensor_bytes(tmp_path / "mine.gguf") == tensor_bytes(tmp_path / "theirs.gguf")


@pytest.mark.parametrize("case", ["gemma2", "llama", "mixtral", "qwen3"])
def test_an_mlx_folder_is_that_of_transformers_file(case: str, root: Path, tmp_path: Path) -> None:
    wb.convert(root / case, tmp_path / "theirs", to="mlx")
    wb.convert(keras_file(root, case), tmp_path / "mine", to="mlx", config=root / case)
    assert tensor_bytes(tmp_path / "mine") == tensor_bytes(tmp_path / "theirs")


def test_variables_of_the_optimizer_are_listed(root: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(keras_file(root, "llama"), tmp_path / "out", to="hf", config=root / "llama")
    assert {str(loss.tensor) for loss in plan.losses if "optimizer" in loss.message} == {
        "optimizer/vars/0", "optimizer/vars/1"
    }  # fmt: skip


def test_another_model_s_config_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="shape differs"):
        wb.convert(keras_file(root, "llama"), tmp_path / "out", to="hf", config=root / "qwen3")
    with pytest.raises(WeighbridgeError):
        wb.convert(keras_file(root, "llama"), tmp_path / "out.gguf", config=root / "bert", **NO_TOKENIZER)
    assert not list(tmp_path.iterdir())


PATHS = {
    "layers/gemma_decoder_block/attention/query_dense/vars/0": "0/attention/query_dense/vars/0",
    "layers/gemma_backbone/layers/gemma_decoder_block_11/ffw_linear/vars/0": "11/ffw_linear/vars/0",
    "layers/transformer_encoder_1/_self_attention_layer/key_dense/vars/1": "1/self_attention_layer/key_dense/vars/1",
    "layers/llama_transformer_decoder/_feedforward_layernorm/vars/0": "0/feedforward_layernorm/vars/0",
    "layers/mistral_layer_normalization/vars/0": "norm/vars/0",
    "layers/rms_normalization/vars/0": "norm/vars/0",
    "layers/masked_lm_head/_intermediate_layer_norm/vars/1": "masked_lm_head/intermediate_layer_norm/vars/1",
}


@pytest.mark.parametrize("name", PATHS)
def test_paths(name: str) -> None:
    assert plain_path(name) == PATHS[name]


#: The roles of the table whose row a case needs.
ROWS = [
    *((kind, role, {"pooler": "bert", "router": "mixtral"}.get(role, "llama")) for kind, role in (
        *(("matrices", role) for role in ("q", "k", "v", "o", "gate", "up", "down", "router", "pooler")),
        *(("norms", role) for role in ("attn_norm", "ffn_norm", "norm")), ("variables", "embed"), ("variables", "head"),
    )),
    ("norms", "attn_post_norm", "gemma2"), ("norms", "ffn_post_norm", "gemma2"), ("norms", "q_norm", "qwen3"),
    ("norms", "k_norm", "gemma3"), ("norms", "embed_norm", "bert"), ("variables", "position", "gpt2"),
    ("variables", "types", "bert"), *(("experts", role, "mixtral") for role in ("gate_exp", "up_exp", "down_exp")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "role", "case"), ROWS)
def test_each_row_counts(
    kind: str, role: str, case: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its row a role has no tensor."""
    remove_row(monkeypatch, keras_roles, "keras_roles", kind, role)
    with contextlib.suppress(WeighbridgeError):
        assert converted(root, case, tmp_path / "out") != tensor_bytes(root / case)
