"""Shows a page about a model, or about several and their differences: served, as a notebook widget, or exported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UsageError
from weighbridge.base.options import ProgressKeyword, accepting, option
from weighbridge.base.records import dataclass
from weighbridge.conversion.options import Path
from weighbridge.io.options import OverwriteOptions
from weighbridge.models.model import ConfigOptions, SourceOptions, StepOptions

#: Models of a page, as many as `wb lineage` compares.
MOST: Final = 64

if TYPE_CHECKING:
    from weighbridge.adapters.serving.page_server import PageServer
    from weighbridge.page.data import PageData


class ServedPage(Closing):
    """A page served at `url` until `stop()`. Notebooks display it in a frame."""

    def __init__(self, data: PageData, server: PageServer) -> None:
        self._data, self._server = data, server
        self.url = server.url

    def wait(self) -> None:
        """Returns when the server has ended: after `stop()`, or after the idle timeout."""
        self._server.wait()

    def stop(self) -> None:
        """Stops the server and closes the files."""
        self._server.stop()
        self._data.close()

    close = stop

    def __repr__(self) -> str:
        return f"<ServedPage {self._data.title} at {self.url.partition('#')[0]}>"

    def _repr_html_(self) -> str:
        from weighbridge.page.export import notebook_html

        return notebook_html(self._data)


@dataclass(frozen=True, kw_only=True)
class PageOptions(StepOptions, ConfigOptions):
    other: Path | Sequence[Path] | None = field(default=None, kw_only=False)
    quality_report: Sequence[str] = option(
        "Saved report of wb quantize or wb quality, or plan of wb quantize, to draw. Repeatable.",
        (),
        metavar="FILE",
        kind="file",
    )


@dataclass(frozen=True, kw_only=True)
class ViewOptions(PageOptions):
    port: int = option("Port to listen on [any].", 0, least=0, most=65535)
    browser: bool = option("Open the page in a browser [yes].", True)
    idle: float = option("Stop after this many minutes without an open page; 0: never [30].", 30.0, metavar="MINUTES",
                         least=0)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OverwriteOptions, PageOptions, ProgressKeyword):
    values: bool = option("Also read the tensors for FILE: statistics, heat maps, differences.", False)


@accepting(ViewOptions)
def view(path: Path, options: ViewOptions) -> ServedPage:
    """Serves a page about the model at `path` to this machine only. With `other`, a model or several: also their
    differences, two at a time, and the family tree of all.

    `wait` returns when the page was closed for `idle` minutes. Raises the errors of `open`, UsageError if the port is
    taken, and UnsupportedError without the extra `view`.
    """
    from weighbridge.adapters.serving.page_server import PageServer
    from weighbridge.page.assemble import page

    data = _page_data(path, options)
    try:
        data.prepare()
        document = page("Weighbridge")
        server = PageServer(data, document.html, document.policy, port=options.port, idle=options.idle * 60)
    except BaseException:
        data.close()
        raise
    if options.browser:
        import webbrowser

        webbrowser.open(server.url)
    return ServedPage(data, server)


def widget(
    path: Path, other: Path | Sequence[Path] | None = None, *, height: int = 640, arch_file: Path | None = None,
    config: Path | Mapping[str, Any] | None = None,
) -> Any:  # fmt: skip
    """Returns the page of `view` as a notebook widget (anywidget), which the kernel answers without a server.
    `height`: in CSS pixels. Closing the widget closes the files. Raises the errors of `open`, and UnsupportedError
    without the extra `notebook`."""
    from weighbridge.adapters.serving import notebook
    from weighbridge.page.assemble import widget_script
    from weighbridge.page.export import framed

    data = _page_data(path, PageOptions(other=other, arch_file=arch_file, config=config))
    try:
        data.prepare()
        return notebook.widget(data, framed(data), widget_script(), data.title, height, data.close)
    except BaseException:
        data.close()
        raise


@accepting(ExportOptions)
def export_view(path: Path, output: Path, options: ExportOptions) -> None:
    """Writes the page about `path` (and `other`) to the file `output`, which needs no server. It reads headers only;
    `values` adds the statistics of every tensor, heat maps and differences. Raises the errors of `open`, RefusedError
    if `output` exists, and UsageError for `values` of more than 4,096 tensors."""
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.page.export import export

    check_target(output, overwrite=options.overwrite, folder=False)
    with _page_data(path, options) as data:
        data.read_here = False
        page = export(data, values=options.values, progress=options.progress)
        write_file(output, page.encode(), overwrite=options.overwrite)


def _page_data(path: Path, options: PageOptions) -> PageData:
    from weighbridge.page.data import PageData

    other = options.other
    others = [] if other is None else [other] if isinstance(other, str | os.PathLike) else other
    if len(others) >= MOST:
        raise UsageError(f"a page shows 1 to {MOST} models, not {len(others) + 1}")
    if options.quality_report:
        from weighbridge.page.views.measured import read_measured

        read_measured(options.quality_report, {})  # refuses other files before the models are opened
    opening = SourceOptions(arch_file=options.arch_file, step=options.step, config=options.config)
    return PageData(path, *others, options=opening, measured=options.quality_report)
