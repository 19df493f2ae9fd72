"""One question, one answer: whether a program loads a model, asked of every command that answers it, over whole and
damaged models in each form; and of the program itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.oracles import ours
from tests.oracles.llama_loads import Judge
from tests.oracles.models import CASES
from tests.proof.test_loads import DAMAGES, UNKNOWN, refusal

import weighbridge as wb
from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.clients import loads
from weighbridge.models.open import open_model
from weighbridge.shipping.run import how_to_run

if os.environ.get("CI") != "true":
    pytest.importorskip("mlx_lm", reason="THE JUDGES WERE NOT COMPARED: install requirements/oracles.txt")
pytestmark = pytest.mark.oracle
Maker = Callable[[str], Path]
Answer = Callable[[Path], bool | None]


# ---------------------------------------------------------------- the judges


def by_verify(path: Path) -> bool | None:
    return wb.verify(path).verdicts[0].accepts


def by_client(path: Path) -> bool | None:
    with open_model(path) as model:
        return loads(model).accepts


def by_prove(path: Path) -> bool | None:
    """A model that its program doesn't load isn't proved to be the same as itself."""
    checks = {check.name: check for check in wb.prove(path, path, static=True).checks}
    return False if "loads" in checks else by_client(path)


def by_ship(path: Path) -> bool | None:
    target = "llama-server" if path.suffix == ".gguf" else "mlx"
    (check,) = (check for check in wb.ship(target, path).checks if check.need == "model")
    return None if check.message.startswith("not checked") else check.ok


def by_lm_studio(path: Path) -> bool | None:
    with wb.plan_ship("lmstudio", path, "me/x", store=path.parent / "store") as plan:
        refused = any("won't load it" in note for note in plan.report.notes)
        assert bool(plan.report.run) is not refused
        return False if refused else by_client(path)


def by_fit(path: Path) -> bool | None:
    """A note; None for a model without a number that the rules for its memory need."""
    runtime = "llama.cpp" if path.suffix == ".gguf" else "mlx"
    try:
        report = wb.fit(path, device="24GB", runtime=runtime)
    except WeighbridgeError:
        return by_client(path)
    return False if any("won't load it" in note for note in report.notes) else by_client(path)


JUDGES: dict[str, Answer] = {
    "verify": by_verify, "prove": by_prove, "ship": by_ship, "ship lmstudio": by_lm_studio, "fit": by_fit,
}  # fmt: skip


# ---------------------------------------------------------------- the models


def gguf(name: str, remove: tuple[str, ...] = (), **keys: object) -> Callable[[Path, Maker], Path]:
    def make(folder: Path, folder_of: Maker) -> Path:
        path = ours.to_gguf(folder_of(name), folder / "m.gguf", CASES[name].asked, pre=CASES[name].pre, checked=False)
        edits = {key.replace("__", "."): value for key, value in keys.items()}
        if edits or remove:
            wb.edit(path, set=edits, remove=remove, allow_guarded=True)
        return path

    return make


def mlx(name: str, damage: str = "nothing", **options: object) -> Callable[[Path, Maker], Path]:
    def make(folder: Path, folder_of: Maker) -> Path:
        wb.convert(folder_of(name), folder / "mlx", to="mlx", **options)  # type: ignore[arg-type]
        DAMAGES[damage](folder / "mlx")
        return folder / "mlx"

    return make


MODELS: dict[str, Callable[[Path, Maker], Path]] = {
    "gguf": gguf("llama3-v4"),
    "gguf of experts": gguf("cohere2moe"),
    "gguf called phi-3": gguf("llama", general__name="Phi-3 mini"),
    "gguf with a token that isn't there": gguf("llama", tokenizer__ggml__bos_token_id=99_999_999),
    "gguf without a key": gguf("llama", remove=("llama.attention.layer_norm_rms_epsilon",)),
    "gguf of an unknown architecture": gguf("llama", general__architecture="zzz"),
    "mlx": mlx("llama3-v4"),
    "mlx of routers": mlx("deepseek-v3", q_bits=4, q_group_size=32),
    "mlx without latent names": mlx("deepseek-v2"),
    "mlx of pairs": mlx("gptneox"),
    **{f"mlx with {damage}": mlx("llama3-v4", damage, q_bits=4, q_group_size=32) for damage in DAMAGES
       if damage not in UNKNOWN},
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_every_command_gives_the_programs_own_answer(
    model: str, judge: Judge, folder_of: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = MODELS[model](tmp_path, folder_of)
    said = (judge.refusal(path) if path.suffix == ".gguf" else refusal(path)) is None
    assert {name: answer(path) for name, answer in JUDGES.items()} == dict.fromkeys(JUDGES, said)


@pytest.mark.parametrize("model", MODELS)
def test_a_command_is_printed_for_a_copy_that_loads(model: str, judge: Judge, folder_of: Maker, tmp_path: Path) -> None:
    """A conversion may mend what its source is refused for."""
    path = MODELS[model](tmp_path, folder_of)
    copy = tmp_path / ("copy.gguf" if path.suffix == ".gguf" else "copy")
    try:
        plan = wb.plan_convert(path, copy, to="gguf" if path.suffix == ".gguf" else "mlx")
    except WeighbridgeError as error:
        pytest.skip(str(error).splitlines()[0])
    with plan:
        line = how_to_run(plan)
        plan.run()
    said = judge.refusal(copy) if path.suffix == ".gguf" else refusal(copy)
    assert (line is not None) is (said is None), said
