"""Builds the page that shows a dropped model in the browser, as a folder of static files for any web server.

python release/browser/build.py [--out DIR]

Pyodide is Python compiled to WebAssembly, from npm; the packages are wheels. Both are pinned by digest (`parts.toml`,
`requirements/browser.txt`).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from weighbridge import __version__
from weighbridge.page.assemble import page

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
PACKAGES: Final = ROOT / "requirements/browser.txt"
COPIED: Final = ("main.js", "worker.js", "style.css")
#: Files of a wheel that the page never imports.
_LEFT_OUT: Final = re.compile(r"\.pyi$|/tests?/|^weighbridge-[^/]*\.data/|^weighbridge/docs/")
_EXTENSION: Final = re.compile(r"\.(?:so|pyd)$")
_TIME: Final = (1980, 1, 1, 0, 0, 0)


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def pyodide(parts: Mapping[str, Any], work: Path, out: Path) -> None:
    """Writes Pyodide's files. Exits unless the archive is the pinned one."""
    npm = shutil.which("npm") or sys.exit("npm is missing; on Debian: apt-get install npm")
    run(npm, "pack", "--silent", f"pyodide@{parts['version']}", "--pack-destination", work)
    data = (work / f"pyodide-{parts['version']}.tgz").read_bytes()
    if (found := f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}") != parts["integrity"]:
        sys.exit(f"pyodide {parts['version']} is {found}, expected {parts['integrity']}")
    out.mkdir()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in parts["files"]:
            member = archive.extractfile(f"package/{name}")
            assert member is not None, name
            (out / name).write_bytes(member.read())


def wheels(parts: Mapping[str, Any], work: Path) -> Iterator[Path]:
    """Downloads the packages' wheels, and builds the package's own without its extension."""
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    platforms = [word for name in parts["platforms"] for word in ("--platform", name)]
    version = parts["python"]
    abi = ("--implementation", "cp", "--abi", f"cp{version.replace('.', '')}", "--abi", "none")
    run(*pip, "download", "--no-deps", "--only-binary", ":all:", "--require-hashes", *platforms,
        "--python-version", version, *abi, "--dest", work / "wheels", "-r", PACKAGES)  # fmt: skip
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-Cwheel.cmake=false", "-Cwheel.py-api=py3",
        "--wheel-dir", work / "wheels", ROOT)  # fmt: skip
    yield from sorted((work / "wheels").glob("*.whl"))


def packages(parts: Mapping[str, Any], work: Path) -> bytes:
    """Returns one archive of all packages: sorted, with one time, so the same commit gives the same bytes."""
    files: dict[str, bytes] = {}
    for wheel in wheels(parts, work):
        native = parts["platforms"][0] in wheel.name
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not name.endswith("/") and not _LEFT_OUT.search(name) and (native or not _EXTENSION.search(name)):
                    files[name] = archive.read(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, _TIME), files[name], zipfile.ZIP_DEFLATED, 9)
    return packed.getvalue()


def document() -> str:
    """The document around the page. The frame inherits its policy, which so allows the page's script and style too."""
    framed = dict(rule.split(" ", 1) for rule in page("", "<!-- -->").policy.split("; "))
    rules = {
        "default-src": "'none'", "script-src": f"'self' 'wasm-unsafe-eval' {framed['script-src']}",
        "style-src": f"'self' {framed['style-src']}", "connect-src": "'self'", "worker-src": "'self'",
        "frame-src": "'self'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    text = (HERE / "index.html").read_text("utf-8")
    policy = "; ".join(f"{name} {value}" for name, value in rules.items())
    return text.replace("{{policy}}", policy).replace("{{version}}", __version__)


def build(out: Path) -> None:
    """Writes the folder `out` anew."""
    parts = tomllib.loads((HERE / "parts.toml").read_text("utf-8"))["pyodide"]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="wb-browser-") as work:
        pyodide(parts, Path(work), out / "pyodide")
        (out / "packages.zip").write_bytes(packages(parts, Path(work)))
    for name in COPIED:
        shutil.copy(HERE / name, out / name)
    (out / "index.html").write_text(document(), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "browser", help="the folder that is written")
    build(parser.parse_args().out)
