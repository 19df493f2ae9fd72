"""Builds the wheels of every system in targets.toml on one machine, with zig's compiler, and a pure Python one.

python release/wheels.py [--target PART] [--python PATH] [--free-threaded] [--twice] [--upload] [--out DIR]

The files of the pure Python wheel are the same in all; a platform's wheel adds the extension, its tags and a list of
the parts that are linked into it (PEP 770). The same commit and the same zig make the same bytes in any folder.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import readme
from contents import SUFFIXES, Contents, contents, page

ROOT: Final = Path(__file__).resolve().parents[1]
ABI3: Final = (3, 12)  # the first version with what nanobind needs of the stable ABI
FREE_THREADED: Final = (3, 14)  # the first version without the global lock for which msgspec has wheels
COPIED: Final = ("src", "native", "docs", "share")
#: What zig's dlltool calls the processors of Windows.
MACHINES: Final = {"AMD64": "i386:x86-64", "ARM64": "arm64"}
#: Parts that are linked into the extension: name, package that has its version, licence.
LINKED: Final = (
    ("nanobind", "nanobind", "BSD-3-Clause"),
    ("robin-map", "nanobind", "MIT"),  # nanobind's copy
    ("libc++", "ziglang", "Apache-2.0 WITH LLVM-exception"),
    ("compiler-rt", "ziglang", "Apache-2.0 WITH LLVM-exception"),
)
#: Options of each system's linker that leave out what differs between two builds: a digest of paths, and the database
#: of symbols with the time in the header of a DLL.
SAME_BYTES: Final = {"Linux": "-Wl,--build-id=none", "Darwin": "", "Windows": "-s"}
#: What an extension may need of each system.
ALLOWED: Final = {
    "musllinux": re.compile(r"libc\.so"),
    "win": re.compile(r"python3\.dll|KERNEL32\.dll|api-ms-win-crt-[\w-]+\.dll"),
    "macosx": re.compile(r"/usr/lib/libSystem\.B\.dylib|macOS"),
}
#: zig's compiler under the names that CMake calls. It has other names for levels of x86-64, and its linker for macOS
#: doesn't know some options of Apple's.
COMPILER: Final = """#!/bin/sh
for option do
  shift
  case "$option" in
    -march=x86-64-v3) option=-mcpu=x86_64_v3 ;;
    -march=x86-64-v4) option=-mcpu=x86_64_v4 ;;
    -Wl,-dead_strip | -Wl,-x | -Wl,-S) continue ;;
    -Wl,@*) option=-Wl,-undefined,dynamic_lookup ;;
    -bundle) option=-shared ;;
  esac
  set -- "$@" "$option"
done
exec {zig} c++ -target {target} "$@"
"""


@dataclass(frozen=True)
class Target:
    """A row of targets.toml."""

    zig: str
    system: str
    processor: str
    soabi: str
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Host:
    """An interpreter of this machine, for its headers. `path`: its program. `lock`: False for a wheel of the version
    without the global lock, whose headers are the same but for one definition."""

    path: str
    version: tuple[int, int]
    lock: bool = True

    @property
    def stable(self) -> bool:
        return self.lock and self.version >= ABI3

    @property
    def abi(self) -> str:
        return f"{self.version[0]}{self.version[1]}{'' if self.lock else 't'}"

    @property
    def tag(self) -> str:
        """The first two parts of a wheel's tag."""
        return f"cp{ABI3[0]}{ABI3[1]}-abi3" if self.stable else f"cp{self.version[0]}{self.version[1]}-cp{self.abi}"

    @property
    def headers(self) -> Path:
        return Path(run(self.path, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip())

    def serves(self, target: Target) -> bool:
        """Whether a wheel can be built. Windows has an import library of the stable ABI only."""
        return self.stable or target.system != "Windows"


def targets(part: str = "") -> list[Target]:
    """The rows whose zig target contains `part`."""
    rows = tomllib.loads((ROOT / "release" / "targets.toml").read_text("utf-8"))["target"]
    return [Target(**{**row, "tags": tuple(row["tags"])}) for row in rows if part in row["zig"]]


def hosts_of(path: str, free_threaded: bool) -> list[Host]:
    major, minor = run(path, "-c", "import sys; print(*sys.version_info[:2])").split()
    version = (int(major), int(minor))
    threaded = [Host(path, version, lock=False)] if free_threaded and version >= FREE_THREADED else []
    return [Host(path, version), *threaded]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def copy_source(folder: Path) -> None:
    """Copies the tracked files that a wheel is made of."""
    names = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
    for name in filter(None, names):
        if (path := ROOT / name).is_file() and (name.split("/")[0] in COPIED or "/" not in name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / name)


def build_pure(source: Path, out: Path) -> Path:
    """Builds the wheel without the extension."""
    options = ("-Cwheel.cmake=false", "-Cwheel.py-api=py3")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        *options,
        "-w",
        out,
        source,
    )
    return next(out.glob("*.whl"))


def build_extension(source: Path, build: Path, target: Target, host: Host, cache: Path) -> Path:
    """Compiles `_native` for a target. `cache`: where zig keeps the C and C++ libraries that it builds."""
    import ziglang

    zig = Path(ziglang.__file__).with_name("zig")
    build.mkdir(parents=True)
    scripts = {"c++": COMPILER.format(zig=zig, target=target.zig)}
    scripts |= {name: f'#!/bin/sh\nexec {zig} {name} "$@"\n' for name in ("ar", "ranlib")}
    for name, text in scripts.items():
        (build / name).write_text(text, "utf-8")
        (build / name).chmod(0o755)
    flags = f"-include cstdio -g0 -ffile-prefix-map={source}=. -ffile-prefix-map={build}=build"
    if not host.lock:
        flags += " -DPy_GIL_DISABLED=1"
    link = SAME_BYTES[target.system]
    settings = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_SYSTEM_NAME": target.system,
        "CMAKE_SYSTEM_PROCESSOR": target.processor,
        "CMAKE_CXX_COMPILER": build / "c++",
        "CMAKE_AR": build / "ar",
        "CMAKE_RANLIB": build / "ranlib",
        "CMAKE_INSTALL_NAME_TOOL": "true",
        "CMAKE_CXX_FLAGS": flags,
        "CMAKE_SHARED_LINKER_FLAGS": link,
        "CMAKE_MODULE_LINKER_FLAGS": link,
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",
        "CMAKE_MAKE_PROGRAM": shutil.which("ninja", path=str(Path(sys.executable).parent)) or "ninja",
        "Python_EXECUTABLE": host.path,
        "nanobind_DIR": run(sys.executable, "-m", "nanobind", "--cmake_dir").strip(),
        "SKBUILD_SOABI": f"cpython-{host.abi}-{target.soabi}",
        "SKBUILD_SOSABI": "" if target.system == "Windows" else "abi3",
        "SKBUILD_SABI_VERSION": f"{ABI3[0]}.{ABI3[1]}" if host.stable else "",
    }
    if target.system == "Windows":
        settings |= windows_python(build, target, host, zig)
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or "cmake"
    given = [f"-D{name}={value}" for name, value in settings.items()]
    run(cmake, "-S", source, "-B", build / "out", "-G", "Ninja", *given, ZIG_GLOBAL_CACHE_DIR=str(cache))
    run(cmake, "--build", build / "out", "--parallel", os.environ.get("JOBS", "2"), ZIG_GLOBAL_CACHE_DIR=str(cache))
    return next(path for path in (build / "out").glob("_native*") if path.suffix in SUFFIXES)


def windows_python(build: Path, target: Target, host: Host, zig: Path) -> dict[str, Any]:
    """Python for Windows, as settings of CMake: a host's headers with the configuration of Windows, and an import
    library of the stable ABI, since no installation of that system is at hand."""
    headers, exports, library = build / "include", build / "python3.def", build / "libpython3.a"
    shutil.copytree(host.headers, headers)
    shutil.copy(ROOT / "release" / "windows" / "pyconfig.h", headers)
    exports.write_text(stable_exports(), "utf-8")
    run(zig, "dlltool", "-d", exports, "-l", library, "-m", MACHINES[target.processor])
    return {
        "CMAKE_MODULE_PATH": ROOT / "release" / "windows",
        "Python_VERSION": "{}.{}".format(*host.version),
        "Python_INCLUDE_DIRS": headers,
        "Python_LIBRARIES": library,
    }


def stable_exports() -> str:
    """What python3.dll exports to every version from ABI3 on, as a module definition."""
    import abi3info

    names = [f"  {one.symbol.name}{' DATA' * data}" for data, table in enumerate((abi3info.FUNCTIONS, abi3info.DATAS))
             for one in table.values() if (one.added.major, one.added.minor) <= ABI3]  # fmt: skip
    return "\n".join(["LIBRARY python3.dll", "EXPORTS", *names, ""])


def parts_list(tag: str, extension: bytes) -> bytes:
    """The CycloneDX list of what is linked into an extension."""
    components = [
        {"type": "library", "name": name, "version": f"{version(package)}", "licenses": [{"expression": licence}]}
        for name, package, licence in LINKED
    ]
    digest = hashlib.sha256(extension).hexdigest()
    main = {"type": "library", "name": "weighbridge._native", "version": tag,
            "hashes": [{"alg": "SHA-256", "content": digest}]}  # fmt: skip
    document = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
                "metadata": {"component": main}, "components": components}  # fmt: skip
    return json.dumps(document, indent=1).encode() + b"\n"


def assemble(
    files: Mapping[str, bytes], tags: Iterable[str], extension: Path | None, out: Path, when: datetime
) -> Path:
    """Writes a wheel of the pure one's files, with the extension if there is one. Sorted, with one time for all."""
    tags = list(tags)
    info = next(name.split("/")[0] for name in files if name.endswith(".dist-info/WHEEL"))
    contents = {name: data for name, data in files.items() if name != f"{info}/RECORD"}
    lines = [line for line in contents[f"{info}/WHEEL"].decode().splitlines() if line and not line.startswith("Tag: ")]
    if extension is not None:
        lines = [line.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false") for line in lines]
        data = extension.read_bytes()
        contents[f"weighbridge/{extension.name}"] = data
        contents[f"{info}/sboms/weighbridge.cdx.json"] = parts_list(tags[0], data)
    contents[f"{info}/WHEEL"] = "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()
    record = "".join(f"{name},sha256={digest(data)},{len(data)}\n" for name, data in sorted(contents.items()))
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    first, *more = (tag.rpartition("-") for tag in tags)
    path = out / f"{info.removesuffix('.dist-info')}-{first[0]}-{'.'.join([first[2], *(t[2] for t in more)])}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in sorted(contents.items(), key=lambda item: (item[0].startswith(info), item[0])):
            entry = zipfile.ZipInfo(name, when.timetuple()[:6])
            entry.external_attr = (0o100755 if name.endswith(SUFFIXES) else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return path


def digest(data: bytes) -> str:
    """The form of a digest in RECORD."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def audit(wheels: Iterable[Path]) -> None:
    """Checks wheels by the tools of others. SystemExit with their words if one objects."""
    tools = Path(sys.executable).parent
    for wheel in wheels:
        run(tools / "twine", "check", "--strict", wheel)
        run(tools / "check-wheel-contents", "--ignore", "W002", wheel)
        if "-abi3-" in wheel.name:
            run(tools / "abi3audit", "--strict", wheel)
        platform = wheel.stem.rpartition("-")[2].split(".")[0]
        system = platform.split("_")[0]
        if system in ALLOWED:
            # zig calls musl's C library libc.so, which musl's loader takes for its own name; auditwheel knows only
            # Alpine's name, and would look for the file of this machine.
            check_needs(contents(wheel), ALLOWED[system])
        elif system == "manylinux" and platform not in (shown := run(tools / "auditwheel", "show", wheel)):
            raise SystemExit(f"{wheel.name}: auditwheel doesn't confirm {platform}\n{shown}")


def check_needs(wheel: Contents, allowed: re.Pattern[str]) -> None:
    """SystemExit if the extension needs a library that a system may lack: those of the system match `allowed`."""
    if more := [name for name in wheel.needs if not allowed.fullmatch(name)]:
        raise SystemExit(f"{wheel.name}: {wheel.extension} needs {', '.join(more)}")


def check_links(wheel: Path) -> None:
    """SystemExit if a package index would show a link that leads nowhere."""
    if links := readme.relative_links(contents(wheel).metadata):
        raise SystemExit(f"{wheel.name}: README's links are relative: {', '.join(links)}")


def build_all(part: str, hosts: Iterable[Host], work: Path, cache: Path, out: Path) -> Iterator[Path]:
    """Builds the pure Python wheel, and one for each host and target, in a new folder `work`."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", ROOT, "log", "-1", "--format=%ct")
    when = datetime.fromtimestamp(int(epoch), UTC)
    source, build = work / "source", work / "build"
    for folder in (source, build):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    out.mkdir(parents=True, exist_ok=True)
    copy_source(source)
    readme.rewrite(source)
    with zipfile.ZipFile(build_pure(source, build)) as pure:
        files: dict[str, Any] = {name: pure.read(name) for name in pure.namelist() if not name.endswith("/")}
    yield assemble(files, ["py3-none-any"], None, out, when)
    for host in hosts:
        for target in filter(host.serves, targets(part)):
            extension = build_extension(source, build / f"{host.tag}-{target.zig}", target, host, cache)
            yield assemble(files, [f"{host.tag}-{tag}" for tag in target.tags], extension, out, when)


def compare(made: Iterable[Path], again: Iterable[Path]) -> None:
    """SystemExit with the wheels of two builds that differ."""
    if other := [first.name for first, second in zip(made, again, strict=True)
                 if first.read_bytes() != second.read_bytes()]:  # fmt: skip
        raise SystemExit(f"a second build made other bytes: {', '.join(other)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="", help="only targets of zig that contain this")
    parser.add_argument("--python", action="append", help="an interpreter whose headers are used [this one]")
    parser.add_argument("--free-threaded", action="store_true", help="also wheels without the global lock (3.13 on)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the wheels are written [dist]")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "wheels", help="where they are built")
    parser.add_argument("--twice", action="store_true", help="build again in another folder, and compare the bytes")
    parser.add_argument("--upload", action="store_true", help="for a package index: README's links must be addresses")
    parser.add_argument("--no-audit", action="store_true", help="leave out the checks")
    given = parser.parse_args()
    if given.upload and not readme.address(ROOT):
        parser.error("--upload needs the project's address: Source of [project.urls] in pyproject.toml")
    work = given.work.resolve()
    hosts = [host for path in given.python or [sys.executable] for host in hosts_of(path, given.free_threaded)]
    made = list(build_all(given.target, hosts, work, work / "zig", given.out))
    if given.twice:
        again = work / "again" / "elsewhere"
        compare(made, build_all(given.target, hosts, again, work / "zig", again / "dist"))
    if not given.no_audit:
        audit(made)
    for wheel in made if given.upload else ():
        check_links(wheel)
    (work / "index.md").write_text(page(made), "utf-8")
    for path in made:
        sys.stdout.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}  {path.stat().st_size:,}\n")


if __name__ == "__main__":
    main()
