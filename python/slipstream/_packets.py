"""The packets of a capture, as Arrow's record batches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterator, Union

from . import _native
from ._damage import warn, warn_of_times
from ._files import name_of
from .partials import ALL, Span

if TYPE_CHECKING:
    import pyarrow

_BATCH = 4 << 20


def schema() -> pyarrow.Schema:
    """The columns of `packets`."""
    arrow = _arrow()
    return arrow.schema([("file", arrow.string()), ("split", arrow.int64()), ("number", arrow.int64()), ("time_ns", arrow.int64()),
                         ("link_type", arrow.int32()), ("original_len", arrow.int64()), ("data", arrow.binary())])


def packets(path: Union[str, os.PathLike[str]], span: Span = ALL, *, strict: bool = False, walk: bool = False,
            batch_bytes: int = _BATCH) -> Iterator[pyarrow.RecordBatch]:
    """The packets of a capture, or of a part of it, of `spans`, as `pyarrow.RecordBatch`es with about
    `batch_bytes` of packet data each.

    Columns: `file`; `split` (where the part begins) and `number` (of the packet in it, from 0); `time_ns`
    (since 1970; the bits of an unsigned number); `link_type` (number of the link type with which `data`
    begins); `original_len` (bytes on the wire); `data`.

    strict: damage is an error; else the packets end where it begins. Damage in a part that is not the last is
        always one.
    walk: go over the file up to the part first: what a pcapng file says there of its interfaces holds for the
        part, too.

    Raises as `analyze` does, when it is called, and where a record is damaged when it comes to it;
    `CaptureError` also where the part ends where no record does. Warns
    (`DamageWarning`) where they end with damage, and (`TimeWarning`) where packets have no times that can be.

    >>> sum(batch.num_rows for batch in packets("traces/campus.pcap.gz"))
    24000
    """
    arrow = _arrow()
    path = name_of(path)
    if batch_bytes < 1:
        raise ValueError(f"batch_bytes={batch_bytes}: a batch has a byte at least")
    return _batches(arrow, path, span, _native.Packets(path, tuple(span), walk, strict), batch_bytes)


def _batches(arrow: Any, path: str, span: Span, native: _native.Packets, batch_bytes: int) -> Iterator[pyarrow.RecordBatch]:
    columns, number = schema(), 0
    # Arrow's text is UTF-8, and a file's name may be any bytes.
    named = os.fsencode(path).decode(errors="replace")
    while True:
        got = native.next(batch_bytes)
        if got is None:
            warn(native.damage and native.damage[1])
            warn_of_times(path, native.odd_times)
            return
        rows, (times, links, lens, offsets, data) = got

        def column(kind: Any, *buffers: bytes) -> Any:
            return arrow.Array.from_buffers(kind, rows, [None, *map(arrow.py_buffer, buffers)])

        name = arrow.DictionaryArray.from_arrays(arrow.repeat(arrow.scalar(0, arrow.int32()), rows), [named]).dictionary_decode()
        yield arrow.RecordBatch.from_arrays(
            [name, arrow.repeat(arrow.scalar(span[0], arrow.int64()), rows), arrow.array(range(number, number + rows), arrow.int64()),
             column(arrow.int64(), times), column(arrow.int32(), links), column(arrow.int64(), lens),
             column(arrow.binary(), offsets, data)], schema=columns)
        number += rows


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("packets need pyarrow: pip install pyarrow") from error
    return pyarrow
