"""Elements as TFRecord files: written one by one, read back by TensorFlow's own threads."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpfeed._errors import MpfeedError, SignatureError
from mpfeed._leaves import Array
from mpfeed._records import COMPLETE, UNFINISHED, Compression, Leaf, Manifest, Part, described, rebuilt, sync
from mpfeed._structure import Treespec, flatten, paths
from mpfeed._tf import tf_dtype  # first: it says what to do where TensorFlow is missing

import tensorflow as tf  # isort: skip
from tensorflow.core.framework.tensor_pb2 import TensorProto  # isort: skip

if TYPE_CHECKING:
    from mpfeed._feed import Feed

CHECKPOINT_S = 5.0
_FRAME_BYTES = 16  # of a record in a file: its length, and a checksum of the length and of the data
_LARGEST = (1 << 31) - (1 << 16)  # protocol buffers hold less than 2 GiB
_NIBBLES = ("int4", "uint4")  # a byte each, in NumPy and in a record


# ------------------------------------------------------------------------------------------------- writing


def write(
    feed: Feed, folder: Path, shards: int, compression: Compression | None, report: Callable[[Manifest], None]
) -> Manifest:
    """See ``mpfeed.tfrecord.write``."""
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        manifest = _begun(feed, folder, shards, compression)
        with _Files(folder, manifest) as files:
            _copy(feed, files, report)
        _finish(folder, manifest)
    return manifest


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep others out; ends with this process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MpfeedError(f"another process is writing to {folder}") from None
        yield
    finally:
        os.close(descriptor)


def _begun(feed: Feed, folder: Path, shards: int, compression: Compression | None) -> Manifest:
    """What is to be written on: an unfinished folder with the feed at its position, or a new one."""
    if (folder / COMPLETE).exists():
        raise FileExistsError(f"{folder} holds a complete dataset: delete it, or choose another folder")
    if (folder / UNFINISHED).exists():
        manifest = Manifest.load(folder / UNFINISHED)
        if manifest.state is not None:
            return _taken_up(feed, folder, manifest, shards, compression)
    elif any(folder.glob("shard-*.tfrecord")):
        raise FileExistsError(f"{folder} holds record files of something else: choose another folder")
    manifest = Manifest(compression, [[] for _ in range(shards)], state=_state(feed))
    _remove_strays(folder, manifest)
    manifest.save(folder, UNFINISHED)
    return manifest


def _taken_up(feed: Feed, folder: Path, manifest: Manifest, shards: int, compression: Compression | None) -> Manifest:
    was, now = (len(manifest.shards), manifest.compression), (shards, compression)
    if was != now:
        raise ValueError(
            f"{folder} was begun with shards={was[0]}, compression={was[1]!r}; go on with these, or delete it"
        )
    try:
        feed.load_state_dict(manifest.state)
    except ValueError as error:
        raise ValueError(f"{folder} was begun with another feed; delete it, or go on with that. {error}") from error
    manifest.shards = [[part for part in parts if part.records] for parts in manifest.shards]
    _remove_strays(folder, manifest)
    for part in (part for parts in manifest.shards for part in parts if not part.size):
        _trim(folder / part.name, part, compression)
    return manifest


def _state(feed: Feed) -> dict[str, Any] | None:
    """The feed's position, or None where it has none (``ordered=False``)."""
    try:
        return feed.state_dict()
    except MpfeedError:
        return None


def _remove_strays(folder: Path, manifest: Manifest) -> None:
    """Files begun after the last checkpoint."""
    known = {part.name for parts in manifest.shards for part in parts}
    for path in folder.glob("shard-*.tfrecord"):
        if path.name not in known:
            path.unlink()


def _trim(path: Path, part: Part, compression: Compression | None) -> None:
    """Cut off what was written after the last checkpoint; it may end in the middle of a record."""
    if compression is None:
        os.truncate(path, part.nbytes)
    else:
        trimmed = path.with_suffix(".new")
        with tf.io.TFRecordWriter(str(trimmed), compression) as writer:
            for record in tf.data.TFRecordDataset(str(path), compression).take(part.records):
                writer.write(record.numpy())
        trimmed.replace(path)
    part.size = path.stat().st_size


def _copy(feed: Feed, files: _Files, report: Callable[[Manifest], None]) -> None:
    due = time.monotonic() + CHECKPOINT_S
    with contextlib.closing(iter(feed)) as elements:
        for element in elements:
            files.append(element)
            if time.monotonic() >= due:
                files.checkpoint(_state(feed))
                due = time.monotonic() + CHECKPOINT_S
            report(files.manifest)


def _finish(folder: Path, manifest: Manifest) -> None:
    if manifest.structure is None:
        (folder / UNFINISHED).unlink()
        raise SignatureError("the source is empty, so there is nothing to write")
    for part in (part for parts in manifest.shards for part in parts):
        part.size = (folder / part.name).stat().st_size
        sync(folder / part.name)
    manifest.state = None
    manifest.save(folder, COMPLETE)
    (folder / UNFINISHED).unlink()


class _Files:
    """The open files of a folder; closed on leaving, whatever happened."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._folder = folder
        self._open: dict[int, tuple[Part, Any]] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *exc: object) -> None:
        for _, writer in self._open.values():
            writer.close()

    def append(self, element: Any) -> None:
        """Write an element to the shard whose turn it is."""
        leaves, treespec = flatten(element)
        manifest = self.manifest
        if not self._open:
            self._describe(leaves, treespec)
        for known, leaf in zip(manifest.leaves, leaves, strict=True):
            known.widen(leaf.shape)
        record = self._record(leaves)
        part, writer = self._file(manifest.elements % len(manifest.shards))
        writer.write(record)
        part.records += 1
        part.nbytes += len(record) + _FRAME_BYTES
        manifest.elements += 1

    def _describe(self, leaves: list[Array], treespec: Treespec) -> None:
        """What the first element of this call is like: the feed holds the others to it."""
        structure = described(treespec.unflatten(range(len(leaves))))
        dtypes = [_dtype(leaf, path) for leaf, path in zip(leaves, paths(treespec), strict=True)]
        manifest = self.manifest
        if manifest.structure is None:
            manifest.structure = structure
            shapes = [list(leaf.shape) for leaf in leaves]
            manifest.leaves = [Leaf(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        elif (manifest.structure, [leaf.dtype for leaf in manifest.leaves]) != (structure, dtypes):
            raise ValueError(f"{self._folder} was begun with elements of another structure or dtype; delete it")

    def _record(self, leaves: list[Array]) -> bytes:
        if (nbytes := sum(leaf.nbytes for leaf in leaves)) > _LARGEST:
            raise ValueError(
                f"element {self.manifest.elements} has {nbytes / (1 << 30):.1f} GiB, and a record holds less than 2: "
                "write smaller batches, or samples"
            )
        features = {str(i): _feature(leaf) for i, leaf in enumerate(leaves)}
        made: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
        return made

    def _file(self, shard: int) -> tuple[Part, Any]:
        if shard not in self._open:
            parts = self.manifest.shards[shard]
            again = f".{len(parts)}" if parts else ""
            part = Part(f"shard-{shard:05d}-of-{len(self.manifest.shards):05d}{again}.tfrecord")
            writer = tf.io.TFRecordWriter(str(self._folder / part.name), self.manifest.compression)
            parts.append(part)
            self._open[shard] = part, writer
        return self._open[shard]

    def checkpoint(self, state: dict[str, Any] | None) -> None:
        """What was written until now is kept, also if this process is killed."""
        if state is None:
            return
        for part, writer in self._open.values():
            writer.flush()
            sync(self._folder / part.name)
        self.manifest.state = state
        self.manifest.save(self._folder, UNFINISHED)


def _dtype(leaf: Array, path: str) -> str:
    name = str(tf_dtype(leaf.dtype, path).name)
    if name.startswith("float8"):  # no operation of TensorFlow's makes one of bytes, and datasets refuse the cast
        raise SignatureError(f"leaf {path} is {name}, which TensorFlow cannot read from a file: yield .view('uint8')")
    return name


def _feature(leaf: Array) -> Any:
    shape = tf.TensorShape(leaf.shape).as_proto()
    if leaf.dtype == object:
        texts = [text.encode() if isinstance(text, str) else text for text in leaf.ravel().tolist()]
        proto = TensorProto(dtype=tf.string.as_datatype_enum, tensor_shape=shape, string_val=texts)
    else:
        dtype = _stored(tf.as_dtype(leaf.dtype)).as_datatype_enum
        proto = TensorProto(dtype=dtype, tensor_shape=shape, tensor_content=leaf.tobytes())
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[proto.SerializeToString()]))


def _stored(dtype: tf.DType) -> tf.DType:
    """The type a record says: ``tf.io.parse_tensor`` knows no int4."""
    return tf.int8 if dtype.name in _NIBBLES else dtype


# ------------------------------------------------------------------------------------------------- reading


def read(folder: Path, prefetch: int | None) -> tf.data.Dataset:
    """See ``mpfeed.tfrecord.read``."""
    manifest = _complete(folder)
    shards = [[str(folder / part.name) for part in parts] for parts in manifest.shards if parts]
    longest = max(map(len, shards))
    names = tf.data.Dataset.from_tensor_slices([[*shard, *[""] * (longest - len(shard))] for shard in shards])

    def records(of_shard: Any) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(tf.boolean_mask(of_shard, of_shard != ""), manifest.compression)

    parallel = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
    made = names.interleave(records, cycle_length=len(shards), block_length=1, **parallel)
    made = made.map(_parser(manifest), **parallel).apply(tf.data.experimental.assert_cardinality(manifest.elements))
    return made.prefetch(prefetch) if prefetch else made


def _complete(folder: Path) -> Manifest:
    """What the folder holds, all of it there."""
    if (folder / COMPLETE).exists():
        manifest = Manifest.load(folder / COMPLETE)
        for part in (part for parts in manifest.shards for part in parts):
            size = (folder / part.name).stat().st_size
            if size != part.size:
                raise ValueError(f"{folder / part.name} has {size:,} bytes, and had {part.size:,} when it was written")
        return manifest
    if (folder / UNFINISHED).exists():
        done = Manifest.load(folder / UNFINISHED).elements
        raise FileNotFoundError(f"{folder} is not complete ({done} elements are safe): call write() again to go on")
    raise FileNotFoundError(f"{folder} holds no dataset written by mpfeed.tfrecord.write")


def _parser(manifest: Manifest) -> Any:
    names = [str(i) for i in range(len(manifest.leaves))]
    features = {name: tf.io.FixedLenFeature([], tf.string) for name in names}

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def parsed(record: Any) -> Any:
        values = tf.io.parse_single_example(record, features)
        leaves = [
            tf.ensure_shape(_tensor(values[name], tf.as_dtype(leaf.dtype)), leaf.shape)
            for name, leaf in zip(names, manifest.leaves, strict=True)
        ]
        return rebuilt(manifest.structure, leaves)

    return parsed


def _tensor(proto: Any, dtype: tf.DType) -> Any:
    stored = _stored(dtype)
    tensor = tf.io.parse_tensor(proto, stored)
    return tensor if stored == dtype else tf.cast(tensor, dtype)
