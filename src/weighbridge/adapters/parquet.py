"""Tables in Parquet files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError
from weighbridge.io.location import open_source


def read_rows(path: str) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a local or remote file, reading by row groups. Raises FormatError if the file is damaged."""
    arrow = package("pyarrow", "reading Parquet", "fleet")
    parquet = package("pyarrow.parquet", "reading Parquet", "fleet")
    with open_source(resolve_path(path)) as source:
        try:
            file = parquet.ParquetFile(arrow.BufferReader(source.read(0, source.size)))
            for batch in file.iter_batches():
                yield from batch.to_pylist()
        except arrow.ArrowException as error:
            raise FormatError(f"no Parquet file that can be read: {error}", path=path) from None


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> bytes:
    """Rows as a Parquet file. `columns`: name -> Arrow's type ("string", "int64")."""
    arrow = package("pyarrow", "writing Parquet", "fleet")
    parquet = package("pyarrow.parquet", "writing Parquet", "fleet")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in columns.items()])
    sink = arrow.BufferOutputStream()
    made = arrow.Table.from_pydict({name: [row.get(name) for row in rows] for name in columns}, schema=schema)
    parquet.write_table(made, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data
