"""A feed on disk: what lies beside the record files, and how a structure is written down. Knows no TensorFlow.

A folder holds ``shard-00000-of-00008.tfrecord`` and so on: element k is in shard k mod S, so that reading the shards
in turn gives the feed's own order. ``dataset.json`` says what the records are. It is written last and at once, so that
a folder that has it is complete. Until then ``unfinished.json`` says how far each file can be trusted.
"""

from __future__ import annotations

import functools
import json
import os
from collections import namedtuple
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Compression = Literal["GZIP", "ZLIB"]

COMPLETE = "dataset.json"
UNFINISHED = "unfinished.json"
_FORMAT = 1


@dataclass(slots=True)
class Part:
    """One file of a shard: a shard has another for each time its writing was taken up again.

    Attributes:
        name: of the file.
        records: whole ones in it.
        nbytes: of these records, before compression.
        size: of the file in bytes, where it is complete.
    """

    name: str
    records: int = 0
    nbytes: int = 0
    size: int = 0


@dataclass(slots=True)
class Leaf:
    """What is known of a leaf: the narrowest shape that admits all that were written, and TensorFlow's dtype."""

    shape: list[int | None] | None
    dtype: str

    def widen(self, shape: tuple[int, ...]) -> None:
        """Admit this shape, too."""
        if self.shape is None or len(self.shape) != len(shape):
            self.shape = None
        elif self.shape != list(shape):
            self.shape = [have if have == got else None for have, got in zip(self.shape, shape, strict=True)]


@dataclass(slots=True)
class Manifest:
    """What lies in a folder.

    Attributes:
        compression: of the files.
        shards: the files of each shard, in the order in which they are read.
        structure: of an element; see ``described``. None before the first element.
        leaves: one a leaf.
        elements: how many.
        state: the feed's position after them, while the folder is unfinished.
    """

    compression: Compression | None
    shards: list[list[Part]]
    structure: Any = None
    leaves: list[Leaf] = field(default_factory=list)
    elements: int = 0
    state: dict[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all records, before compression."""
        return sum(part.nbytes for parts in self.shards for part in parts)

    def save(self, folder: Path, name: str) -> None:
        """Write it, so that the file of that name is the old one or the new one, whatever happens meanwhile."""
        new = folder / f".{name}.new"
        with new.open("w") as file:
            json.dump({"format": _FORMAT, **asdict(self)}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / name)
        sync(folder)

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """The one in a file.

        Raises:
            ValueError: the file is not one, or is of a later mpfeed.
        """
        try:
            stored = json.loads(path.read_text())
            if stored.pop("format") != _FORMAT:
                raise ValueError("it is of another version of mpfeed")
            stored["shards"] = [[Part(**part) for part in parts] for parts in stored["shards"]]
            stored["leaves"] = [Leaf(**leaf) for leaf in stored["leaves"]]
            return cls(**stored)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def sync(path: Path) -> None:
    """Bring a file or a folder to the disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --------------------------------------------------------------------------------------------- structures


def described(tree: Any) -> Any:
    """A structure whose leaves are their numbers, as JSON: lists, tuples and namedtuples become what TensorFlow takes.

    Raises:
        TypeError: it is of something else, or a dict has keys that JSON does not keep as they are.
    """
    if isinstance(tree, int):
        return tree
    if isinstance(tree, dict):
        for key in tree:
            if type(key) not in (str, int, bool, float):
                raise TypeError(f"the key {key!r} cannot be written down: use text or numbers as keys")
        return {"dict": [[key, described(part)] for key, part in tree.items()]}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        parts = [[name, described(part)] for name, part in zip(tree._fields, tree, strict=True)]
        return {"namedtuple": type(tree).__name__, "fields": parts}
    if isinstance(tree, (list, tuple)):
        return {"tuple": [described(part) for part in tree]}
    raise TypeError(f"a {type(tree).__name__} cannot be written down: use dicts, tuples, lists and namedtuples")


def rebuilt(structure: Any, leaves: list[Any]) -> Any:
    """The structure with these leaves; a namedtuple is of a class of the same name and fields."""
    match structure:
        case int():
            return leaves[structure]
        case {"dict": parts}:
            return {key: rebuilt(part, leaves) for key, part in parts}
        case {"namedtuple": name, "fields": parts}:
            kind = _namedtuple(name, tuple(field for field, _ in parts))
            return kind(*(rebuilt(part, leaves) for _, part in parts))
        case {"tuple": parts}:
            return tuple(rebuilt(part, leaves) for part in parts)
    raise ValueError(f"{structure!r} is no structure")


@functools.cache
def _namedtuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)
