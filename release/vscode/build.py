"""Packs the extension for VS Code as a .vsix, a zip with two files of XML: `build.py [--out DIR]`. Needs no npm."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from weighbridge import __version__

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
_TIME: Final = (1980, 1, 1, 0, 0, 0)
#: The MIME type of each kind of file in the archive.
_TYPES: Final = {
    ".json": "application/json", ".js": "application/javascript", ".md": "text/markdown", ".txt": "text/plain",
    ".vsixmanifest": "text/xml",
}  # fmt: skip
#: What the marketplace knows each file as.
_ASSETS: Final = {"package.json": "Microsoft.VisualStudio.Code.Manifest",
                  "README.md": "Microsoft.VisualStudio.Services.Content.Details",
                  "LICENSE.txt": "Microsoft.VisualStudio.Services.Content.License"}  # fmt: skip


def version(text: str) -> str:
    """Returns the three numbers of a version; VS Code takes nothing else."""
    return ".".join((*text.split("+")[0].split(".")[:3], "0", "0", "0")[:3])


def manifest(package: dict[str, Any]) -> str:
    """Returns `extension.vsixmanifest`."""
    properties = {"Microsoft.VisualStudio.Code.Engine": package["engines"]["vscode"],
                  "Microsoft.VisualStudio.Code.ExtensionDependencies": "",
                  "Microsoft.VisualStudio.Code.ExtensionPack": "",
                  "Microsoft.VisualStudio.Code.ExtensionKind": ",".join(package["extensionKind"])}  # fmt: skip
    identity = {"Language": "en-US", "Id": package["name"], "Version": package["version"],
                "Publisher": package["publisher"]}  # fmt: skip
    return "\n".join([
        '<?xml version="1.0" encoding="utf-8"?>',
        '<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">',
        f"<Metadata><Identity{''.join(f' {k}={quoteattr(v)}' for k, v in identity.items())}/>",
        f"<DisplayName>{escape(package['displayName'])}</DisplayName>",
        f'<Description xml:space="preserve">{escape(package["description"])}</Description>',
        f"<Tags>{escape(','.join(package['keywords']))}</Tags>",
        f"<Categories>{escape(','.join(package['categories']))}</Categories>",
        "<License>extension/LICENSE.txt</License>", "<Properties>",
        *(f"<Property Id={quoteattr(key)} Value={quoteattr(value)}/>" for key, value in properties.items()),
        "</Properties></Metadata>",
        '<Installation><InstallationTarget Id="Microsoft.VisualStudio.Code"/></Installation><Dependencies/><Assets>',
        *(f'<Asset Type="{kind}" Path="extension/{name}" Addressable="true"/>' for name, kind in _ASSETS.items()),
        "</Assets></PackageManifest>", "",
    ])  # fmt: skip


def content_types() -> str:
    """Returns `[Content_Types].xml`."""
    rows = "".join(f'<Default Extension="{suffix}" ContentType="{kind}"/>' for suffix, kind in _TYPES.items())
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">{rows}</Types>\n'
    )


def files() -> dict[str, bytes]:
    """Returns the content of the archive by name."""
    package = json.loads((HERE / "package.json").read_text("utf-8")) | {"version": version(__version__)}
    return {
        "[Content_Types].xml": content_types().encode(),
        "extension.vsixmanifest": manifest(package).encode(),
        "extension/package.json": (json.dumps(package, indent=2) + "\n").encode(),
        "extension/extension.js": (HERE / "extension.js").read_bytes(),
        "extension/README.md": (HERE / "README.md").read_bytes(),
        "extension/LICENSE.txt": (ROOT / "LICENSE").read_bytes(),
    }


def build(out: Path) -> Path:
    """Writes the archive into the folder `out`: the same commit gives the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"weighbridge-{version(__version__)}.vsix"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files().items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), data, zipfile.ZIP_DEFLATED, 9)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "vscode", help="the folder for the archive")
    build(parser.parse_args().out)
