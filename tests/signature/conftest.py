"""A model to sign, and a key."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cryptography")

_HEADER = b'{"a":{"dtype":"U8","shape":[7000],"data_offsets":[0,7000]}}'
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + b"weights" * 1000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with every case of the rules of listing: subfolders, hidden files, git's files, empty files."""
    folder = tmp_path / "model"
    files = {
        "notes.json": b"{}", "model.safetensors": WEIGHTS, "empty": b"", "d/c": b"c", "d.x": b"x",
        ".hidden": b"h", ".git/HEAD": b"ref", ".gitattributes": b"*", "d/.gitignore": b"inner",
        "\u00e9 \u6a21": b"name",
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    from tests.signature.keys import make_key

    return make_key(tmp_path)
