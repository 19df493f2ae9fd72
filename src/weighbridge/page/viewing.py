"""A page on a model, or on the difference of two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weighbridge.api.keywords import Path
from weighbridge.base.closeable import Closing
from weighbridge.models.checkpoint import SourceOptions

if TYPE_CHECKING:
    from weighbridge.adapters.serving.page_server import PageServer
    from weighbridge.page.book import Book
    from weighbridge.reports.statistics.tensor import Progress


class ServedPage(Closing):
    """A page that is being served at `url` until `stop()`. A notebook shows it in a frame."""

    def __init__(self, book: Book, server: PageServer) -> None:
        self._book, self._server = book, server
        self.url = server.url

    def wait(self) -> None:
        """Returns when the server has ended: after `stop()`, or when nobody has had the page open for long enough."""
        self._server.wait()

    def stop(self) -> None:
        """End the server and close the files."""
        self._server.stop()
        self._book.close()

    close = stop

    def __repr__(self) -> str:
        return f"<ServedPage {self._book.title} at {self.url.partition('#')[0]}>"

    def _repr_html_(self) -> str:
        from weighbridge.page.export import notebook_html

        return notebook_html(self._book)


def view(
    path: Path,
    other: Path | None = None,
    *,
    port: int = 0,
    browser: bool = True,
    idle: float = 30,
    arch_file: Path | None = None,
) -> ServedPage:
    """Serve a page on the model at `path`, and on what differs from `other`, to this machine alone.

    `port`: 0 for any. `browser`: open the page in one. `idle`: minutes without an open page after which `wait` ends the
    server; 0 for never. `arch_file`: a family table of your own. Errors: as `open`'s; UsageError for a taken port;
    UnsupportedError without the extra `view`.
    """
    from weighbridge.adapters.serving.page_server import PageServer
    from weighbridge.page.assemble import page

    book = _book(path, other, SourceOptions(arch_file=arch_file))
    try:
        book.prepare()
        made = page("Weighbridge")
        server = PageServer(book, made.html, made.policy, port=port, idle=idle * 60)
    except BaseException:
        book.close()
        raise
    if browser:
        import webbrowser

        webbrowser.open(server.url)
    return ServedPage(book, server)


def widget(path: Path, other: Path | None = None, *, height: int = 640, arch_file: Path | None = None) -> Any:
    """The page of `view` as a widget of a notebook (anywidget), which needs no server: the kernel answers it. `height`:
    in CSS pixels. Closing the widget closes the files. Errors: as `open`'s; UnsupportedError without the extra
    `notebook`."""
    from weighbridge.adapters.serving import notebook
    from weighbridge.page.assemble import widget_script
    from weighbridge.page.export import framed

    book = _book(path, other, SourceOptions(arch_file=arch_file))
    try:
        book.prepare()
        return notebook.widget(book, framed(book), widget_script(), book.title, height, book.close)
    except BaseException:
        book.close()
        raise


def export_view(
    path: Path,
    output: Path,
    other: Path | None = None,
    *,
    values: bool = False,
    overwrite: bool = False,
    arch_file: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the page on `path` (and `other`) to the file `output`, which needs no server: what can be known without
    reading tensor data, and with `values` the statistics of every tensor, heat maps and differences, too. Errors: as
    `open`'s; RefusedError where `output` exists; UsageError for `values` of more than 4,096 tensors."""
    from weighbridge.io.sink import check_target, write_file
    from weighbridge.page.export import export

    check_target(output, overwrite=overwrite, folder=False)
    with _book(path, other, SourceOptions(arch_file=arch_file)) as book:
        write_file(output, export(book, values=values, progress=progress).encode(), overwrite=overwrite)


def _book(path: Path, other: Path | None, options: SourceOptions) -> Book:
    from weighbridge.page.book import Book

    return Book(path, *([] if other is None else [other]), options=options)
