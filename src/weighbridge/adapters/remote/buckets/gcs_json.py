"""Objects of an emulator of Google Cloud Storage (STORAGE_EMULATOR_HOST) by the JSON API, the only one that
most speak. obstore reads Google's own service by the XML API. Reference: cloud.google.com/storage/docs/json_api."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from weighbridge.adapters.remote.buckets.objects import BucketTree
from weighbridge.adapters.remote.http import HttpClient, HttpFile
from weighbridge.base.errors import RemoteError
from weighbridge.base.limits import MIB
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import Source

_LISTING: Final = 32 * MIB


class _Item(msgspec.Struct):
    name: str
    size: str | int  # documented as text; emulators have numbers, too
    generation: str | int


class _Page(msgspec.Struct):
    """The fields used of a page of a list."""

    items: list[_Item] = []
    prefixes: list[str] = []
    nextPageToken: str | None = None


class JsonTree(BucketTree):
    """The objects of a bucket; each folder is listed once. An object's version is its generation."""

    def __init__(self, title: str, endpoint: str, bucket: str) -> None:
        super().__init__(title, None)
        self.base = f"{endpoint.rstrip('/')}/storage/v1/b/{quote(bucket, safe='')}/o"
        self.client = HttpClient(endpoint)

    def is_served(self) -> bool:
        """Whether the server speaks this API."""
        try:
            self._page({"maxResults": 1}, self.title)
        except (RemoteError, OSError):
            return False
        return True

    def _page(self, asked: dict[str, Any], name: str) -> _Page:
        try:
            return msgspec.json.decode(self.client.get(f"{self.base}?{urlencode(asked)}", name, _LISTING), type=_Page)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "check STORAGE_EMULATOR_HOST"
            raise RemoteError(f"{name}: the server answers unlike Google's ({error})", hint=hint) from None

    def _list(self, folder: str) -> dict[str, Any] | None:
        if folder not in self._listed:
            self._listed[folder] = self._names(f"{folder}/" if folder else "") or None
        return self._listed[folder]

    def _names(self, prefix: str) -> dict[str, Any]:
        """The direct children below a prefix."""
        names: dict[str, Any] = {}
        asked = {"prefix": prefix, "delimiter": "/"}
        while True:
            page = self._page(asked, f"{self.title}/{prefix}")
            names |= {one.rstrip("/").rpartition("/")[2]: None for one in page.prefixes}
            names |= {one.name.rpartition("/")[2]: {"size": int(one.size), "e_tag": str(one.generation)}
                      for one in page.items if one.name != prefix}  # fmt: skip
            if page.nextPageToken is None:
                return names
            asked["pageToken"] = page.nextPageToken

    def open(self, name: str) -> Source:
        found = self._object(name)
        if found is None:
            raise FileNotFoundError(2, "no such object", f"{self.title}/{name}")
        url = f"{self.base}/{quote(name, safe='')}?alt=media&generation={found['e_tag']}"
        file = HttpFile(self.client, url, f"{self.title}/{name}", found["size"], found["e_tag"], pinned=False)
        return RangeSource(file)
