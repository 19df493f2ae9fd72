"""`wb arch`, tables of somebody's own, and the worked example of docs/guide-families.md, run as it is written there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.oracles import gguf_file

import weighbridge as api
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.cli.main import BY_NAME, load
from weighbridge.models.arch.registry import families, read_family
from weighbridge.reports import arch

GUIDE = Path(__file__).parents[2] / "docs" / "guide-families.md"
CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "tie_word_embeddings": False,
}
# Acme's names and shapes, said apart from the table; `qkv` is q, k and v of a Llama, one under the other.
ACME = {"acme.tokens.weight": (128, 64), "acme.norm.weight": (64,), "acme.head.weight": (128, 64)}
for _layer in "01":
    _at = f"acme.blocks.{_layer}."
    ACME |= {f"{_at}norm_1.weight": (64,), f"{_at}norm_2.weight": (64,), f"{_at}attention.qkv.weight": (128, 64)}
    ACME |= {f"{_at}attention.out.weight": (64, 64), f"{_at}ffn.gate.weight": (96, 64), f"{_at}ffn.up.weight": (96, 64)}
    ACME |= {f"{_at}ffn.down.weight": (64, 96)}
RENAMED = {
    "acme.blocks": "model.layers",
    "acme.tokens": "model.embed_tokens",
    "acme.norm": "model.norm",
    "acme.head": "lm_head",
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attention.out": "self_attn.o_proj",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


def as_llama(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {}
    for name, value in tensors.items():
        for theirs, llama in RENAMED.items():
            name = name.replace(theirs, llama)
        if "qkv" not in name:
            out[name] = value
            continue
        parts = zip("qkv", np.split(value, [64, 96]), strict=True)
        out |= {name.replace("attention.qkv", f"self_attn.{part}_proj"): np.ascontiguousarray(v) for part, v in parts}
    return out


def folder(path: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    rng = np.random.default_rng(3)
    tensors = {name: rng.standard_normal(shape, np.float32) for name, shape in ACME.items()}
    folder(tmp_path / "llama", as_llama(tensors), architectures=["LlamaForCausalLM"], model_type="llama")
    return folder(tmp_path / "acme-1b", tensors, architectures=["AcmeForCausalLM"], model_type="acme")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The guide's table with names of its own."""
    return write_guide_table(tmp_path, -1)


def write_guide_table(folder: Path, n: int) -> Path:
    path = folder / "acme.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.S)[n])
    return path


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(load(BY_NAME["arch"]), [str(a) for a in arguments], standalone_mode=False)


# ---------------------------------------------------------------------- the worked example


def test_the_guide_s_example_converts_there_and_back(acme: Path, table: Path, tmp_path: Path) -> None:
    """The GGUF is that of the same model under a Llama's names, and the way back gives Acme's files."""
    found = arch.check(acme, table)
    assert (found.ok, found.family, found.tensors) == (True, "acme", len(ACME))
    ours, llama = tmp_path / "acme.gguf", tmp_path / "llama.gguf"
    settings: dict[str, Any] = {"dtype": "f32", "tokenizer": False, "name": "same"}
    api.convert(acme, ours, arch_file=table, **settings)
    api.convert(tmp_path / "llama", llama, **settings)
    pair = (gguf_file.sorted_by_name(gguf_file.read(path)) for path in (ours, llama))
    assert gguf_file.differences(*pair) == []
    api.convert(ours, tmp_path / "back", to="hf", arch_file=table, tokenizer=False)
    back, first = (load_file(path / "model.safetensors") for path in (tmp_path / "back", acme))
    assert back.keys() == first.keys()
    assert all(np.array_equal(back[name], first[name]) for name in first)


def test_the_guide_s_shortest_table_writes_what_a_llama_writes(acme: Path, tmp_path: Path) -> None:
    table = write_guide_table(tmp_path, 0)
    assert len(table.read_text().splitlines()) <= 12
    tensors = load_file(tmp_path / "llama" / "model.safetensors")
    own = folder(tmp_path / "own", tensors, architectures=["AcmeForCausalLM"], model_type="acme")
    settings: dict[str, Any] = {"dtype": "f32", "tokenizer": False, "name": "same"}
    api.convert(own, tmp_path / "own.gguf", arch_file=table, **settings)
    api.convert(tmp_path / "llama", tmp_path / "llama.gguf", **settings)
    assert (tmp_path / "own.gguf").read_bytes() == (tmp_path / "llama.gguf").read_bytes()


@pytest.mark.costly
def test_the_guide_shows_what_the_command_prints(acme: Path, table: Path) -> None:
    guide = GUIDE.read_text()
    unknown = [line for line in run("check", acme).output.splitlines() if "sizes" not in line]
    known = [line for line in run("check", acme, "--arch-file", table).output.splitlines() if "sizes" not in line]
    for line in (*unknown[:2], next(line for line in unknown if "without" in line), *known):
        assert f"\n{line}\n" in guide


# ---------------------------------------------------------------------- unknown models


def test_an_unknown_class_is_told_its_nearest_family_and_every_difference(acme: Path) -> None:
    found = arch.check(acme)
    assert (found.known, found.ok, found.stated) == (False, False, "AcmeForCausalLM")
    assert found.unmapped == tuple(sorted(ACME)) or set(found.unmapped) <= set(ACME)
    with pytest.raises(UnsupportedError, match="AcmeForCausalLM") as error:
        api.plan_convert(acme, "x.gguf")
    assert "wb arch check" in (error.value.hint or "")


def test_a_family_with_one_more_norm_is_near_its_parent(tmp_path: Path) -> None:
    """A Llama with a norm that nobody knows, under a class that nobody knows: a Llama, and that one name."""
    family = families()["llama"]
    config = CONFIG | {"architectures": ["LlamaForCausalLM"]}
    places = family.expansion("hf", family.sizes_from_hf(config)).places.values()
    tensors = {p.name: np.zeros(p.shape, np.float32) for p in places if p.need in (None, "only head")}
    tensors["model.layers.0.extra_norm.weight"] = np.zeros(64, np.float32)
    gone = tensors.pop("model.layers.1.mlp.up_proj.weight").shape
    tensors["model.norm.weight"] = np.zeros(32, np.float32)
    path = folder(tmp_path / "new", tensors, architectures=["NewForCausalLM"], model_type="new")
    found = arch.check(path)
    assert found.missing == ("model.layers.1.mlp.up_proj.weight",)
    assert gone == (96, 64)
    assert found.unmapped == ("model.layers.0.extra_norm.weight",)
    assert found.misshapen == (arch.Misshapen("model.norm.weight", (64,), (32,)),)


def test_what_is_left_out_is_counted_by_part(tmp_path: Path) -> None:
    """Of a DeepSeek V3 the layers behind the last, as many as it says; which are no more than it says."""
    family, config = families()["deepseek2"], dict(golden()["deepseek-v3"]["config"])
    names = family.names("hf", family.sizes_from_hf(config))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in names.items()}
    tensors |= {f"model.layers.{n}.enorm.weight": np.zeros(64, np.float32) for n in (3, 4)}
    tensors["model.layers.3.hnorm.weight"] = np.zeros(64, np.float32)
    path = folder(tmp_path / "two", tensors, **{**config, "num_nextn_predict_layers": 2})
    found = arch.check(path)
    assert (found.ok, found.apart) == (True, {"model.layers.3.": 2, "model.layers.4.": 1})
    output = run("check", path).output
    assert "left out  model.layers.3.*: 2 tensors of another part of the model\n" in output
    assert json.loads(run("check", path, "--json").output)["apart"] == found.apart
    found = arch.check(folder(tmp_path / "one", tensors, **{**config, "num_nextn_predict_layers": 1}))
    assert (found.apart, found.unmapped) == ({"model.layers.3.": 2}, ("model.layers.4.enorm.weight",))


def test_a_gguf_of_an_unknown_architecture_is_read_as_if_it_were_of_a_known_one(acme: Path, tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    api.convert(tmp_path / "llama", path, dtype="f32", tokenizer=False)
    file = gguf_file.read(path)
    renamed = {key.replace("llama.", "new."): value for key, value in file.fields.items()}
    renamed["general.architecture"].value = "new"
    gguf_file.write(path, gguf_file.File(renamed, file.tensors))
    found = arch.check(path)
    assert (found.known, found.stated, found.dialect) == (False, "new", "gguf")
    assert (found.missing, found.unmapped, found.misshapen) == ((), (), ())
    assert not found.ok  # nobody said that the graph is the same


def test_what_is_like_nothing_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"x": np.zeros((3, 5, 7), np.float32)}, architectures=["NewForCausalLM"])
    with pytest.raises(UnsupportedError, match="NewForCausalLM"):
        arch.check(path)


# ---------------------------------------------------------------------- the commands


def test_the_list_has_every_family() -> None:
    lines = json.loads(run("list", "--json").output)
    assert [line["name"] for line in lines] == list(families())
    assert all(line["name"] in run("list").output for line in lines)


@pytest.mark.parametrize("name", ["llama", "LlamaForCausalLM", "deepseek2", "phi3"])
def test_a_table_is_shown_row_by_row(name: str) -> None:
    found = json.loads(run("show", name, "--json").output)
    family = families()[found["family"]["name"]]
    assert [row["role"] for row in found["rows"]] == list(family.rows)
    text = run("show", name).output
    for row in found["rows"]:
        assert all(template in text for template in row["names"].values())
    with pytest.raises(UsageError, match="unknown family 'nonsense'"):
        arch.family_table("nonsense")


def test_a_name_shows_the_family_of_that_name() -> None:
    """A family's own name goes before classes, and these before names in a GGUF, which several families share."""
    for family in families().values():
        assert arch.family_table(family.name).family.name == family.name
        shown = {name: arch.family_table(name).family for name in family.architectures}
        assert all(name in found.classes for name, found in shown.items())
        assert arch.family_table(family.gguf).family.gguf == family.gguf or family.gguf in families()


def test_a_row_of_some_layers_says_of_which() -> None:
    rows = {row["role"]: row["layers"] for row in json.loads(run("show", "jamba", "--json").output)["rows"]}
    assert (rows["q"], rows["conv"], rows["gate_exp"], rows["norm"]) == ("attention", "mamba", "moe", None)
    assert re.search(r"^q .*layers attention$", run("show", "jamba").output, re.M)


def test_check_ends_with_1_where_something_is_wrong(acme: Path, table: Path) -> None:
    assert run("check", acme, "--arch-file", table).return_value == 0
    assert run("check", acme).return_value == 1
    assert json.loads(run("check", acme, "--arch-file", table, "--json").output)["family"] == "acme"


# ---------------------------------------------------------------------- tables with mistakes


def _key(fields: str) -> str:
    return f"\n[[meta.key]]\nname='x'\ntype='u32'\n{fields}\n"


def test_keys_that_no_other_section_names_are_fine(table: Path) -> None:
    table.write_text(table.read_text() + _key("config=['eod_token_id', 'rope.rope_theta', 'some_other_key']"))
    assert read_family(table).document.meta


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda t: t + "[", FormatError, "not TOML"),
        (lambda t: 'other = "x"\n' + t, UsageError, "unknown field 'other'"),
        (lambda t: t.replace('name = "acme"', ""), UsageError, "the field 'name' is missing"),
        (lambda t: t.replace('like = "llama"', 'like = "lama"'), UsageError, "unknown family 'lama'; did you mean"),
        (lambda t: t.replace('like = "llama"', 'include = ["x"]'), UsageError, "unknown mixin 'x'"),
        (lambda t: t.replace("[role]", "[role]\nx = 3"), UsageError, "role.x: expected `object`"),
        (lambda t: t.replace("[role]", "[roles]"), UsageError, "the table: unknown field 'roles'; did"),
        (lambda t: t.replace("embed  ", "embd  "), UsageError, "role.embd: the field 'kind' is missing"),
        (lambda t: t.replace("\no   ", "\no.names.fh   "), UsageError, "role.o: unknown dialect 'fh'; did you mean"),
        (lambda t: t + '[role.x]\nkind="linea"\nshape="N"', UsageError, "'linea' is none of .*you mean 'linear'"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape="Z"', UsageError, "role.x.shape: unknown size 'Z'"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape="N*"', UsageError, "in 'N[*]', column 3: invalid syntax"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape="N/2"', UsageError, "column 1: use // to divide"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape=3', UsageError, "role.x.shape: expected `str`"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape="N"\nlayers="al"', UsageError, "unknown set of layers 'al'"),
        (lambda t: t + '[dialect.hf.set_prefixes.al]\n"" = "x."', UsageError, "set_prefixes: unknown set of layers"),
        (lambda t: t + '[role.x]\nkind="norm"\nshape="N"\nvia={}', UsageError, "role.x: unknown field 'via'"),
        (lambda t: t + '[size.Z]\nhf=["a +"]', UsageError, "in 'a [+]', column 4"),
        (lambda t: t + '[size.Z]\nhf=["length(a)"]', UsageError, "length.a. is not part of a number"),
        (lambda t: t.replace("{l}.norm_1", "{q}.norm_1"), UsageError, "unknown index 'q'"),
        (lambda t: "x" * (1 << 21), FormatError, "larger"),
        (lambda t: t + "\n[index]\nl = 'Q'\n", UsageError, "first index"),
        (lambda t: t + '\n[dialect]\nhf = { base = "mlx" }\n', UsageError, "not another dialect"),
        (lambda t: t + '\n[dialect]\nhf = { base = "none" }\n', UsageError, "not another dialect"),
        (lambda t: t + "\n[drop]\nhf = ['a.{q}']\n", UsageError, "drop.hf: unknown index 'q'"),
        (lambda t: t + _key("config=['hiden_size']"), UsageError, "meta.key.x: unknown key 'hiden_size'"),
        (lambda t: t + _key("config=['a']\nsubtract='hiden_size'"), UsageError, "unknown key 'hiden_size'"),
        (lambda t: t + _key("config=['a']\nwhen={hiden_size=[1]}"), UsageError, "unknown key 'hiden_size'"),
        (lambda t: t + _key("config=['a / b']"), UsageError, "meta.key.x: in 'a / b'.*use // to divide"),
        (lambda t: t + _key("config=['a']\nlayers='fulll'"), UsageError, "unknown set of layers 'fulll'"),
        (lambda t: t + "\n[meta.presence]\nhiden_size='blk.0.x'", UsageError, "meta.presence: unknown key"),
        (lambda t: t + "\n[meta.assumed]\nhiden_size=[1]", UsageError, "meta.assumed: unknown key 'hiden_size'"),
        (lambda t: t + "\n[[meta.implied]]\nconfig='a'\nvalue='hiden_size'", UsageError, "meta.implied.a: unknown key"),
        (lambda t: t + "\n[[meta.requires_value]]\nconfig='a'\nwhy=''\nequals='hiden_size'", UsageError,
         "meta.requires_value.a: unknown key"),
        (lambda t: t.replace("arch", 'config_rules = ["unifrm(a)"]\narch', 1), UsageError,
         "config_rules: unknown rule 'unifrm'.*'uniform'"),
        (lambda t: t.replace("arch", 'exclude = ["role.q_nrom"]\narch', 1), UsageError,
         "no 'role.q_nrom'"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_table_names_its_place(damage: Any, error: type[Exception], words: str, table: Path) -> None:
    table.write_text(damage(table.read_text()))
    with pytest.raises(error, match=words):
        read_family(table)
