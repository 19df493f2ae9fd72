"""The llama.cpp source tree of the very build that `llamacpp.py` runs: reference converter, its gguf-py, vocabularies.

The source distribution of xllamacpp carries all of llama.cpp b11549. The first test that needs it (or this file, run)
downloads it through pip, checks its hash and unpacks what tests need into `.oracle/`, which git ignores. Where that
fails, tests skip and say so, except under `CI=true`, where its absence is a failure.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from tests.oracles.sharing import locked

VERSION = "2026.10.11549"
SHA256 = "c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b"
ROOT = Path(__file__).resolve().parents[2] / ".oracle"
TREE = ROOT / f"llama.cpp-{VERSION}"
_PREFIX = f"xllamacpp-{VERSION}/thirdparty/llama.cpp/"
_WANTED = (
    "convert_hf_to_gguf.py", "convert_lora_to_gguf.py",
    "conversion/", "gguf-py/", "include/", "models/", "tests/snapshots/", "LICENSE",
    # what llama_quantize.py compiles
    "tools/quantize/", "src/llama-quant.cpp", "common/imatrix-loader.cpp", "common/imatrix-loader.h", "common/common.h",
    "common/log.h", "common/build-info.h", "ggml/include/", "src/llama-ext.h",
    "src/models/",  # graphs, whose constants are read
    *(f"src/llama-{part}.h" for part in (
        "adapter", "arch", "batch", "cparams", "graph", "hparams", "impl", "memory", "mmap", "model-loader", "model",
        "vocab",
    )),
)  # fmt: skip


def find() -> Path | None:
    """The unpacked tree, or None; also where one was unpacked when tests wanted less of it."""
    return TREE if all((TREE / wanted).exists() for wanted in _WANTED) else None


@cache
def _obtained() -> Path | str:
    try:
        return obtain()
    except (OSError, subprocess.SubprocessError, SystemExit) as error:
        return str(error)


def require() -> Path:
    """The tree, downloaded on first use; without it the calling test is skipped, or fails where CI=true."""
    import pytest

    tree = _obtained()
    if isinstance(tree, str):
        message = f"THE REFERENCE CONVERTER IS MISSING, so nothing here was compared with it: {tree}"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    assert isinstance(tree, Path)
    return tree


def alone() -> AbstractContextManager[None]:
    """One test worker downloads (or compiles), the others wait for it."""
    ROOT.mkdir(exist_ok=True)
    return locked(ROOT / "lock")


def _download(folder: Path) -> Path:
    # Only this package from source: its build requirements may come as wheels. pip runs its setup.py for the metadata.
    source_only = ["--no-deps", "--no-binary", "xllamacpp"]
    command = [sys.executable, "-m", "pip", "download", "-q", *source_only, "-d", str(folder), f"xllamacpp=={VERSION}"]
    subprocess.run(command, check=True)
    return next(folder.glob("xllamacpp-*.tar.gz"))


def _wanted(members: tarfile.TarFile) -> list[tarfile.TarInfo]:
    return [m for m in members if m.isfile() and m.name.removeprefix(_PREFIX).startswith(_WANTED)]


def obtain() -> Path:
    """Download, check, unpack, move into place with one rename."""
    if found := find():
        return found
    with alone(), tempfile.TemporaryDirectory(dir=ROOT) as folder:
        if found := find():
            return found
        archive = _download(Path(folder))
        if (digest := hashlib.sha256(archive.read_bytes()).hexdigest()) != SHA256:
            raise SystemExit(f"{archive.name}: sha256 is {digest}, not {SHA256}")
        with tarfile.open(archive) as tar:
            # By attribute: `filter=` as an argument came with Python 3.11.4, and Debian 12 has 3.11.2.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(folder, members=_wanted(tar))
        shutil.rmtree(TREE, ignore_errors=True)
        os.rename(Path(folder) / _PREFIX, TREE)
    return TREE


if __name__ == "__main__":
    print(obtain())
