"""Conservation of settings: a key of config.json that nothing reads is a loss, an error, or on the one list of harmless
keys. Asked of every recorded model, for every key that transformers' class writes, by giving it other values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file
from tests.models import projector_cases
from tests.models.family_judges import golden, models_of
from tests.oracles.published_configs import published

import weighbridge as api
from weighbridge.base.errors import RefusedError, WeighbridgeError
from weighbridge.cli.main import BY_NAME, load, main
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, family_of_hf, projector_of_hf, read_family
from weighbridge.models.arch.tables.values import multiplier
from weighbridge.models.config.keys import store
from weighbridge.models.config.losses import config_losses, unread
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.models.config.settings import KeyPatterns, groups, of_config, ruled_words, why_harmless
from weighbridge.reports import arch
from weighbridge.tensors.nodes import as_node

#: Keys that say what another key of the same config says, which wins; without the other one they count.
WINS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("rope_theta", "rotary_emb_base", "rotary_pct", "rotary_dim"), ("rope_parameters",)),
    "original_max_position_embeddings": ("rope_parameters",),
    "partial_rotary_factor": ("rope_parameters", "qk_rope_head_dim"),
    "rope_parameters": ("rope_scaling", "layer_rope_theta"),
    **dict.fromkeys(("sliding_window_pattern", "global_attn_every_n_layers", "full_attn_idxs"), ("layer_types",)),
    **dict.fromkeys(("num_local_experts",), ("num_experts",)),
    "compress_rates": ("compress_ratios",),
    "num_attention_heads": ("num_attention_heads_per_layer",),
    "model_max_length": ("max_position_embeddings",),
    "num_key_value_heads": ("num_attention_groups",),
    "num_experts_per_tok": ("moe_top_k",),
    "n_routed_experts": ("moe_num_experts",),
    **{f"index_{word}": ("sparse_attention_config",) for word in
       ("n_heads", "head_dim", "block_size", "topk_blocks", "local_blocks")},
}  # fmt: skip
ROTATIONS = ("rope_parameters", "rope_scaling")


def others(value: Any) -> Iterator[Any]:
    """Values that a key may have instead."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value // 2 if value > 1 else 3)
    elif isinstance(value, list) and value:
        yield from ([*value[:-1], other] for other in others(value[-1]))
        yield from ([other, *value[1:]] for other in others(value[0]))
    else:
        yield from ("another", 7)
    yield None


def meaning(config: Mapping[str, Any], family: Family) -> Any:
    """What a conversion makes of a config: keys, settings, sizes, losses; or that it is refused."""
    try:
        sizes = family.sizes_from_hf(config)
        keys = config_to_gguf(config, family, file_type=0)
        made = {name: as_node(node) for name, node in family.derived("gguf", sizes).items()}
        derived = {name: node.read(0, node.spec.rows).tobytes() for name, node in made.items()}
        folded = [multiplier(key, sizes.facts) for key in family.folded]
        return of_config(config, family).values, keys, sizes, derived, folded, config_losses(config, family)
    except WeighbridgeError:
        return "refused"


def part_config(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """The object of a (copied) config that describes the model."""
    architecture = family.architecture(config)
    own = architecture.part_config(config) if architecture else None
    return config if own is None else own  # type: ignore[return-value]


def copied(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(config))
    return found


def paths(model: str, family: Family) -> Iterator[tuple[str, Any]]:
    """The keys that a model's class writes, with their values: those inside a rotation one by one."""
    recorded = golden()[model]
    whole = {**recorded["defaults"], **part_config(copied(recorded["config"]), family)}
    for key, value in whole.items():
        if key in ROTATIONS and isinstance(value, dict):
            yield from ((f"{key}.{word}", inner) for word, inner in value.items() if not isinstance(inner, dict))
        elif not isinstance(value, dict):
            yield key, value


def counts(model: str, family: Family, path: str, value: Any) -> bool:
    """Whether another value reaches the target, is refused, or is listed."""
    plain = copied(golden()[model]["config"])
    for winner in WINS.get(path.partition(".")[0], ()):
        part_config(plain, family).pop(winner, None)
        plain.pop(winner, None)
    before = meaning(plain, family)
    for other in others(value):
        changed = copied(plain)
        store(part_config(changed, family), path, other)
        if before == "refused" or meaning(changed, family) != before:
            return True
    return False


@pytest.mark.parametrize("pattern", sorted({key for group in groups() for key in group.keys}))
def test_stars_in_the_list_of_harmless_keys_stand_for_any_text(pattern: str) -> None:
    (group, *_) = (KeyPatterns.of(group.keys) for group in groups() if pattern in group.keys)
    alone = KeyPatterns.of([pattern])
    keys = {pattern.replace("*", text) for text in ("", "x", "a_b", "*")} | {f"x{pattern.strip('*')}y", "x", ""}
    for key in sorted(keys):
        assert alone.match(key) == fnmatchcase(key, pattern), key
        assert group.match(key) or not alone.match(key), key


@pytest.mark.parametrize("name", [f for f in families() if models_of(families()[f])])
def test_every_key_of_a_config_counts_or_is_listed_or_harmless(name: str) -> None:
    family = families()[name]
    silent: Counter[str] = Counter()
    heard: set[str] = set()
    for model in models_of(family):
        whole = part_config(copied(golden()[model]["config"]), family)
        towers = projector_of_hf(golden()[model]["config"])
        seen = set() if towers is None else ruled_words(towers)
        for path, value in paths(model, family):
            if why_harmless(path.rpartition(".")[2], family, whole) or path in seen:  # an mmproj file has it
                continue
            if counts(model, family, path, value):
                heard.add(path)
            else:
                silent[path] += 1
    assert not silent.keys() - heard, f"{name}: {sorted(silent.keys() - heard)}"


@pytest.mark.parametrize("name", published())
def test_a_published_config_has_no_key_that_nothing_reads(name: str) -> None:
    config = published()[name]["config"]
    assert unread(config, family_of_hf(config)) == []


@pytest.mark.parametrize("name", ["lfm2-audio", "minimax-m3"])
def test_a_model_of_several_parts_has_no_key_that_nothing_reads(name: str) -> None:
    config = projector_cases.golden()[name]["config"]
    trained = {"semantic_codebook_factor": 100, "codebook_weight": "log", "interleaved_n_text": 6, "preprocessor": {}}
    config = config | (trained if name == "lfm2-audio" else {})
    family = family_of_hf(config)
    assert unread(config, family) == []
    assert unread(config | {"attention_multiplier_of_a_new_kind": 2}, family)


@pytest.mark.parametrize("group", groups(), ids=lambda group: group.reason.partition(":")[0])
def test_a_harmless_key_has_a_reason_and_an_unknown_one_has_none(group: Any) -> None:
    assert len(group.reason) > 20
    assert set(group.families) <= families().keys()
    assert not why_harmless("attention_multiplier_of_a_new_kind", families()["llama"])


# ---------------------------------------------------------------------- tables of somebody's own

CLASS = '[architecture.AcmeForCausalLM]\nmodel_type = "acme"\ngguf = []\n'


def own_table(folder: Path, inherit: str) -> Path:
    path = folder / "acme.toml"
    path.write_text(f'name = "acme"\n{inherit}\n{CLASS}')
    return path


def renamed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "architectures": ["AcmeForCausalLM"], "model_type": "acme"}


def _plain_model(name: str) -> str | None:
    """A recorded model of the plain class of a family, the one that a table which is `like` it inherits; None if its
    settings are a part of the config."""
    family = families()[name]
    plain = [*family.architectures.values()][-1]
    if plain.part:
        return None
    return next((m for m in models_of(family) if family.architecture(golden()[m]["config"]) is plain), None)


@pytest.mark.parametrize("name", [f for f in families() if _plain_model(f)])
def test_a_table_that_is_like_another_writes_and_loses_the_same(name: str, tmp_path: Path) -> None:
    family, own = families()[name], read_family(own_table(tmp_path, f'like = "{name}"'))
    config = golden()[_plain_model(name) or ""]["config"]
    assert own.gguf == family.gguf
    wrong = [loss.replace("acme", name) for loss in config_losses(renamed(config), own)]
    assert wrong == config_losses(config, family)
    assert config_to_gguf(renamed(config), own, file_type=0) == config_to_gguf(config, family, file_type=0)


def test_a_row_of_its_own_stands_beside_the_inherited_ones(tmp_path: Path) -> None:
    table = own_table(tmp_path, 'like = "qwen3"')
    row = '[[meta.key]]\nname = "{a}.acme_scale"\ntype = "f32"\nconfig = ["acme_scale"]\n'
    table.write_text(table.read_text() + row)
    config = {**renamed(golden()["qwen3-bare"]["config"]), "acme_scale": 2.0, "hidden_act": "relu"}
    own = read_family(table)
    keys = config_to_gguf(config, own, file_type=0)
    assert keys.pop("qwen3.acme_scale").value == 2.0
    assert keys == config_to_gguf(golden()["qwen3-bare"]["config"], families()["qwen3"], file_type=0)
    assert [loss.partition(" = ")[0] for loss in config_losses(config, own)] == ["config.json: hidden_act"]


def test_a_table_that_has_names_only_lists_the_rotation_that_it_loses(tmp_path: Path) -> None:
    own = read_family(own_table(tmp_path, 'gguf = "qwen3"\nnames_from = "qwen3"'))
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    config = renamed(golden()["qwen3-bare"]["config"])
    config = {k: v for k, v in config.items() if not k.startswith("rope")}
    lost = unread({**config, "rope_theta": 5e4, "rope_scaling": scaling}, own)
    assert {"rope_theta", *(f"rope_scaling.{word}" for word in scaling)} <= {path for path, _ in lost}


# ---------------------------------------------------------------------- every command says it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama whose config has a key that nobody reads."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 5e4, "max_position_embeddings": 256, "attention_flavour": 3,
    }  # fmt: skip
    family = families()["llama"]
    places = family.expansion("hf", family.sizes_from_hf(config)).places.values()
    rng = np.random.default_rng(5)
    named = {p.name: rng.standard_normal(p.shape, np.float32) for p in places if p.need in (None, "only head")}
    path = tmp_path / "model"
    path.mkdir()
    save_file(named, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_convert_check_verify_and_prove_list_the_same_key(folder: Path, tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    with api.plan_convert(folder, gguf, tokenizer=False) as plan:
        first, *_ = plan.describe()["losses"]
        plan.run()
    found = {
        "convert": [first["what"]] if first["effect"] == "results" else [],
        "arch check": [*arch.check(folder).settings],
        "verify": [f.message for f in api.verify(folder).findings if f.rule == "config/unread"],
        "prove": [
            line for c in api.prove(folder, gguf, static=True).checks if c.name == "settings" for line in c.details
        ],
    }
    assert {command: ["attention_flavour = 3" in line for line in lines] for command, lines in found.items()} == {
        command: [True] for command in found
    }


def test_every_command_takes_a_table_of_your_own(folder: Path, tmp_path: Path) -> None:
    """The class of nobody: without the table it is unknown, with it the unread key is listed by all four."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(renamed(config)))
    table, gguf = own_table(tmp_path, 'like = "llama"'), tmp_path / "m.gguf"
    with api.plan_convert(folder, gguf, tokenizer=False, arch_file=table) as plan:
        listed = [loss.message for loss in plan.losses if loss.effect == "results"]
        plan.run()
    report = api.verify(folder, arch_file=table)
    found = [f.message for f in report.findings if f.rule == "config/unread"]
    assert not any(f.rule == "config/unknown" for f in report.findings)
    assert any(f.rule == "config/unknown" for f in api.verify(folder).findings)
    (settings, tensors) = api.prove(folder, gguf, run=False, arch_file=table).checks
    assert (settings.name, tensors.verdict) == ("settings", "same")
    for lines in (listed, [*arch.check(folder, table).settings], found, [*settings.details]):
        assert ["attention_flavour = 3" in line for line in lines] == [True]
    arguments = ["--arch-file", str(table)]
    assert main(["verify", str(folder), *arguments]) == 0
    assert main(["prove", str(folder), str(gguf), "--no-run", *arguments]) == 1


def test_a_lossless_conversion_refuses_what_changes_results(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="attention_flavour"):
        api.plan_convert(folder, tmp_path / "m.gguf", tokenizer=False, inexact="refuse")


def test_the_plan_shows_first_what_changes_results(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(folder), str(tmp_path / "m.gguf"), "--no-tokenizer", "--dry-run"]
    assert main(["convert", *arguments]) == 0
    lines = [
        line for line in "".join(capsys.readouterr()).splitlines() if "changes results" in line or "left out" in line
    ]
    assert "attention_flavour" in lines[0]
    assert not any("changes results" in line for line in lines[1:])
    assert "changes results" in CliRunner().invoke(load(BY_NAME["arch"]), ["check", str(folder)]).output


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_share_that_rotates_the_whole_head_is_read(share: float, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    rotation = {"rope_type": "default", "rope_theta": config.pop("rope_theta"), "partial_rotary_factor": share}
    del config["attention_flavour"]
    keys = unread({**config, "rope_parameters": rotation}, families()["llama"])
    assert [key for key, _ in keys] == ["rope_parameters.partial_rotary_factor"] * (share != 1)
