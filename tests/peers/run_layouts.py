"""Compares the buffers that a provider lays out for GPTQ and AWQ with what vLLM packs and what GPT-QModel's modules
read, from the blocks of a GGUF.

    python tests/peers/run_layouts.py --vllm PYTHON --gptqmodel PYTHON

PYTHON: of an environment with vLLM, and of one with gptqmodel; a CPU is enough. Each gets codes, zero points, values
and our buffers in an .npz. The result is written to `docs/peers-layouts.md`. 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "peers-layouts.md"
INPUTS, OUTPUTS, GROUP = 256, 128, 32
#: layout, block type of the source, bits
CASES = (("gptq", "q4_0", 4), ("gptq", "q8_0", 8), ("awq", "q4_0", 4))

#: What packs, inside vLLM's environment: prints the sections that differ, as JSON.
VLLM = """
import json, sys
import numpy as np, torch, vllm
from vllm.model_executor.layers.quantization.utils import quant_utils as q

layout, bits, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
given = np.load(path)
codes, zeros = (torch.from_numpy(given[name].astype(np.int32)) for name in ("codes", "zeros"))
size = [*codes.shape]
if layout == "gptq":  # AutoGPTQ keeps zero points less one
    want = {"qweight": q.gptq_pack(codes, bits, *size), "qzeros": q.pack_cols(zeros - 1, bits, *zeros.shape)}
else:
    want = {"qweight": q.awq_pack(codes, bits, *size), "qzeros": q.awq_pack(zeros, bits, *zeros.shape)}
same = lambda name, words: np.array_equal(given[name], words.numpy())
print("RESULT" + json.dumps([vllm.__version__, [n for n, words in want.items() if not same(n, words)]]))
"""

#: What reads, inside GPT-QModel's: prints whether a module's product with the identity is the weight.
GPTQMODEL = """
import json, sys
import numpy as np, torch, gptqmodel
from gptqmodel import BACKEND
from gptqmodel.quantization import FORMAT, METHOD
from gptqmodel.utils.importer import select_quant_linear
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

layout, bits, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
given = np.load(path)
rows, columns = given["codes"].shape
if layout == "gptq":
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear as kind
else:
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear as kind
module = kind(bits=bits, group_size=rows // len(given["scales"]), sym=True, desc_act=False, in_features=rows,
              out_features=columns, bias=False, pack_dtype=torch.int32, register_buffers=True)
for name in ("qweight", "qzeros", "scales", "g_idx"):
    if name in given:
        getattr(module, name).data = torch.from_numpy(given[name])
if layout == "gptq":
    convert_gptq_v1_to_v2_format_module(module, bits=bits, pack_dtype=torch.int32)
module.post_init()
module.eval()
with torch.no_grad():
    found = module(torch.eye(rows, dtype=torch.float16)).float().numpy()
same = np.array_equal(found, given["values"].astype(np.float16).astype(np.float32))
print("RESULT" + json.dumps([gptqmodel.__version__, [] if same else ["values"]]))
"""


def written(layout: str, kind: str, bits: int, folder: Path) -> Path:
    """A weight as blocks of gguf-py's, our buffer of it, and what the blocks mean: integers, [inputs, outputs]."""
    import gguf

    import weighbridge as wb

    noise = np.random.default_rng(3).normal(0, 0.3, (OUTPUTS, INPUTS)).astype(np.float32)
    blocks = gguf.quants.quantize(noise, gguf.GGMLQuantizationType[kind.upper()])
    writer = gguf.GGUFWriter(folder / "m.gguf", "peers")
    writer.add_tensor("w", blocks, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind.upper()]).T
    with wb.open(folder / "m.gguf") as model, wb.provider({"w": model["w"].node}) as weights:
        made = weights.buffer("w", layout=layout)
        sections = {name: made.part(name) for name in made.sections}
    scales = blocks.reshape(OUTPUTS, INPUTS // GROUP, -1)[..., :2].copy().view(np.float16)[..., 0].T
    codes: NDArray[Any] = np.rint(values / np.repeat(scales.astype(np.float32), GROUP, axis=0)) + 2 ** (bits - 1)
    zeros = np.full((INPUTS // GROUP, OUTPUTS), 2 ** (bits - 1))
    if not np.array_equal(sections["scales"], scales):
        raise SystemExit(f"{layout} of {kind}: scales differ from the blocks'")
    arrays: dict[str, Any] = {"codes": codes, "zeros": zeros, "values": values, **sections}
    np.savez(folder / "given.npz", **arrays)
    return folder / "given.npz"


def asked(python: str, code: str, layout: str, bits: int, path: Path) -> tuple[str, list[str]]:
    """The version of what answered, and the sections in which it differs."""
    command = [python, "-c", code, layout, str(bits), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    results = [line.removeprefix("RESULT") for line in done.stdout.splitlines() if line.startswith("RESULT")]
    if not results:
        raise SystemExit(f"{layout} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    version, differing = json.loads(results[-1])
    return version, differing


def page(rows: list[str], versions: dict[str, str]) -> str:
    named = " and ".join(f"{name} {version}" for name, version in versions.items())
    return f"""# Layouts of GPTQ and AWQ, run by hand

<!-- written by tests/peers/run_layouts.py -->

`provider.buffer(name, layout=...)` of a weight [{OUTPUTS}, {INPUTS}] in blocks of gguf-py, against {named}. vLLM
packs the same codes and zero points; a module of GPT-QModel multiplies the identity with the buffer. All are equal.

    python tests/peers/run_layouts.py --vllm PYTHON --gptqmodel PYTHON

| layout | from | packed by vLLM | read by GPT-QModel |
|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=sys.executable, help="the python of an environment that has vLLM")
    parser.add_argument("--gptqmodel", default=sys.executable, help="the python of one that has gptqmodel")
    args = parser.parse_args()
    rows, versions, bad = [], {}, False
    for layout, kind, bits in CASES:
        with tempfile.TemporaryDirectory(prefix="wb-layouts-") as work:
            path = written(layout, kind, bits, Path(work))
            cells = []
            for name, python, code in (("vLLM", args.vllm, VLLM), ("GPT-QModel", args.gptqmodel, GPTQMODEL)):
                versions[name], differing = asked(python, code, layout, bits, path)
                cells.append(f"differs: {', '.join(differing)}" if differing else "equal")
                bad = bad or bool(differing)
        rows.append(f"| {layout}, {bits} bits | {kind.upper()} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if not bad:
        PAGE.write_text(page(rows, versions), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
