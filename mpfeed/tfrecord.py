"""Convert once: a feed written to TFRecord files, and read back by TensorFlow without Python.

What is drawn at random is drawn once then, and the same in every epoch after. ``benchmarks/convert.py`` says when
converting pays.
"""

from __future__ import annotations

import numbers
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpfeed._records import Compression, Manifest

if TYPE_CHECKING:
    import tensorflow as tf

    from mpfeed._feed import Feed

__all__ = ["Written", "read", "write"]

_AUTOTUNE = -1  # tf.data.AUTOTUNE, without importing TensorFlow


@dataclass(frozen=True, slots=True)
class Written:
    """What ``write`` has written.

    Attributes:
        elements: how many.
        nbytes: bytes of the files.
        files: how many.
    """

    elements: int
    nbytes: int
    files: int


def write(
    feed: Feed,
    folder: str | os.PathLike[str],
    *,
    shards: int = 8,
    compression: Compression | None = None,
    progress: bool | None = None,
) -> Written:
    """Write the feed's next epoch to sharded TFRecord files, with its structure, dtypes and shapes beside them.

    The folder reads as complete only when all is there. An interrupted call, however it ended, is taken up by the
    same call with a like feed: it goes on where it was at most five seconds before, and the result is the same.

    Args:
        feed: what to write, element by element: batches with ``batch_size``, else samples. With ``ordered=False`` an
            interrupted call begins anew.
        folder: on a local disk; made if it is not there.
        shards: number of files, which are read in parallel; a call that takes up an interrupted one adds files to them.
        compression: "GZIP", "ZLIB" or None. Compressing takes most of the time where it is used.
        progress: a line on standard error while it runs; None: where that is a terminal.

    Raises:
        FileExistsError: the folder holds a complete dataset, or other record files.
        ValueError: an option out of range; the folder was begun with another feed or other options; an element has 2
            GiB or more.
        TypeError: an option of a wrong type, or a structure that cannot be written down.
        SignatureError: the source is empty, or a leaf has no TensorFlow type.
        MpfeedError: another process writes to the folder. Also whatever reading the feed raises.
        ImportError: TensorFlow is missing (``pip install 'mpfeed[tf]'``).
    """
    _check(shards, compression)
    if not hasattr(feed, "state_dict"):
        raise TypeError(
            f"tfrecord.write needs a feed, not {type(feed).__name__}: Dataset.save writes a tf.data.Dataset"
        )
    from mpfeed import _tf_records

    show = sys.stderr.isatty() if progress is None else progress
    line = _Line(_length(feed)) if show else None
    try:
        manifest = _tf_records.write(feed, Path(folder), int(shards), compression, line or _silent)
    finally:
        if line is not None:
            line.end()
    sizes = [part.size for parts in manifest.shards for part in parts]
    return Written(manifest.elements, sum(sizes), len(sizes))


def read(folder: str | os.PathLike[str], *, prefetch: int | None = _AUTOTUNE) -> tf.data.Dataset:
    """The elements of a folder, in the order in which they were written, as a ``tf.data.Dataset``.

    Files are read and records parsed in parallel by TensorFlow's threads, with the same result every time. Lists come
    back as tuples and text as UTF-8 bytes, as from ``feed.dataset()``.

    Args:
        folder: that ``write`` has finished.
        prefetch: elements TensorFlow keeps ready, ``tf.data.AUTOTUNE`` by default; None or 0 for none.

    Raises:
        FileNotFoundError: nothing was written there, or it is not complete, or a file is gone.
        ValueError: a file does not have the size it was written with.
        ImportError: TensorFlow is missing (``pip install 'mpfeed[tf]'``).
    """
    from mpfeed import _tf_records

    return _tf_records.read(Path(folder), prefetch)


def _check(shards: Any, compression: Any) -> None:
    if isinstance(shards, bool) or not isinstance(shards, numbers.Integral):
        raise TypeError(f"shards={shards!r}: give a whole number of at least 1")
    if int(shards) < 1:
        raise ValueError(f"shards={shards}: give at least 1")
    if compression not in (None, "GZIP", "ZLIB"):
        raise ValueError(f'compression={compression!r}: choose "GZIP", "ZLIB" or None')


def _length(feed: Feed) -> int | None:
    try:
        return len(feed)
    except TypeError:
        return None


def _silent(_: Manifest) -> None:
    pass


class _Line:
    """How far it is, on one line of standard error that is written anew."""

    _EVERY_S = 0.5

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._begun = self._shown = time.monotonic()
        self._first: int | None = None

    def __call__(self, manifest: Manifest) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = manifest.elements - 1
        if now - self._shown < self._EVERY_S:
            return
        self._shown = now
        done, seconds = manifest.elements, now - self._begun
        of = f" of {self._length:,} ({done / self._length:.0%})" if self._length else ""
        rate = (done - self._first) / seconds
        text = f"{done:,}{of} elements, {manifest.nbytes / 1e6:,.0f} MB, {rate:,.1f} elements/s"
        print(f"\r{text:<79}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        print(file=sys.stderr, flush=True)
