"""`make wheels` (release/wheels.py) up to the compiler: tags, contents and bytes of wheels, and zig's options."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.architecture import house
from tests.programs import load_program

for _name in ("readme", "contents"):  # wheels.py imports them
    load_program(house.ROOT / "release" / f"{_name}.py")
wheels: Any = load_program(house.ROOT / "release" / "wheels.py", "release_wheels")
digests: Any = load_program(house.ROOT / "release" / "digests.py", "release_digests")
WHEN = datetime(2026, 11, 24, tzinfo=UTC)
INFO = "weighbridge-0.1.0.dist-info"
PURE = {
    "weighbridge/__init__.py": b"",
    "weighbridge/a.toml": b"x = 1\n",
    f"{INFO}/METADATA": b"Name: weighbridge\n",
    f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n",
    f"{INFO}/RECORD": b"stale",
}
ROWS = pytest.mark.parametrize("target", wheels.targets(), ids=lambda target: target.zig)


@ROWS
def test_the_tags_are_of_the_same_system(target: Any) -> None:
    """The C library or system that zig keeps to is the oldest that the tags promise."""
    machine, system, *rest = re.split(r"[-.]", target.zig, maxsplit=2)
    processors = {("aarch64", "macos"): "arm64", ("aarch64", "windows"): "ARM64", ("x86_64", "windows"): "AMD64"}
    assert target.processor == processors.get((machine, system), machine)
    assert all(tag.endswith(target.processor.lower()) for tag in target.tags)
    if system == "windows":
        assert (target.system, target.tags, rest) == ("Windows", (target.soabi,), ["gnu"])
        assert target.processor in wheels.MACHINES
        return
    floor = re.search(r"\d+[._]\d+", target.tags[0])
    assert floor is not None
    if rest and rest[0] != "musl":
        assert rest[0].removeprefix("gnu.") == floor[0].replace("_", ".")
    kind = {"macos": "macosx"}.get(system, "musllinux" if rest == ["musl"] else "manylinux")
    assert all(tag.startswith(kind) for tag in target.tags)
    assert target.system == {"macos": "Darwin", "linux": "Linux"}[system]


@ROWS
@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 14)])
def test_a_wheel_has_its_record_tags_and_parts(target: Any, version: tuple[int, int], tmp_path: Path) -> None:
    host = wheels.Host("python", version)
    assert host.tag == ("cp311-cp311" if version == (3, 11) else "cp312-abi3")
    extension = tmp_path / "_native.abi3.so"
    extension.write_bytes(b"code")
    made = wheels.assemble(PURE, [f"{host.tag}-{tag}" for tag in target.tags], extension, tmp_path, WHEN)
    assert made.name == f"weighbridge-0.1.0-{host.tag}-{'.'.join(target.tags)}.whl"
    with zipfile.ZipFile(made) as wheel:
        contents = {name: wheel.read(name) for name in wheel.namelist()}
        mode = wheel.getinfo("weighbridge/_native.abi3.so").external_attr >> 16
    assert mode == 0o100755
    assert contents[f"{INFO}/WHEEL"].decode().splitlines() == [
        "Wheel-Version: 1.0", "Root-Is-Purelib: false", *(f"Tag: {host.tag}-{tag}" for tag in target.tags)
    ]  # fmt: skip
    record = {
        name: (digest, size) for name, digest, size in csv.reader(contents[f"{INFO}/RECORD"].decode().splitlines())
    }
    assert set(record) == set(contents)
    for name, data in contents.items():
        if name != f"{INFO}/RECORD":
            coded = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert record[name] == (f"sha256={coded}", str(len(data)))
    parts = json.loads(contents[f"{INFO}/sboms/weighbridge.cdx.json"])
    assert parts["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(b"code").hexdigest()
    assert [part["name"] for part in parts["components"]] == [name for name, _, _ in wheels.LINKED]


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """ziglang is no part of the tests' environment."""
    monkeypatch.setattr(wheels, "version", lambda package: "1.0")


def test_two_builds_are_compared(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name / "a.whl" for name in ("first", "second", "third"))
    for path, data in ((first, b"same"), (second, b"same"), (third, b"other")):
        path.parent.mkdir()
        path.write_bytes(data)
    wheels.compare([first], [second])
    with pytest.raises(SystemExit, match=r"other bytes: a\.whl"):
        wheels.compare([first, first], [second, third])
    assert {target.system for target in wheels.targets()} == {*wheels.SAME_BYTES}


def test_the_same_files_make_the_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    made = []
    for folder, files in (("a", PURE), ("b", dict(reversed(PURE.items())))):
        (tmp_path / folder).mkdir()
        made.append(wheels.assemble(files, ["py3-none-any"], None, tmp_path / folder, WHEN).read_bytes())
    assert made[0] == made[1]
    assert b"sboms" not in made[0]


OPTIONS = {
    "-march=x86-64-v3": "-mcpu=x86_64_v3",
    "-march=x86-64-v4": "-mcpu=x86_64_v4",
    "-Wl,-dead_strip": "",
    "-Wl,-x": "",
    "-Wl,@/a path/darwin.sym": "-Wl,-undefined,dynamic_lookup",
    "-bundle": "-shared",
    "-O3": "-O3",
    "a b.cpp": "a b.cpp",
}


@pytest.mark.skipif(os.name != "posix", reason="the compiler's script is for a shell")
def test_options_that_zig_does_not_take(tmp_path: Path) -> None:
    echo = tmp_path / "zig"
    echo.write_text(f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:], sep='\\n')\n", "utf-8")
    script = tmp_path / "c++"
    script.write_text(wheels.COMPILER.format(zig=echo, target="x86_64-linux-musl"), "utf-8")
    for path in (echo, script):
        path.chmod(0o755)
    done = subprocess.run([script, *OPTIONS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["c++", "-target", "x86_64-linux-musl", *filter(None, OPTIONS.values())]
    levels = re.findall(r"-march=[\w-]+", (house.ROOT / "CMakeLists.txt").read_text("utf-8"))
    assert levels == [option for option in OPTIONS if "march" in option]


def needing(*libraries: str) -> Any:
    """Stands for `contents`, of a wheel whose extension needs these."""
    return lambda path: SimpleNamespace(name=path.name, extension="_native", needs=dict.fromkeys(libraries, ""))


def test_each_wheel_is_given_to_the_tools_that_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(wheels, "run", lambda tool, *_: calls.append(tool.name))
    monkeypatch.setattr(wheels, "contents", needing("libc.so"))
    wheels.audit([tmp_path / "weighbridge-0.1.0-cp312-abi3-musllinux_1_2_x86_64.whl"])
    assert calls == ["twine", "check-wheel-contents", "abi3audit"]
    wheels.audit([tmp_path / "weighbridge-0.1.0-py3-none-any.whl"])
    assert calls[3:] == ["twine", "check-wheel-contents"]


def test_a_wheel_for_glibc_has_the_tag_that_auditwheel_confirms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "weighbridge-0.1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    shown = 'consistent with the following platform tag: "manylinux_2_17_x86_64"'
    monkeypatch.setattr(wheels, "run", lambda tool, *_: shown if tool.name == "auditwheel" else "")
    wheels.audit([made])
    monkeypatch.setattr(wheels, "run", lambda *_: shown.replace("2_17", "2_34"))
    with pytest.raises(SystemExit, match="doesn't confirm manylinux_2_17_x86_64"):
        wheels.audit([made])


def test_a_part_of_a_name_chooses_targets() -> None:
    assert {target.zig for target in wheels.targets("musl")} == {"x86_64-linux-musl", "aarch64-linux-musl"}
    assert len(wheels.targets()) == len({target.tags for target in wheels.targets()}) > 7


def test_a_version_without_the_global_lock_has_no_stable_abi() -> None:
    plain, threaded = wheels.Host("python", (3, 14)), wheels.Host("python", (3, 14), lock=False)
    assert (plain.tag, threaded.tag) == ("cp312-abi3", "cp314-cp314t")
    windows = wheels.targets("windows")
    assert len(windows) == 2
    for target in wheels.targets():
        assert plain.serves(target)
        assert threaded.serves(target) == (target not in windows) == wheels.Host("python", (3, 11)).serves(target)
    ours = [host.abi for host in wheels.hosts_of(sys.executable, free_threaded=True)]
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    assert ours == [version, *([f"{version}t"] if sys.version_info >= wheels.FREE_THREADED else [])]
    assert (wheels.hosts_of(sys.executable, free_threaded=False)[0].headers / "Python.h").exists()


@pytest.mark.parametrize(
    ("platform", "needed", "wrong"),
    [
        ("musllinux_1_2_x86_64", "libc.so", ""),
        ("musllinux_1_2_x86_64", "libstdc++.so.6", "libstdc"),
        ("win_amd64", "python3.dll KERNEL32.dll api-ms-win-crt-heap-l1-1-0.dll", ""),
        ("win_amd64", "python312.dll", "python312.dll"),  # of one version only
        ("win_arm64", "libc++.dll", "libc"),  # no part of Windows
        ("macosx_11_0_arm64", "macOS /usr/lib/libSystem.B.dylib", ""),
        ("macosx_10_13_x86_64", "/opt/homebrew/lib/libc++.1.dylib", "homebrew"),
    ],
)
def test_a_wheel_needs_only_the_system_and_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, needed: str, wrong: str
) -> None:
    made = tmp_path / f"weighbridge-0.1.0-cp312-abi3-{platform}.whl"
    monkeypatch.setattr(wheels, "run", lambda *_: "")
    monkeypatch.setattr(wheels, "contents", needing(*needed.split()))
    if not wrong:
        wheels.audit([made])
        return
    with pytest.raises(SystemExit, match=re.escape(wrong)):
        wheels.audit([made])


def test_windows_has_sizes_of_its_own() -> None:
    """What extensions read of Python's configuration: CPython's PC/pyconfig.h says the same."""
    text = (house.ROOT / "release" / "windows" / "pyconfig.h").read_text("utf-8")
    sizes = dict(re.findall(r"#define SIZEOF_(\w+) (\d)", text))
    assert sizes["LONG"] == "4"
    assert sizes["WCHAR_T"] == "2"
    assert {sizes[name] for name in ("VOID_P", "SIZE_T", "LONG_LONG", "TIME_T")} == {"8"}
    assert {"MS_WIN64", "Py_ENABLE_SHARED", "MS_WINDOWS"} <= {*re.findall(r"#define (\w+)", text)}


def test_the_conda_recipe_is_that_of_the_package() -> None:
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text("utf-8"))
    recipe = yaml.safe_load((house.ROOT / "release" / "conda" / "recipe.yaml").read_text("utf-8"))
    renamed = {"msgspec": "msgspec-python"}  # conda-forge has another package of that name

    def spelled(requirement: str) -> str:
        name, least = requirement.split(">=")
        return f"{renamed.get(name, name)} >={least}"

    assert recipe["context"]["version"] == project["project"]["version"]
    assert recipe["requirements"]["run"] == ["python", *map(spelled, project["project"]["dependencies"])]
    assert recipe["requirements"]["host"] == ["python", "pip", *map(spelled, project["build-system"]["requires"])]
    assert recipe["about"]["license"] == project["project"]["license"]
    assert recipe["about"]["summary"] == project["project"]["description"]
    licences = [path for pattern in project["project"]["license-files"] for path in house.ROOT.glob(pattern)]
    assert {*recipe["about"]["license_file"]} == {str(path.relative_to(house.ROOT)) for path in licences}


def test_results_are_those_of_every_platform() -> None:
    """A few; `python release/digests.py --check` runs all."""
    made = [f"{digest}  {command}" for command, digest in digests.digests("convert model")]
    assert len(made) == 5
    digests.compare(made)
    with pytest.raises(SystemExit, match=r"not in digests\.txt:\n0  wb convert"):
        digests.compare(["0  wb convert"])
    listed = [line.split("  ", 1)[1] for line in digests.LIST.read_text("utf-8").splitlines()]
    assert listed == [f"wb {command}" for _, command in digests.COMMANDS]
