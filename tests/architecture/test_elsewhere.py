"""What surrounds the wheels: README's links, the page of their contents, and Python of other systems."""

from __future__ import annotations

import hashlib
import shutil
import struct
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.architecture import house
from tests.programs import load_program

RELEASE = house.ROOT / "release"
readme: Any = load_program(RELEASE / "readme.py")
contents: Any = load_program(RELEASE / "contents.py")
wheels: Any = load_program(RELEASE / "wheels.py", "release_wheels")
elsewhere: Any = load_program(RELEASE / "elsewhere.py")
PROJECT = '[project]\nversion = "1.2"\n'
URLS = '[project.urls]\nSource = "https://example.org/us/it/"\n'


def folder_with(tmp_path: Path, project: str, text: str) -> Path:
    (tmp_path / "pyproject.toml").write_text(project, "utf-8")
    (tmp_path / "README.md").write_text(text, "utf-8")
    readme.rewrite(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("[a](docs/a.md)", "[a](https://example.org/us/it/blob/v1.2/docs/a.md)"),
        ("[a](docs/a.md#b)", "[a](https://example.org/us/it/blob/v1.2/docs/a.md#b)"),
        ("![a](docs/a.png)", "![a](https://example.org/us/it/raw/v1.2/docs/a.png)"),
        ("[![a](a.svg)](LICENSE)", "[![a](https://example.org/us/it/raw/v1.2/a.svg)](https://example.org/us/it/blob/v1.2/LICENSE)"),
        ("[a](https://example.org)", "[a](https://example.org)"),
        ("[a](mailto:a@example.org)", "[a](mailto:a@example.org)"),
        ("[a](#b)", "[a](#b)"),
        ("```\nmodel[0](x)\n```", "```\nmodel[0](x)\n```"),
    ],
)  # fmt: skip
def test_links_become_addresses_if_there_is_one(tmp_path: Path, link: str, becomes: str) -> None:
    text = f"x {link}\n" if link[0] != "`" else f"{link}\n"
    folder = folder_with(tmp_path, PROJECT + URLS, text)
    assert (folder / "README.md").read_text("utf-8") == text.replace(link, becomes)
    assert (folder_with(tmp_path, PROJECT, text) / "README.md").read_text("utf-8") == text
    assert bool(readme.relative_links(text)) == (link != becomes)


def wheel_of(folder: Path, metadata: str, extension: bytes = b"") -> Path:
    path = folder / "weighbridge-0.1.0-cp312-abi3-macosx_11_0_arm64.whl"
    info = "weighbridge-0.1.0.dist-info"
    files = {"weighbridge/a.py": b"", "weighbridge/b.py": b"", f"{info}/METADATA": metadata.encode(),
             f"{info}/WHEEL": b"Tag: cp312-abi3-macosx_11_0_arm64\nTag: two\n"}  # fmt: skip
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in {**files, **({"weighbridge/_native.so": extension} if extension else {})}.items():
            wheel.writestr(zipfile.ZipInfo(name), data)
    return path


def test_an_upload_has_no_relative_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """README as it is would be refused; the one that a release makes of it passes."""
    ours = (house.ROOT / "README.md").read_text("utf-8")
    with pytest.raises(SystemExit, match=r"relative: docs/installation\.md"):
        wheels.check_links(wheel_of(tmp_path, ours))
    wheels.check_links(
        wheel_of(tmp_path, (folder_with(tmp_path, PROJECT + URLS, ours) / "README.md").read_text("utf-8"))
    )
    monkeypatch.setattr(wheels.readme, "address", lambda folder: "")
    monkeypatch.setattr(sys, "argv", ["wheels.py", "--upload"])
    with pytest.raises(SystemExit, match="2"):
        wheels.main()


def test_every_link_of_readme_is_a_file() -> None:
    links = readme.relative_links((house.ROOT / "README.md").read_text("utf-8"))
    assert len(links) > 10
    assert not [link for link in links if not (house.ROOT / link.split("#")[0]).exists()]


def mach_o(*commands: tuple[int, bytes]) -> bytes:
    body = b"".join(struct.pack("<2I", number, 8 + len(data)) + data for number, data in commands)
    return struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 6, len(commands), len(body), 0, 0) + body


SYSTEM = (0xC, struct.pack("<4I", 24, 0, 0, 0) + b"/usr/lib/libSystem.B.dylib\0\0\0\0\0\0")
MACH_O = mach_o((0x1B, bytes(16)), SYSTEM, (0x32, struct.pack("<4I", 1, 0xB0000, 0xB0000, 0)))


def test_what_an_extension_for_macos_needs() -> None:
    assert contents.needs(MACH_O) == {"/usr/lib/libSystem.B.dylib": "", "macOS": "11.0"}
    old = mach_o(SYSTEM, (0x24, struct.pack("<2I", 0xA0D00, 0)))
    assert contents.needs(old)["macOS"] == "10.13"


def test_what_an_extension_for_linux_needs() -> None:
    pytest.importorskip("elftools")
    if sys.platform != "linux":
        pytest.skip("no ELF file at hand")
    found = contents.needs(Path(sys.executable).read_bytes())
    assert next(version for library, version in found.items() if library.startswith("libc.so")).startswith("GLIBC_2.")
    assert contents.version_key("GLIBC_2.17") > contents.version_key("GLIBC_2.4")


def test_the_page_lists_each_wheel(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, "Name: weighbridge\n", MACH_O)
    page = contents.page([wheel])
    lines = page.splitlines()
    assert page == contents.page([wheel])
    assert f"{hashlib.sha256(wheel.read_bytes()).hexdigest()}  {wheel.name}" in lines
    assert "Tags: cp312-abi3-macosx_11_0_arm64, two" in lines
    assert f"| weighbridge/_native.so | {len(MACH_O)} | {hashlib.sha256(MACH_O).hexdigest()} |" in lines
    assert "| weighbridge | 2 |" in lines
    assert next(line for line in lines if line.startswith(f"| {wheel.name}")).endswith(
        "| /usr/lib/libSystem.B.dylib, macOS 11.0 |"
    )


@pytest.mark.parametrize("system", elsewhere.SYSTEMS.values(), ids=elsewhere.SYSTEMS)
def test_other_systems_run_wheels_that_are_built(system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = wheels.targets(system.zig)
    assert system.platforms[-1] == target.tags[-1]
    monkeypatch.setattr(elsewhere, "run", lambda *_: "")
    with pytest.raises(elsewhere.Missing, match=r"no weighbridge-\*-cp312-abi3"):
        elsewhere.wheel_for(system, (3, 13), tmp_path)
    names = [f"weighbridge-0.1.0-{tag}-{'.'.join(target.tags)}.whl" for tag in ("cp311-cp311", "cp312-abi3")]
    for name in names:
        (tmp_path / name).touch()
    found = [elsewhere.wheel_for(system, version, tmp_path).name for version in ((3, 11), (3, 12), (3, 14))]
    assert found == [names[0], names[1], names[1]]


def test_missing_tools_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["elsewhere.py", "--work", str(tmp_path)])
    elsewhere.main()
    skipped = [line for line in capsys.readouterr().err.splitlines() if line]
    assert skipped == [
        "*** SKIPPED: aarch64: on Debian: apt-get install qemu-user-static apt dpkg",
        "*** SKIPPED: windows: on Debian: apt-get install wine64",
        "*** SKIPPED: musl: --musl PYTHON is missing; docs/releasing.md says how to build one",
    ]


def test_the_release_is_built_for_upload() -> None:
    """The workflow asks for what the index needs, and the setting is the one that `readme` reads."""
    workflow = (house.ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert "--upload" in workflow
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert bool(readme.address(house.ROOT)) == ("Source" in project.get("urls", {}))
