"""What may be a leaf of an element: anything that NumPy makes a tensor's array of, and text."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpfeed._errors import SignatureError
from mpfeed._structure import Treespec, paths

Array = NDArray[Any]

PYTHON_NUMBERS = (int, float, bool, complex)
PYTHON_NUMBER_OF = {"i": int, "u": int, "f": float, "b": bool, "c": complex}


def is_text(array: Array) -> bool:
    """Whether the leaf holds str or bytes objects."""
    return array.dtype == object


def as_leaf(value: Any, path: str) -> tuple[Array, bool]:
    """(the leaf as an array, whether it was a Python number).

    str stays str and bytes stays bytes, in object arrays; byte order becomes native.

    Raises:
        SignatureError: it cannot be a tensor: None, a ragged or other object, a masked or structured array.
    """
    if type(value) in PYTHON_NUMBERS:
        array = np.asarray(value)
        if array.dtype == object:
            raise _refused(path, f"the integer {value} needs more than 64 bits", "use a float or split it")
        return array, True
    if isinstance(value, (str, bytes)):
        return text([plain(value)], ()), False
    if type(value) is not np.ndarray:
        value = _to_array(value, path)
    return _check(value, path), False


def _to_array(value: Any, path: str) -> Array:
    if value is None:
        raise _refused(path, "is None", "give it a value, or leave it out of every element")
    if isinstance(value, np.ma.MaskedArray):
        raise _refused(path, "is a masked array", "yield .filled(value), or .data and .mask as two leaves")
    try:
        return np.asarray(value)
    except Exception as error:
        raise _refused(
            path, f"cannot become an array ({type(error).__name__}: {error})", "pad it, or yield its parts"
        ) from error


def _check(array: Array, path: str) -> Array:
    kind = array.dtype.kind
    if kind in "biufcmM":
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if kind in "SUTO":
        return _text_of(array, path)
    if array.dtype.names is None and array.dtype.subdtype is None and array.dtype.type is not np.void:
        return array  # bfloat16, float8 and int4 of ml_dtypes register as kind "V"
    raise _refused(path, f"is a structured array ({array.dtype})", "yield its fields as leaves of a dict")


def _text_of(array: Array, path: str) -> Array:
    values = array.ravel().tolist()
    kinds = {str if isinstance(v, str) else bytes if isinstance(v, bytes) else type(v) for v in values}
    if kinds <= {str} or kinds <= {bytes}:
        return text([v if type(v) in (str, bytes) else plain(v) for v in values], array.shape)
    if kinds == {str, bytes}:
        raise _refused(path, "mixes str and bytes", "make them all one or the other")
    odd = next(i for i, v in enumerate(values) if not isinstance(v, (str, bytes)))
    what = f"holds objects of {type(values[odd]).__name__} (entry {odd}: {_short(values[odd])})"
    raise _refused(path, what, "only numbers, str and bytes can be tensors; pad ragged rows or yield them apart")


def weight(array: Array) -> int:
    """Bytes of a leaf; of text those of its strings, about, and not of the references to them."""
    return array.nbytes + sum(map(len, array.flat)) if is_text(array) else array.nbytes


def text(values: list[Any], shape: tuple[int, ...]) -> Array:
    """Strings or bytes as an array of objects."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def plain(value: str | bytes) -> str | bytes:
    """Text of a subclass as itself: str() of a member of an enumeration would be its name."""
    return str.__str__(value) if isinstance(value, str) else bytes(value)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _refused(path: str, what: str, remedy: str) -> SignatureError:
    return SignatureError(f"leaf {path} {what}, which cannot be a tensor: {remedy}")


def leaves_of(values: list[Any], treespec: Treespec) -> tuple[list[Array], tuple[bool, ...]]:
    """Every leaf as an array, and which were Python numbers; SignatureError names the leaf that cannot be."""
    arrays, weak = [], []
    for i, value in enumerate(values):
        if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
            arrays.append(value)
            weak.append(False)
            continue
        try:
            array, is_weak = as_leaf(value, "")
        except SignatureError:
            array, is_weak = as_leaf(value, paths(treespec)[i])  # paths are made only for an error
        arrays.append(array)
        weak.append(is_weak)
    return arrays, tuple(weak)


def castable(array: Array, dtype: np.dtype[Any], weak: bool) -> bool:
    """Whether an array takes a dtype without loss: a safe cast, or Python numbers that fit it."""
    if is_text(array) is not (dtype == np.dtype(object)):
        return False
    if np.can_cast(array.dtype, dtype, "safe"):
        return True
    return weak and fits(array, dtype)


def fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether Python numbers keep their value in a dtype (a float its range, not its last digits)."""
    if array.dtype.kind in "mM" or dtype.kind in "mMO" or (array.dtype.kind == "c") != (dtype.kind == "c"):
        return False
    integral = dtype.kind in "iub" or "int" in dtype.name
    if array.dtype.kind == "f" and integral:
        return False
    with np.errstate(all="ignore"):
        there = array.astype(dtype)
        back = there.astype(array.dtype)
    if array.dtype.kind in "iu" and not np.array_equal(there < 0, array < 0):
        return False  # int64 and uint64 wrap into each other and back
    if integral or array.dtype.kind in "iu":
        return dtype != np.dtype(bool) and bool(np.array_equal(back, array))
    return bool(np.array_equal(np.isfinite(back), np.isfinite(array)))
