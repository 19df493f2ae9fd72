"""Megatron-LM's checkpoints in the format of torch, recorded from megatron-core: the parameters are those that its
`sharded_state_dict` states, bit for bit; files that aren't one checkpoint are refused, and named by their rules."""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.containers.megatron_cases import CASES, FOLDER, STEP, expected, unpack

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.torch import megatron
from weighbridge.containers.torch.megatron import CUTS, FILES, LATENT_SECTIONS, MIXER_SECTIONS, CutAxis

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("megatron"))


def tensors(path: Path, **options: Any) -> dict[str, np.ndarray]:
    with wb.open(path, **options) as model:
        return {name: model[name].numpy() for name in model}


def assert_same(found: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == right.keys()
    for name, array in right.items():
        assert (found[name].shape, found[name].tobytes()) == (array.shape, array.tobytes()), name


# ---- recorded by megatron-core -------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", CASES)
def test_the_parameters_are_those_of_megatron(recorded: Path, run: str) -> None:
    right = expected(recorded / f"{run}.npz")
    assert_same(tensors(recorded / run), right)
    assert_same(tensors(recorded / run / FOLDER), right)
    assert_same(tensors(recorded / run, step=STEP), right)


@pytest.mark.parametrize("run", CASES)
def test_any_rows_are_those_of_the_parameter(recorded: Path, run: str) -> None:
    rng = random.Random(run)
    with wb.open(recorded / run) as model:
        for name, array in expected(recorded / f"{run}.npz").items():
            node = model.source.stored[name]
            lo = rng.randrange(node.spec.rows + 1)
            hi = rng.randrange(lo, node.spec.rows + 1)
            width = node.spec.row_bytes
            assert node.read(lo, hi).tobytes() == array.tobytes()[lo * width : hi * width], name


def test_every_kind_of_parallelism_and_cut_is_recorded(recorded: Path) -> None:
    cases = CASES.values()
    for kind in ("tensor", "pipeline", "expert", "virtual", "expert_tensor", "gated", "tied", "positions", "first",
                 "latent", "mixer"):  # fmt: skip
        assert len({getattr(case, kind) for case in cases}) > 1, kind
    names = {name for run in CASES for name in expected(recorded / f"{run}.npz")}
    cut = {cut for tail, cut in CUTS.items() if any(name.endswith(tail) for name in names)}
    assert cut == set(CutAxis)


#: The rows of the table that the recorded models have.
RECORDED = (
    "word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias", "linear_proj.weight",
    "linear_proj.bias", "linear_fc1.weight", "linear_fc1.bias", "linear_fc2.weight", "linear_fc2.bias",
    "position_embeddings.weight", "router.weight", "linear_q_down_proj.weight", "linear_q_up_proj.weight",
    "linear_kv_down_proj.weight", "linear_kv_up_proj.weight", "mixer.in_proj.weight", "mixer.conv1d.weight",
    "mixer.conv1d.bias", "mixer.A_log", "mixer.D", "mixer.dt_bias", "mixer.norm.weight", "mixer.out_proj.weight",
)  # fmt: skip


@pytest.mark.parametrize("tail", RECORDED)
@pytest.mark.parametrize("cut", CutAxis)
def test_every_other_cut_is_noticed(recorded: Path, monkeypatch: pytest.MonkeyPatch, tail: str, cut: CutAxis) -> None:
    if cut is CUTS[tail] or ({cut, CUTS[tail]} == {CutAxis.ROWS, CutAxis.GATED} and "fc1" not in tail):
        return  # a layer without a gate has one half
    monkeypatch.setattr(megatron, "CUTS", {**CUTS, tail: cut})
    runs = ("tensor", "gpt", "pipeline", "all", "latent", "latent-whole", "mixer")
    assert is_noticed(models(recorded, *runs)), f"{tail} as {cut} passes"


def models(recorded: Path, *runs: str) -> Iterator[tuple[Path, Mapping[str, np.ndarray]]]:
    """Runs and their parameters."""
    return ((recorded / run, expected(recorded / f"{run}.npz")) for run in runs)


def is_noticed(runs: Iterable[tuple[Path, Mapping[str, np.ndarray]]]) -> bool:
    """Whether one of the runs is refused or has other parameters."""
    for path, right in runs:
        try:
            found = tensors(path)
        except (FormatError, UnsupportedError):
            return True
        if any(found[name].tobytes() != array.tobytes() for name, array in right.items()):
            return True
    return False


@pytest.mark.parametrize("cut", MIXER_SECTIONS)
def test_every_other_order_of_sections_is_noticed(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, cut: CutAxis
) -> None:
    for order in {"".join(order) for order in permutations(MIXER_SECTIONS[cut])} - {MIXER_SECTIONS[cut]}:
        monkeypatch.setattr(megatron, "MIXER_SECTIONS", {**MIXER_SECTIONS, cut: order})
        assert is_noticed(models(recorded, "mixer")), order


@pytest.mark.parametrize("layer", ["linear_q_down_proj", "linear_kv_down_proj"])
def test_every_other_width_of_a_down_projection_is_noticed(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    for other in LATENT_SECTIONS:
        if other != layer:
            monkeypatch.setattr(megatron, "LATENT_SECTIONS", {**LATENT_SECTIONS, layer: LATENT_SECTIONS[other]})
            assert is_noticed(models(recorded, "latent", "latent-whole")), other


@pytest.mark.parametrize("run", CASES)
def test_honest_checkpoints_pass_verify_and_scan(recorded: Path, run: str) -> None:
    report = wb.verify(recorded / run)
    assert (report.verdict, [f.rule for f in report.findings if f.rule != "run/step"]) == (
        "ok", ["pickle.unknown-class"] * len(list((recorded / run / FOLDER).iterdir())),
    )  # fmt: skip
    assert wb.scan(recorded / run / FOLDER)


def test_identify_and_inspect_read_them(recorded: Path) -> None:
    assert wb.identify(recorded / "all").format == "training-run"
    found = wb.identify(recorded / "all" / FOLDER)
    assert (found.format, found.readable, found.damage) == ("megatron", True, ())
    report = wb.inspect(recorded / "all")
    assert {row.name for row in report.tensors} == {*expected(recorded / "all.npz")}
    assert not report.damage


def test_the_rest_is_listed(recorded: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(recorded / "pipeline", run)
    (run / FOLDER / "mp_rank_00_000" / "distrib_optim.pt").write_bytes(bytes(1000))
    with wb.open(run) as model:
        left_out = {part.name: part for part in model.left_out}
    assert (left_out["output_layer.weight"].part, left_out["output_layer.weight"].tensors) == ("copy", 1)
    assert (left_out["optimizer"].part, left_out["optimizer"].tensors) == ("optimizer", 4)
    assert (left_out["distrib_optim.pt"].part, left_out["distrib_optim.pt"].bytes) == ("optimizer", 1000)
    assert {"args", "iteration", "opt_param_scheduler"} <= left_out.keys()
    wb.convert(run, tmp_path / "out.safetensors")
    assert_same(tensors(tmp_path / "out.safetensors"), expected(recorded / "pipeline.npz"))


def test_all_parts_are_those_of_each_file(recorded: Path) -> None:
    with wb.open(recorded / "tensor", all_parts=True) as model:
        names = set(model)
        part = model["mp_rank_01.model_optim_rng.model.decoder.layers.1.mlp.linear_fc2.weight"].numpy()
    assert "mp_rank_00.model_optim_rng.optimizer.state.0.exp_avg" in names
    whole = expected(recorded / "tensor.npz")["decoder.layers.1.mlp.linear_fc2.weight"]
    assert part.tobytes() == np.ascontiguousarray(whole[:, whole.shape[1] // 2 :]).tobytes()


def test_a_release_has_no_step(recorded: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded / "one" / FOLDER, tmp_path / "release")
    with pytest.raises(UsageError, match="no weights"):
        wb.open(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert_same(tensors(tmp_path), expected(recorded / "one.npz"))


# ---- files that aren't one checkpoint ------------------------------------------------------------------------------


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    saved = torch.load(path, weights_only=False)
    change(saved)
    torch.save(saved, path)


def _rank(folder: Path, name: str) -> Path:
    return folder / name / FILES[0]


def _set(**settings: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob(f"*/{FILES[0]}"):
            _edit(path, lambda saved: vars(saved["args"]).update(settings))

    return change


def _lose(folder: Path) -> None:
    shutil.rmtree(folder / "mp_rank_01_001_001")


def _other_step(folder: Path) -> None:
    _edit(_rank(folder, "mp_rank_01_000_001"), lambda saved: saved.update(iteration=STEP + 1))


def _other_sizes(folder: Path) -> None:
    _edit(_rank(folder, "mp_rank_01_000_001"), lambda saved: vars(saved["args"]).update(pipeline_model_parallel_size=4))


def _other_rank(folder: Path) -> None:
    (folder / "mp_rank_01_000_001").rename(folder / "mp_rank_07_000_001")


def _resize(name: str) -> Callable[[Path], None]:
    def change(saved: dict[str, Any]) -> None:
        saved["model"][name] = saved["model"][name][1:].clone()

    return lambda folder: _edit(_rank(folder, "mp_rank_01_000_000"), change)


def _remove(folder: Path) -> None:
    _edit(_rank(folder, "mp_rank_01_000_000"), lambda s: s["model"].pop("decoder.layers.0.input_layernorm.weight"))


def _no_model(folder: Path) -> None:
    _edit(_rank(folder, "mp_rank_01_000_000"), lambda saved: saved.pop("model"))


def _unknown(folder: Path) -> None:
    for path in folder.glob(f"*/{FILES[0]}"):
        _edit(path, lambda saved: saved["model"].update({"decoder.layers.0.odd.weight": torch.zeros(2)}))


FC1 = "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight"
FAULTS = {
    "missing": (_lose, "missing", "no file of tensor-parallel rank 1, pipeline rank 1, expert-parallel rank 1"),
    "step": (_other_step, "step", f"of step {STEP + 1}"),
    "sizes": (_other_sizes, "mixed", "other numbers of ranks"),
    "rank": (_other_rank, "mixed", "of tensor-parallel rank 7"),
    "shape": (_resize("decoder.layers.0.self_attention.linear_qkv.weight"), "tensors", "different shapes"),
    "expert's shape": (_resize(FC1), "tensors", "different shapes"),
    "name": (_remove, "tensors", "different tensors"),
    "no model": (_no_model, "tensors", "not a rank's file"),
    "unknown": (_unknown, "tensors", "it isn't known how ranks share"),
    "layers": (_set(num_layers=3), "tensors", "a setting contradicts the tensors"),
    "hidden": (_set(hidden_size=9), "tensors", "a setting contradicts the tensors"),
    "vocabulary": (_set(padded_vocab_size=25), "tensors", "a setting contradicts the tensors"),
    "experts": (_set(num_experts=8), "tensors", "a setting contradicts the tensors"),
    "not a number": (_set(tensor_model_parallel_size="2"), "tensors", "not a number of ranks"),
    "huge": (_set(expert_model_parallel_size=90_000), "missing", "no file of"),
    "shared experts": (_set(expert_tensor_parallel_size=4), "tensors", "4 ranks share an expert"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_and_refused(recorded: Path, tmp_path: Path, fault: str) -> None:
    damage, rule, message = FAULTS[fault]
    folder = tmp_path / "step"
    shutil.copytree(recorded / "all" / FOLDER, folder)
    damage(folder)
    report = wb.verify(folder)
    assert report.verdict == "failed"
    assert any(f.rule == f"megatron/{rule}" and message in f.message for f in report.findings), report.findings
    with pytest.raises((FormatError, UnsupportedError), match=message):
        wb.open(folder)
    with pytest.raises((FormatError, UnsupportedError)):
        wb.convert(folder, tmp_path / "out.safetensors")
    assert not (tmp_path / "out.safetensors").exists()


def test_a_rank_that_cannot_be_read(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step"
    shutil.copytree(recorded / "tensor" / FOLDER, folder)
    path = _rank(folder, "mp_rank_01")
    path.write_bytes(path.read_bytes()[:-900])
    assert "megatron/unread" in {f.rule for f in wb.verify(folder).findings}
    with pytest.raises(FormatError, match="mp_rank_01"):
        wb.open(folder)
    assert wb.inspect(folder).damage


def test_gated_layers_that_contradict_the_settings(recorded: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step"
    shutil.copytree(recorded / "gpt" / FOLDER, folder)
    _set(swiglu=True)(folder)
    with pytest.raises(FormatError, match="don't fit together"):
        wb.open(folder)


def test_a_hostile_rank_is_not_executed(recorded: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "made",)

    folder = tmp_path / "step"
    shutil.copytree(recorded / "tensor" / FOLDER, folder)
    path = _rank(folder, "mp_rank_01")
    saved = torch.load(path, weights_only=False)
    torch.save(saved | {"rng_state": Evil()}, path)
    assert not wb.scan(folder)
    assert len(tensors(folder)) == len(expected(recorded / "tensor.npz"))
    assert not (tmp_path / "made").exists()


# ---- files of this test's own writer -------------------------------------------------------------------------------


def save(folder: Path, model: Mapping[str, np.ndarray], **settings: Any) -> None:
    """One rank's file."""
    folder.mkdir(parents=True)
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}
    args = argparse.Namespace(**sizes | settings)
    parts = {name: torch.from_numpy(array) for name, array in model.items()}
    torch.save({"args": args, "iteration": 1, "model": parts}, folder / FILES[0])


def test_grouped_experts_of_one_tensor_each(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    whole = {f"decoder.layers.0.mlp.experts.linear_fc1.weight{n}": rng.random((4, 3)) for n in range(6)}
    for rank in range(3):
        part = {
            name.rstrip("0123456789") + str(n % 2): array
            for n, (name, array) in enumerate(whole.items()) if n // 2 == rank
        }  # fmt: skip
        save(tmp_path / f"mp_rank_00_{rank:03}", part, expert_model_parallel_size=3)
    assert_same(tensors(tmp_path), whole)


def test_experts_in_one_tensor_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        part = {"decoder.layers.0.mlp.experts.weight1": np.zeros((2, 8))}
        save(tmp_path / f"mp_rank_00_{rank:03}", part, expert_model_parallel_size=2)
    with pytest.raises(UnsupportedError, match="joins a rank's experts"):
        wb.open(tmp_path)


def test_older_names_without_settings(tmp_path: Path) -> None:
    layer = "language_model.encoder.layers.0.self_attention"
    whole = {f"{layer}.query_key_value.weight": np.arange(24.0).reshape(12, 2),
             f"{layer}.dense.weight": np.arange(8.0).reshape(2, 4), f"{layer}.dense.bias": np.arange(2.0)}  # fmt: skip
    for rank in range(2):
        (tmp_path / f"mp_rank_{rank:02}").mkdir()
        values = [torch.from_numpy(array) for array in whole.values()]
        query, dense, bias = values[0].chunk(2)[rank], values[1].chunk(2, dim=1)[rank], values[2]
        inside = {"query_key_value.weight": query.clone(), "dense.weight": dense.clone(), "dense.bias": bias}
        encoder = {f"layers.0.self_attention.{name}": value for name, value in inside.items()}
        torch.save({"model": {"language_model": {"encoder": encoder}}}, tmp_path / f"mp_rank_{rank:02}" / FILES[0])
    assert_same(tensors(tmp_path), whole)


def save_ranks(folder: Path, parts: Mapping[str, list[np.ndarray]], **settings: Any) -> None:
    """The files of tensor-parallel ranks from each parameter's parts."""
    ranks = len(next(iter(parts.values())))
    for n in range(ranks):
        part = {name: np.ascontiguousarray(arrays[n]) for name, arrays in parts.items()}
        save(folder / f"mp_rank_{n:02}", part, tensor_model_parallel_size=ranks, **settings)


def sections(whole: np.ndarray, sizes: list[int], ranks: int) -> list[np.ndarray]:
    """Each rank's rows: its share of every section."""
    split = [np.split(part, ranks) for part in np.split(whole, np.cumsum(sizes)[:-1])]
    return [np.concatenate([part[n] for part in split]) for n in range(ranks)]


# Newer than the recorded version: the splits follow MambaMixer (`partition_sizes`) and FusedMLASelfAttention.
D, S, H, LORA, ROPE = 16, 12, 8, 16, 8
KV_LORA = 24
_MIXER, _ATTENTION = "decoder.layers.0.mixer.", "decoder.layers.0.self_attention."
NEWER = {
    f"{_MIXER}in_proj.weight": ((2 * D + 2 * S + H, 6), [D, D, S, S, H]),
    f"{_MIXER}conv1d_weight": ((D + 2 * S, 1, 4), [D, S, S]),
    f"{_MIXER}conv1d_bias": ((D + 2 * S,), [D, S, S]),
    f"{_MIXER}A_log": ((H,), [H]),
    f"{_ATTENTION}linear_qkv_down_proj.weight": ((LORA + KV_LORA + ROPE, 6), [LORA, KV_LORA + ROPE]),
    f"{_ATTENTION}linear_q_up_proj.weight": ((40, LORA), [40]),
    f"{_ATTENTION}linear_kv_up_proj.weight": ((44, KV_LORA), [44]),
}


def newer(folder: Path, ranks: int, whole_down: bool) -> dict[str, np.ndarray]:
    """Saves the ranks' files. Returns the whole parameters. `whole_down`: every rank has the down projection."""
    rng = np.random.default_rng(3)
    whole = {name: rng.standard_normal(shape).astype(np.float32) for name, (shape, _) in NEWER.items()}
    parts = {name: sections(array, NEWER[name][1], ranks) for name, array in whole.items()}
    if whole_down:
        name = f"{_ATTENTION}linear_qkv_down_proj.weight"
        parts[name] = [whole[name]] * ranks
    out = f"{_MIXER}out_proj.weight"
    whole[out] = rng.standard_normal((6, D)).astype(np.float32)
    parts[out] = np.split(whole[out], ranks, axis=1)
    save_ranks(folder, parts, qk_pos_emb_head_dim=ROPE, q_lora_rank=LORA)
    return whole


@pytest.mark.parametrize("whole_down", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_newer_names_of_mixers_and_fused_down_projections(tmp_path: Path, ranks: int, whole_down: bool) -> None:
    right = newer(tmp_path / "step", ranks, whole_down)
    assert_same(tensors(tmp_path / "step"), right)
    wb.convert(tmp_path / "step", tmp_path / "out.safetensors")
    assert_same(tensors(tmp_path / "out.safetensors"), right)


NEWER_ROWS = ("mixer.conv1d_weight", "mixer.conv1d_bias", "linear_qkv_down_proj.weight")


@pytest.mark.parametrize("tail", NEWER_ROWS)
def test_every_other_cut_of_newer_names_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: str) -> None:
    paths = (tmp_path / "cut", tmp_path / "whole")
    runs = [(path, newer(path, 2, path.name == "whole")) for path in paths]
    q, kv = LATENT_SECTIONS["linear_qkv_down_proj"]
    faults: list[tuple[str, Any]] = [("CUTS", {**CUTS, tail: cut}) for cut in CutAxis if cut is not CUTS[tail]]
    if tail == "linear_qkv_down_proj.weight":
        faults += [("LATENT_SECTIONS", {**LATENT_SECTIONS, "linear_qkv_down_proj": row})
                   for row in ((kv, q), (q,), (kv,), (q, (kv[0], None)))]  # fmt: skip
    for table, rows in faults:
        with monkeypatch.context() as patch:
            patch.setattr(megatron, table, rows)
            assert is_noticed(runs), rows


def test_other_mixers_are_refused(tmp_path: Path) -> None:
    """Gated delta products and Mamba-1."""
    for n, rows in enumerate((2 * 8 + 2 * 3 + 2 * 2, 2 * 8)):
        shapes = {"in_proj.weight": (rows, 6), "conv1d.weight": (8 + 2 * 3, 1, 4), "A_log": (2,),
                  "out_proj.weight": (6, 8)}  # fmt: skip
        parts = {f"{_MIXER}{name}": [np.zeros(shape)] * 2 for name, shape in shapes.items()}
        save_ranks(tmp_path / str(n), parts)
        with pytest.raises(UnsupportedError, match="not a Mamba-2 mixer"):
            wb.open(tmp_path / str(n))


LATENT_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no setting": ({"qk_pos_emb_head_dim": None}, "without args.qk_pos_emb_head_dim"),
    "negative": ({"qk_pos_emb_head_dim": -ROPE}, "without args.qk_pos_emb_head_dim"),
    "width": ({"qk_pos_emb_head_dim": ROPE + 2}, "doesn't fit the up projection"),
    "rank": ({"q_lora_rank": LORA + 1}, "a setting contradicts"),
    "rank of keys": ({"kv_lora_rank": 512}, "a setting contradicts"),
}


@pytest.mark.parametrize("fault", LATENT_FAULTS)
def test_down_projections_that_contradict_the_settings(tmp_path: Path, fault: str) -> None:
    settings, message = LATENT_FAULTS[fault]
    newer(tmp_path, 2, whole_down=False)
    for path in tmp_path.glob(f"*/{FILES[0]}"):
        _edit(path, lambda saved: vars(saved["args"]).update(settings))
    with pytest.raises((FormatError, UnsupportedError), match=message):
        wb.open(tmp_path)


def test_a_down_projection_without_its_up_projection(tmp_path: Path) -> None:
    save_ranks(tmp_path, {f"{_ATTENTION}linear_q_down_proj.weight": [np.zeros((4, 6))] * 2})
    with pytest.raises(UnsupportedError, match="without linear_q_up_proj"):
        wb.open(tmp_path)
