"""Tensors in frameworks: what is shared, what is copied, and how much is read."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import jax_process
from tests.llama import CONFIG, llama_tensors, write

import weighbridge as wb
from weighbridge.base.errors import UsageError

NOTHING = "NOTHING HERE WAS PROVED: install requirements/oracles.txt"
torch: Any = pytest.importorskip("torch", reason=NOTHING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loading") / "llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    wb.save({k: v for k, v in llama_tensors().items()}, path / "model.safetensors")
    return path


def llama(dtype: Any = torch.bfloat16, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    config = transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k not in ("architectures", "torch_dtype")})
    return transformers.LlamaForCausalLM(config, **options).to(dtype).eval()


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model.float()(torch.tensor([[1, 5, 7, 2]])).logits


# ---------------------------------------------------------------------- torch


def test_a_state_dict_shares_the_files_pages(folder: Path) -> None:
    module = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(64, bias=False, dtype=torch.bfloat16)})
    with wb.open(folder) as model:
        state = model.torch()
        again = model.torch()
        assert all(t.data_ptr() == again[name].data_ptr() for name, t in state.items())  # one mapping, no copy
        module.load_state_dict({"norm.weight": state["model.norm.weight"]}, assign=True)
        assert module["norm"].weight.data_ptr() == state["model.norm.weight"].data_ptr()
    want = llama_tensors()["model.norm.weight"].astype(np.float32)
    assert np.array_equal(module["norm"].weight.detach().float().numpy(), want)  # it outlives the model


def test_load_assigns_and_shares(folder: Path) -> None:
    module = llama()
    report = wb.load(folder, into=module)
    assert report
    assert len(report.loaded) == len(llama_tensors())
    with wb.open(folder) as model:
        first = module.lm_head.weight.data_ptr()
        wb.load(folder, into=module)
        assert first != 0
        assert torch.equal(module.lm_head.weight, model["lm_head.weight"].torch())
    half = llama(torch.float32)
    wb.load(folder, into=half, dtype="f16")
    assert {p.dtype for p in half.parameters()} == {torch.float16}


def test_load_of_a_gguf_uses_hub_names(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "m.gguf", dtype="bf16", tokenizer=False)
    one, two = llama(), llama()
    wb.load(folder, into=one)
    wb.load(tmp_path / "m.gguf", into=two)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_load_names_what_differs(folder: Path, tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    wb.save({"weight": np.ones((2, 3), np.float32), "other": np.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match=r"not in the file: bias; not in the module: other"):
        wb.load(tmp_path / "a.safetensors", into=module)
    report = wb.load(tmp_path / "a.safetensors", into=module, strict=False)
    assert (report.loaded, report.missing, report.unexpected) == (("weight",), ("bias",), ("other",))
    assert not report
    assert module.weight.tolist() == [[1] * 3] * 2
    with pytest.raises(UsageError, match=r"\[2, 3\] in the file, \[2, 4\] in the module"):
        wb.load(tmp_path / "a.safetensors", into=torch.nn.Linear(4, 2), strict=False)


def test_shared_parameters_and_the_meta_device(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

    wb.save({"embed.weight": np.arange(20, dtype=np.float32).reshape(5, 4)}, tmp_path / "a.safetensors")
    with torch.device("meta"):
        module = Tied()
    assert wb.load(tmp_path / "a.safetensors", into=module)
    assert module.head.weight is module.embed.weight
    assert module.head.weight[4, 3] == 19
    accelerate = pytest.importorskip("accelerate", reason=NOTHING)
    with accelerate.init_empty_weights():
        empty = torch.nn.Sequential(torch.nn.Linear(4, 5, bias=False))
    wb.save({"0.weight": np.ones((5, 4), np.float32)}, tmp_path / "b.safetensors")
    wb.load(tmp_path / "b.safetensors", into=empty)
    assert empty(torch.ones(1, 4)).tolist() == [[4.0] * 5]


@pytest.mark.parametrize("kind", ["folder", "f16.gguf", "mlx"])
def test_from_pretrained_takes_any_format(kind: str, folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=NOTHING)
    source = {"folder": folder}.get(kind, tmp_path / kind)
    if kind == "f16.gguf":
        wb.convert(folder, source, dtype="f16", tokenizer=False)
    elif kind == "mlx":
        wb.convert(folder, source, to=wb.MlxOptions(q_bits=8, q_group_size=32))
    found = wb.from_pretrained(transformers.LlamaForCausalLM, source, dtype="f32")
    want = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    bound = {"folder": 0.0, "f16.gguf": 2e-3, "mlx": 3e-2}[kind] * float(logits(want).abs().max())
    assert float((logits(found) - logits(want)).abs().max()) <= bound
    with pytest.raises(UsageError, match="isn't a concrete model class"):
        wb.from_pretrained(transformers.AutoModelForCausalLM, source)


# ---------------------------------------------------------------------- other frameworks


JAX = """
name = "model.embed_tokens.weight"
with wb.provider(sys.argv[1], names="stored", device="jax") as weights:
    found, view = weights.get(name), weights.buffer(name).data
    assert view.ctypes.data % 64 == 0  # as our writer lays it
    assert found.dtype == jax.numpy.bfloat16
    assert np.asarray(found).tobytes() == view.tobytes()
    assert found.unsafe_buffer_pointer() == view.ctypes.data  # the file's own page
    assert weights.get(name, dtype="f32").dtype == jax.numpy.float32
    assert np.array_equal(weights.get(name, 3), np.asarray(found)[3])
print("shared")
"""


@pytest.mark.costly
def test_jax_shares_what_is_aligned(folder: Path) -> None:
    assert jax_process.run(JAX, str(folder)) == "shared\n"


def test_dlpack_and_the_buffer_protocol(folder: Path) -> None:
    with wb.provider(folder, dtype="f32") as weights:
        buffer = weights.buffer("norm.weight", layout="plain", dtype="f32")
        assert torch.from_dlpack(buffer).data_ptr() == buffer.address
        assert buffer.data.data.nbytes == 64 * 4
        assert np.array_equal(buffer.part("weight"), weights.get("norm.weight"))


# ---------------------------------------------------------------------- ranks


def bytes_read() -> int:
    """Bytes that this process asked the system for, by reads."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="COUNTS BYTES IN /proc, which isn't there")
def test_a_rank_reads_its_rows_alone(tmp_path: Path) -> None:
    config = {**CONFIG, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8,
              "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 1024}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    p = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (1024, 256), "lm_head.weight": (1024, 256)}
    shapes |= {
        "model.norm.weight": (256,),
        p + "input_layernorm.weight": (256,),
        p + "mlp.down_proj.weight": (256, 512),
    }
    shapes |= {p + "post_attention_layernorm.weight": (256,)}
    shapes |= {p + f"self_attn.{x}_proj.weight": (256, 256) for x in "qkvo"}
    shapes |= {p + f"mlp.{x}_proj.weight": (512, 256) for x in ("gate", "up")}
    rng = np.random.default_rng(0)
    arrays = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    wb.save(arrays, tmp_path / "model.safetensors")
    with wb.open(tmp_path) as model:
        ranks = [model.rank(r, of=8) for r in range(8)]
        part = ranks[3][p + "mlp.gate_proj.weight"]
        assert np.array_equal(part.numpy(), arrays[p + "mlp.gate_proj.weight"][192:256])
        assert part.numpy().base is not None  # a view: no byte is read before it is touched
        before = bytes_read()
        copied: Any = part.node.read_all()  # type: ignore[union-attr]  # what a loader that copies reads
        assert bytes_read() - before <= copied.nbytes * 1.02 + 512
        down = [rank[p + "mlp.down_proj.weight"].numpy() for rank in ranks]
        assert np.array_equal(np.concatenate(down, axis=1), arrays[p + "mlp.down_proj.weight"])
        assert sum(t.nbytes for t in ranks[0].values()) < 1.1 * sum(a.nbytes for a in arrays.values()) / 8
        with pytest.raises(UsageError, match="rank 8 of 8"):
            model.rank(8, of=8)
        with pytest.raises(UsageError, match="can't be divided"):
            model.rank(0, of=3)
    with wb.open(tmp_path, names="canonical") as named, pytest.raises(UsageError, match="file's names"):
        named.rank(0, of=2)


def test_a_quantized_cut_keeps_codes_or_says_why(tmp_path: Path) -> None:
    wide = {k: np.resize(v, [128 if n == 96 else n for n in v.shape]) for k, v in llama_tensors().items()}
    wb.save(wide, tmp_path / "wide")
    (tmp_path / "wide" / "config.json").write_text(json.dumps({**CONFIG, "intermediate_size": 128}))
    wb.convert(tmp_path / "wide", tmp_path / "gptq", to=wb.SchemeOptions(scheme="gptq", q_group_size=32))
    name = "model.layers.0.self_attn.o_proj.weight"
    with wb.open(tmp_path / "gptq") as model:
        whole = model[name].numpy()
        parts = [model.rank(r, of=2)[name] for r in range(2)]
        assert {t.dtype for t in parts} == {"gptq-4"}
        assert np.array_equal(np.concatenate([t.numpy() for t in parts], axis=1), whole)
        with pytest.raises(UsageError) as error:
            model.rank(0, of=4)
        assert error.value.hint


# ---------------------------------------------------------------------- processes and threads


def test_threads_read_one_model(folder: Path) -> None:
    want, wrong = llama_tensors(), []
    with wb.open(folder) as model:

        def check(name: str) -> None:
            if model[name].numpy("f32").tobytes() != want[name].astype(np.float32).tobytes():
                wrong.append(name)

        threads = [threading.Thread(target=check, args=(name,)) for name in list(want) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def _sum(tensor: Any, out: Any) -> None:
    out.put(float(np.asarray(tensor.numpy(), np.float32).sum()))


@pytest.mark.costly
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_lazy_tensors(method: str, folder: Path) -> None:
    context: Any = multiprocessing.get_context(method)
    with wb.open(folder, names="stored") as model:
        tensor, out = model["lm_head.weight"], context.Queue()
        tensor.numpy()
        process = context.Process(target=_sum, args=(tensor, out))
        process.start()
        found = out.get(timeout=60)
        process.join()
    assert found == float(llama_tensors()["lm_head.weight"].astype(np.float32).sum())


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """The rows of a lazy tensor."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, at: int) -> Any:
        if not 0 <= at < len(self):
            raise IndexError(at)
        return torch.from_numpy(self.tensor[at].astype(np.float32))


def test_workers_of_a_data_loader(folder: Path) -> None:
    with wb.open(folder, names="stored") as model:
        loader = torch.utils.data.DataLoader(Rows(model["lm_head.weight"]), batch_size=16, num_workers=2)
        found = torch.cat(list(loader))
    assert np.array_equal(found.numpy(), llama_tensors()["lm_head.weight"].astype(np.float32))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write(path, llama_tensors())
    return path


def test_a_file_that_is_replaced_stays_as_it_was(copy: Path) -> None:
    with wb.open(copy) as model:
        other = copy.with_name("b.safetensors")
        write(other, {k: v * 0 for k, v in llama_tensors().items()})
        other.replace(copy)
        assert model["lm_head.weight"].numpy().tobytes() == llama_tensors()["lm_head.weight"].tobytes()


def test_a_file_that_became_shorter_is_an_error_where_it_is_read(copy: Path) -> None:
    from weighbridge.base.errors import FormatError

    with wb.open(copy) as model:
        tensor = model["lm_head.weight"]
        with copy.open("r+b") as file:
            file.truncate(2000)
        with pytest.raises(FormatError, match="shorter"):
            tensor.raw()
        with pytest.raises(FormatError, match="shorter"):
            tensor.numpy("f32")  # decoded: read, not mapped


def test_closing_with_views_alive(copy: Path) -> None:
    model = wb.open(copy)
    view, shared = model["lm_head.weight"].numpy(), model["lm_head.weight"].torch()
    model.close()
    model.close()
    copy.unlink()
    assert view.tobytes() == llama_tensors()["lm_head.weight"].tobytes()
    assert float(shared.float().sum()) == pytest.approx(float(view.astype(np.float32).sum()), rel=1e-4)
