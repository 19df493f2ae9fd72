"""What is in a wheel: its tags and digest, and what its extension needs of a system. Also a page of all wheels."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Final

SUFFIXES: Final = (".so", ".pyd")  # of an extension
LOAD_DYLIB: Final = (0xC, 0x80000018)  # commands of Mach-O: a library, and one that may be absent
BUILD_VERSION: Final = 0x32
MINIMUM_VERSION: Final = 0x24


@dataclass(frozen=True)
class Contents:
    """`metadata`: the text of METADATA. `needs`: each library that the extension names, with the highest version of its
    symbols, or "". `sizes`: of the files."""

    name: str
    size: int
    digest: str
    tags: tuple[str, ...]
    metadata: str
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    needs: Mapping[str, str]

    @property
    def extension(self) -> str:
        return next((name for name in self.sizes if name.endswith(SUFFIXES)), "")


def contents(wheel: Path) -> Contents:
    data = wheel.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = {PurePosixPath(name).name: text for name, text in files.items() if ".dist-info/" in name}
    extension = next((file for name, file in files.items() if name.endswith(SUFFIXES)), b"")
    return Contents(
        wheel.name,
        len(data),
        hashlib.sha256(data).hexdigest(),
        tuple(Parser().parsestr(info["WHEEL"].decode()).get_all("Tag", [])),
        info["METADATA"].decode(),
        {name: len(file) for name, file in files.items()},
        {name: hashlib.sha256(file).hexdigest() for name, file in files.items()},
        needs(extension) if extension else {},
    )


def needs(extension: bytes) -> dict[str, str]:
    """The libraries that an ELF, PE or Mach-O file names, each with the highest version that it asks for."""
    if extension.startswith(b"MZ"):
        import pefile  # abi3audit's

        return {entry.dll.decode(): "" for entry in pefile.PE(data=extension).DIRECTORY_ENTRY_IMPORT}
    if extension.startswith(b"\xcf\xfa\xed\xfe"):
        return dict(mach_o_needs(extension))
    from elftools.elf.elffile import ELFFile  # auditwheel's

    elf = ELFFile(io.BytesIO(extension))
    found = {tag.needed: "" for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    if versions := elf.get_section_by_name(".gnu.version_r"):
        for library, symbols in versions.iter_versions():
            found[library.name] = max((symbol.name for symbol in symbols), key=version_key)
    return found


def version_key(symbol: str) -> list[int]:
    """GLIBC_2.17 as [2, 17]."""
    return [int(part) for part in symbol.rpartition("_")[2].split(".") if part.isdigit()]


def mach_o_needs(extension: bytes) -> Iterator[tuple[str, str]]:
    """The libraries of a 64-bit Mach-O file, and the oldest macOS."""
    (count,) = struct.unpack_from("<I", extension, 16)
    offset = 32
    for _ in range(count):
        command, size, first, second = struct.unpack_from("<4I", extension, offset)
        if command in LOAD_DYLIB:
            yield extension[offset + first : offset + size].split(b"\0")[0].decode(), ""
        elif command in (BUILD_VERSION, MINIMUM_VERSION):
            least = second if command == BUILD_VERSION else first
            yield "macOS", f"{least >> 16}.{least >> 8 & 255}"
        offset += size


def page(wheels: Iterable[Path]) -> str:
    """Markdown: a row for each wheel, then the files of each. It has no time and no path: the same wheels make the
    same page."""
    all_contents = [contents(wheel) for wheel in wheels]
    table = [
        "| wheel | bytes | extension | it needs |",
        "|---|---|---|---|",
        *(
            f"| {one.name} | {one.size:,} | {one.extension or 'none'} | "
            f"{', '.join(f'{library} {version}'.strip() for library, version in sorted(one.needs.items()))} |"
            for one in all_contents
        ),
    ]
    digests = ["```", *(f"{one.digest}  {one.name}" for one in all_contents), "```"]
    return "\n".join(
        ["# Wheels", "", *table, "", *digests, *(line for one in all_contents for line in section(one)), ""]
    )


def section(one: Contents) -> Iterator[str]:
    """The tags and files of a wheel. Folders of the package are counted; metadata and the extension are listed."""
    shown = [name for name in one.sizes if ".dist-info/" in name or name == one.extension]
    folders = Counter(str(PurePosixPath(name).parent) for name in one.sizes if name not in shown)
    yield from (
        "",
        f"## {one.name}",
        "",
        f"Tags: {', '.join(one.tags)}",
        "",
        "| file | bytes | SHA-256 |",
        "|---|---|---|",
    )
    yield from (f"| {name} | {one.sizes[name]:,} | {one.digests[name]} |" for name in shown)
    yield from (
        "",
        "| folder | files |",
        "|---|---|",
        *(f"| {name} | {count} |" for name, count in sorted(folders.items())),
    )
