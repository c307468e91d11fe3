"""What elements must look like: inferred from the first one or declared, and enforced where they are delivered.

Enforcing it above the backends makes the check, and its words, the same on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpfeed._errors import SignatureError
from mpfeed._layout import Layout, Leaf
from mpfeed._leaves import Array, castable, fits
from mpfeed._messages import Parcel
from mpfeed._structure import Treespec, paths


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """Shape and dtype of one leaf.

    Attributes:
        shape: None stands for a dimension that may vary; a shape of None is of any rank.
        dtype: NumPy's; ``object`` for text.
    """

    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any]

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether a leaf may have this shape."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, shape, strict=True)
        )

    def merged(self, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
        """The narrowest shape that admits both; None where the ranks differ."""
        if self.shape is None or len(self.shape) != len(shape):
            return None
        return tuple(want if want == got else None for want, got in zip(self.shape, shape, strict=True))


def _tf_text(spec: LeafSpec) -> str:
    name = "string" if spec.dtype == object else spec.dtype.name
    return f"tf.TensorSpec(shape={spec.shape}, dtype=tf.{name})"


def _in_tensorflow(dtype: np.dtype[Any]) -> bool:
    return dtype.kind not in "mM" and dtype.char not in "gG"  # dates, and what is longer than a double


_Which = tuple[int, int | None]  # number of an element, and the worker that made it


class _Text(str):
    """A leaf that prints as itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def element_shape(leaf: Leaf, parcel: Parcel) -> tuple[int, ...]:
    """Shape of a leaf in one element of a message."""
    return leaf.shape[1:] if parcel.stacked else leaf.shape


class Signature:
    """Structure, shapes and dtypes that every element must have.

    Args:
        treespec: the structure.
        leaves: one spec a leaf.
        declared: by the user, rather than taken from the first element.
        fixed: shapes are held to, too; not so in a NumPy stream whose spec nobody asked for.
    """

    _KNOWN_LAYOUTS = 256

    def __init__(self, treespec: Treespec, leaves: list[LeafSpec], *, declared: bool, fixed: bool = True) -> None:
        self.treespec = treespec
        self.leaves = leaves
        self.declared = declared
        self.fixed = fixed
        self._known: dict[int, tuple[Layout, bool]] = {}

    @classmethod
    def of(cls, parcel: Parcel, *, variable: set[int] | None = None, free: bool = False) -> Signature:
        """The signature of a first element: of its leaves numbered in ``variable`` the first dimension may vary.

        With ``free`` no shape is fixed.
        """
        leaves = []
        for i, leaf in enumerate(parcel.layout.leaves):
            shape: tuple[int | None, ...] | None = element_shape(leaf, parcel)
            if free:
                shape = None
            elif shape and variable is not None and i in variable:
                shape = (None, *shape[1:])
            leaves.append(LeafSpec(shape, leaf.dtype))
        return cls(parcel.layout.treespec, leaves, declared=False, fixed=not free)

    def tree(self) -> Any:
        """The leaf specs in the structure of an element."""
        return self.treespec.unflatten(self.leaves)

    def conform(self, parcel: Parcel, number: int) -> list[Array]:
        """The arrays of a message with the declared dtypes; those that have them are not copied.

        Raises:
            SignatureError: naming the leaf, what came, what was expected and the element: ``number`` is that of the
                message's first.
        """
        known = self._known.get(id(parcel.layout))
        if known is not None and known[1]:
            return parcel.arrays
        as_is = self._check(parcel, number)
        if len(self._known) >= self._KNOWN_LAYOUTS:
            self._known.clear()
        self._known[id(parcel.layout)] = parcel.layout, as_is
        return (
            parcel.arrays
            if as_is
            else [self._cast(a, spec) for a, spec in zip(parcel.arrays, self.leaves, strict=True)]
        )

    def _check(self, parcel: Parcel, number: int) -> bool:
        """Whether no leaf needs a cast."""
        if parcel.layout.treespec != self.treespec:
            self._refuse_structure(parcel, number)
        as_is = True
        for i, (leaf, array, spec) in enumerate(zip(parcel.layout.leaves, parcel.arrays, self.leaves, strict=True)):
            shape = element_shape(leaf, parcel)
            if not spec.admits(shape):
                raise self._problem(
                    i,
                    (number, parcel.worker),
                    f"shape {shape}",
                    f"shape {spec.shape}",
                    LeafSpec(spec.merged(shape), spec.dtype),
                )
            if leaf.dtype != spec.dtype:
                as_is = False
                if not castable(array, spec.dtype, leaf.weak):
                    raise self._wrong_dtype(i, leaf, array, (number, parcel.worker))
        return as_is

    def _wrong_dtype(self, i: int, leaf: Leaf, array: Array, which: _Which) -> SignatureError:
        spec = self.leaves[i]
        got = "text" if leaf.dtype == object else str(leaf.dtype)
        if leaf.weak and spec.dtype != object:
            odd = next((v for v in array.ravel() if not fits(np.asarray(v), spec.dtype)), None)
            got = got if odd is None else f"the Python number {odd!s}"
        want = "text" if spec.dtype == object else str(spec.dtype)
        return self._problem(i, which, got, want, LeafSpec(spec.shape, leaf.dtype))

    def _problem(self, i: int, which: _Which, got: str, want: str, wider: LeafSpec) -> SignatureError:
        specs = [*self.leaves]
        specs[i] = wider
        accepting = self.treespec.unflatten([_Text(_tf_text(spec)) for spec in specs])
        source = "output_signature says" if self.declared else "the first element had"
        number, worker = which
        leaf = paths(self.treespec)[i]
        said = f"element {number}: leaf {leaf} has {got} where {source} {want}{_by(worker)}. Nothing is cast silently: "
        if not all(_in_tensorflow(spec.dtype) for spec in specs):
            return SignatureError(f"{said}change the source")
        taker = "output_signature=" if self.declared else "dataset(output_signature="
        return SignatureError(
            f"{said}change the source, or accept it with {taker}{accepting!r}{'' if self.declared else ')'}"
        )

    def _refuse_structure(self, parcel: Parcel, number: int) -> None:
        here, there = paths(self.treespec), paths(parcel.layout.treespec)
        missing = [p for p in here if p not in there]
        extra = [p for p in there if p not in here]
        if not missing and not extra and _same_but_lists(parcel.layout.treespec, self.treespec):
            return
        changes = "; ".join(
            f"{word} {', '.join(found)}" for word, found in (("missing", missing), ("not expected", extra)) if found
        )
        hint = ""
        if self.treespec.is_leaf() and parcel.layout.treespec.type in (list, tuple):
            hint = f". A {parcel.layout.treespec.type.__name__} is a structure of its parts: np.asarray makes an array"
        raise SignatureError(
            f"element {number}: its structure is {parcel.layout.treespec} where {self.treespec} is expected"
            f"{' (' + changes + ')' if changes else ''}{_by(parcel.worker)}. Every element must have the same structure"
            f"{hint}"
        )

    @staticmethod
    def _cast(array: Array, spec: LeafSpec) -> Array:
        if array.dtype == spec.dtype:
            return array
        made = array.astype(spec.dtype)
        made.flags.writeable = False
        return made


def _by(worker: int | None) -> str:
    return "" if worker is None else f" (made by worker {worker})"


def _same_but_lists(one: Treespec, other: Treespec) -> bool:
    """Whether two structures differ only in lists against tuples."""
    if one.num_children != other.num_children or one.num_leaves != other.num_leaves:
        return False
    if one.type is not other.type and not {one.type, other.type} <= {list, tuple} and not _named(one, other):
        return False
    if one.type is dict and one.entries() != other.entries():
        return False
    return all(_same_but_lists(a, b) for a, b in zip(one.children(), other.children(), strict=True))


def _named(one: Treespec, other: Treespec) -> bool:
    """Whether both are the same namedtuple, by name: a class of ``__main__`` may come back as its copy."""
    fields = getattr(one.type, "_fields", None)
    return fields is not None and fields == getattr(other.type, "_fields", None)
