"""Records what the reference chooses for the models of mixture_cases.py: compiles llama.cpp's own src/llama-quant.cpp,
as it is but for a switch that says whether there is an importance matrix, against the library in the xllamacpp wheel.

    python tests/conversion/record_mixtures.py LLAMA_CPP_TREE        (needs g++; not part of the tests)
"""

from __future__ import annotations

import ctypes as c
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.conversion.mixture_cases import CASES, Case  # noqa: E402

from weighbridge.base.dtypes import BY_GGML, BY_NAME  # noqa: E402
from weighbridge.conversion.quantize.ftypes import table, tensor_type  # noqa: E402

GOLDEN = Path(__file__).with_name("golden") / "mixtures.json"
WRAPPER = r"""
#include "reference.cpp"
extern "C" int choose(const char* arch, const int* facts, int ftype, int imatrix, int pure, int leave, int output,
                      int embedding, int n_patterns, const char** patterns, const int* types,
                      int n, const char** names, const int64_t* ne, int* out) {
    llama_quant_model_desc d = {};
    d.architecture = arch; d.n_embd = d.n_ff = 512; d.n_embd_head_k = d.n_embd_head_v = 64;
    d.n_layer = facts[0]; d.n_head = facts[1]; d.n_head_kv = facts[2]; d.n_expert = facts[3];
    auto * model = llama_quant_model_from_metadata(&d);
    auto p = llama_model_quantize_default_params();
    p.pure = pure; p.quantize_output_tensor = !leave;
    if (output >= 0) p.output_tensor_type = (ggml_type) output;
    if (embedding >= 0) p.token_embedding_type = (ggml_type) embedding;
    std::vector<llama_model_tensor_override> overrides;
    for (int i = 0; i < n_patterns; i++) overrides.push_back({patterns[i], (ggml_type) types[i]});
    overrides.push_back({nullptr, GGML_TYPE_COUNT});
    if (n_patterns) p.tt_overrides = overrides.data();
    g_has_imatrix = imatrix;
    auto * qs = llama_quant_init(model, &p);
    ggml_context * ctx = ggml_init({(n + 1) * ggml_tensor_overhead(), nullptr, true});
    std::vector<ggml_tensor *> ts;
    std::vector<ggml_type> found(n);
    for (int i = 0; i < n; i++) {
        ts.push_back(ggml_new_tensor_4d(ctx, GGML_TYPE_F32, ne[4*i], ne[4*i + 1], ne[4*i + 2], ne[4*i + 3]));
        ggml_set_name(ts.back(), names[i]);
    }
    int refused = 0;
    try { llama_quant_compute_types(qs, (llama_ftype) ftype, ts.data(), found.data(), n); }
    catch (const std::exception &) { refused = 1; }
    for (int i = 0; i < n; i++) out[i] = found[i];
    ggml_free(ctx); llama_quant_free(qs);
    return refused;
}
"""


def build(tree: Path, folder: Path) -> Any:
    source = (tree / "src" / "llama-quant.cpp").read_text("utf-8")
    switched = source.replace("qs->has_imatrix         = false;", "qs->has_imatrix = g_has_imatrix;")
    assert switched != source
    (folder / "reference.cpp").write_text("static bool g_has_imatrix = false;\n" + switched)
    (folder / "wrapper.cpp").write_text(WRAPPER)
    found = find_spec("xllamacpp")
    assert found is not None
    assert found.origin is not None
    wheel = Path(found.origin).parent
    include = [f"-I{tree / part}" for part in ("include", "ggml/include", "src")]
    link = [f"-L{wheel}", "-l:xllamacpp.abi3.so", f"-Wl,-rpath,{wheel}"]
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            "-D_GLIBCXX_USE_CXX11_ABI=0",
            "-fPIC",
            "-shared",
            *include,
            "wrapper.cpp",
            "-o",
            "reference.so",
            *link,
        ],
        cwd=folder,
        check=True,
    )
    return c.CDLL(str(folder / "reference.so"))


def chosen(library: Any, case: Case, number: int) -> list[str] | str:
    arch, *facts = case.facts
    options = case.options
    patterns = [tensor_type(p) for p in options.get("patterns", ())]
    ids = {k: BY_NAME[options[k]].ggml if k in options else -1 for k in ("output_type", "embedding_type")}
    n, m = len(case.tensors), len(patterns)
    dims = [d for _, shape in case.tensors for d in (*shape[::-1], 1, 1, 1)[:4]]
    out = (c.c_int * n)()
    refused = library.choose(
        arch.encode(), (c.c_int * 4)(*facts), number, case.imatrix, options.get("pure", False),
        options.get("leave_output", False), ids["output_type"], ids["embedding_type"],
        m, (c.c_char_p * m)(*(p.pattern.encode() for p, _ in patterns)),
        (c.c_int * m)(*(t.ggml or 0 for _, t in patterns)),
        n, (c.c_char_p * n)(*(name.encode() for name, _ in case.tensors)), (c.c_int64 * (4 * n))(*dims), out,
    )  # fmt: skip
    return "refused" if refused else [BY_GGML[i].name for i in out]


def runs(names: list[str] | str) -> str:
    """`Q4_K*12 Q6_K*2 F32*1`."""
    if isinstance(names, str):
        return names
    parts: list[list[Any]] = []
    for name in names:
        if parts and parts[-1][0] == name:
            parts[-1][1] += 1
        else:
            parts.append([name, 1])
    return " ".join(f"{name}*{count}" if count > 1 else name for name, count in parts)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(sys.argv[1]).resolve(), Path(folder))
        ftypes = [row for row in table().ftypes.values() if row.type]
        found = {n: {f.name: runs(chosen(library, case, f.number)) for f in ftypes} for n, case in CASES.items()}
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(GOLDEN, GOLDEN.stat().st_size)


if __name__ == "__main__":
    main()
