"""Elements into bytes and back: whatever structure, dtype and memory layout, the same bits."""

from __future__ import annotations

import os
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from streams import digest, leaves

import mpfeed
from mpfeed._errors import SignatureError
from mpfeed._layout import ALIGNMENT, Allocator, pack, unpack
from mpfeed._leaves import as_leaf, leaves_of
from mpfeed._packing import Packing
from mpfeed._stack import Stack
from mpfeed._structure import flatten
from mpfeed.transport.arena import Heap, Reader, Writer, create_file

Point = namedtuple("Point", "x y")

NATIVE = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "m8[ms]"]
FOREIGN = [">i2", ">i4", ">u8", ">f4", ">f8", ">c8"]
EXTENDED = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def extended(draw: Any) -> Any:
    """An array of a dtype that NumPy itself does not have."""
    values = draw(hnp.arrays(np.int8, shapes, elements=st.integers(0, 7)))
    return values.astype(getattr(ml_dtypes, draw(st.sampled_from(EXTENDED))))


@st.composite
def strided(draw: Any, arrays: Any) -> Any:
    """The array, or one that is not contiguous, aligned or writable."""
    array = draw(arrays)
    match draw(
        st.sampled_from(["as is", "transposed", "reversed", "every other", "fortran", "read-only", "broadcast"])
    ):
        case "transposed":
            array = array.T
        case "reversed":
            array = array[::-1] if array.ndim else array
        case "every other":
            array = array[..., ::2] if array.ndim else array
        case "fortran":
            array = np.asfortranarray(array)
        case "read-only":
            array = array.copy()
            array.flags.writeable = False
        case "broadcast":
            array = np.broadcast_to(array, (2, *array.shape))
    return array


text = st.text(max_size=6)
texts = st.one_of(
    text,
    st.binary(max_size=6),
    st.lists(text, max_size=4).map(lambda words: np.array(words, object)),
    st.lists(st.binary(max_size=4), max_size=4).map(lambda words: np.array(words, object)),
    hnp.arrays("U5", shapes),
    hnp.arrays("S5", shapes),
)
python_numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats(), st.booleans(), st.complex_numbers())
arrays = strided(
    st.one_of(hnp.arrays(st.sampled_from([np.dtype(name) for name in NATIVE + FOREIGN]), shapes), extended())
)
numpy_scalars = st.sampled_from(["i1", "u8", "f2", "f8", "?", "c8"]).flatmap(
    lambda name: hnp.arrays(name, ()).map(lambda array: array[()])
)
leaf = st.one_of(arrays, texts, python_numbers, numpy_scalars)
elements = st.recursive(
    leaf,
    lambda parts: st.one_of(
        st.dictionaries(st.text(max_size=3), parts, min_size=1, max_size=3),
        st.lists(parts, min_size=1, max_size=3),
        st.lists(parts, min_size=1, max_size=3).map(tuple),
        st.tuples(parts, parts).map(lambda pair: Point(*pair)),
    ),
    max_leaves=6,
)


def expected(value: Any) -> Any:
    """A leaf as it should arrive."""
    if isinstance(value, (str, bytes)):
        array = np.empty((), object)
        array[()] = value
        return array
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        return array.astype(object)
    return array.astype(array.dtype.newbyteorder("=")) if not array.dtype.isnative else array


def arrived(tree: Any) -> Any:
    """A structure with each leaf as it should arrive."""
    if isinstance(tree, dict):
        return {key: arrived(part) for key, part in tree.items()}
    if isinstance(tree, Point):
        return Point(*map(arrived, tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(arrived, tree))
    return expected(tree)


def there_and_back(element: Any, allocator: Allocator, resolve: Any) -> Any:
    values, treespec = flatten(element)
    arrays, weak = leaves_of(values, treespec)
    payload = pack(arrays, weak, treespec, allocator)
    return treespec.unflatten(unpack(payload, [resolve(name) for name in payload.regions]))


@contextmanager
def shared() -> Iterator[tuple[Writer, Reader]]:
    fd, length = create_file()
    try:
        yield Writer(fd, length), Reader(fd, length)
    finally:
        os.close(fd)


@settings(max_examples=300, deadline=None)
@given(element=elements)
def test_any_element_goes_there_and_back(element: Any) -> None:
    for adopts in (False, True):
        got = there_and_back(element, Heap(adopts=adopts), lambda region: region)
        assert digest([got]) == digest([arrived(element)])


@settings(max_examples=100, deadline=None)
@given(element=elements)
def test_any_element_goes_through_shared_memory_read_only_and_aligned(element: Any) -> None:
    with shared() as (writer, reader):
        got = there_and_back(element, writer, reader.lend)
        assert digest([got]) == digest([arrived(element)])
        for _, array in leaves(got):
            assert not array.flags.writeable
            if array.dtype != object and array.nbytes:
                assert array.__array_interface__["data"][0] % ALIGNMENT == 0
                assert array.flags.c_contiguous


@settings(max_examples=100, deadline=None)
@given(element=elements, rows=st.integers(1, 5), spare=st.integers(0, 3))
def test_any_samples_stack_row_by_row(element: Any, rows: int, spare: int) -> None:
    values, treespec = flatten(element)
    arrays, weak = leaves_of(values, treespec)
    stack = Stack(Heap(adopts=False), rows + spare)
    for _ in range(rows):
        assert stack.accepts(arrays, weak, treespec)
        stack.add(arrays, weak, treespec)
    assert stack.full == (not spare)
    payload = stack.finish()
    columns = unpack(payload, payload.regions)
    assert [column.shape[0] for column in columns] == [rows] * len(arrays)
    for row in range(rows):
        cells = [c[row] if c.ndim > 1 else c[row : row + 1].reshape(()) for c in columns]
        assert digest([treespec.unflatten(cells)]) == digest([arrived(element)])
    assert digest([treespec.unflatten(list(map(expected, flatten(s)[0]))) for s in stack.samples()]) == digest(
        [arrived(element)] * rows
    )


def test_an_ordered_dict_is_a_dict_whatever_the_order_of_its_keys() -> None:
    one = flatten(OrderedDict(b=1, a=[OrderedDict(d=2, c=3)]))
    assert one == flatten({"a": [{"c": 3, "d": 2}], "b": 1})


ALIKE = [
    {"x": np.arange(6.0).reshape(2, 3), "n": np.int64(7)},
    {"x": np.arange(6.0, 12.0).reshape(2, 3), "n": np.int64(8)},
    {"n": np.int64(9), "x": np.asfortranarray(np.ones((2, 3)))},
    {"x": np.ones((3, 2)), "n": np.int64(9)},
    {"x": np.ones((3, 2), "f4"), "n": np.int64(9)},
    {"x": np.ones((3, 2), ">f4"), "n": np.int64(9)},
    {"x": np.ones((3, 2), "f4"), "n": np.array(9)},
    {"x": np.ones((3, 2), "f4"), "n": 9},
    {"x": np.ones((3, 2), "f4"), "n": 300},
    {"x": np.ones((0, 2), "f4"), "n": np.int8(3)},
    {"x": np.ones((0, 2), "f4"), "n": np.int8(4)},
    {"x": "text", "n": np.int8(4)},
    {"x": "words", "n": np.int8(4)},
    {"x": np.array(["text"]), "n": np.int8(4)},
    {"x": np.ones(3, ml_dtypes.bfloat16), "n": np.bool_(True)},
    {"x": np.zeros(3, ml_dtypes.bfloat16), "n": np.bool_(False)},
    {"x": b"words", "n": 1.5},
    {"x": b"text", "n": -2.5},
    {"x": True, "n": 2**63},
    {"x": False, "n": 2**64 - 1},
    {"x": False, "n": -1},
    {"x": 1j, "n": 2**63 - 1},
    {"x": 2j, "n": -(2**63)},
    (),
    ((), np.ones(3)),
    (np.zeros(3, "M8[s]"),),
    (np.ones(3, "M8[s]"),),
    (np.ones(3, "M8[ms]"),),
    (np.ones(3),),
    [np.ones(3)],
    Point(np.ones(3), np.ones(2)),
    Point(np.zeros(3), np.ones(2)),
    np.ones(3),
    np.zeros(3),
    {"n": np.ones(3), "m": np.ones(2)},
    OrderedDict(n=np.zeros(3), m=np.ones(2)),
]


@pytest.mark.parametrize("flat", [False, True], ids=["element", "leaves"])
def test_an_element_after_another_is_packed_as_it_would_be_alone(flat: bool) -> None:
    heap = Heap(adopts=False)
    for before in ALIKE:
        for element in ALIKE:
            packing = Packing(heap)
            for made in (before, element, before, element):
                payload = packing.pack_leaves(*flatten(made)) if flat else packing.pack(made)
            values, treespec = flatten(element)
            alone = pack(*leaves_of(values, treespec), treespec, heap)
            assert payload.layout.key() == alone.layout.key()
            assert payload.texts == alone.texts
            assert len(payload.regions) == len(alone.regions)
            assert digest([unpack(payload, payload.regions)]) == digest([unpack(alone, alone.regions)])


class Full(Heap):
    """Memory that is full now and then."""

    full = False

    def allocate(self, nbytes: int) -> Any:
        if self.full:
            raise MemoryError
        return super().allocate(nbytes)


def test_an_element_that_could_not_be_packed_leaves_nothing_for_the_next() -> None:
    memory = Full(adopts=False)
    packing = Packing(memory)
    packing.pack({"a": np.ones(3), "b": np.ones(2)})
    with pytest.raises(SignatureError):
        packing.pack({"b": np.ones(3), "c": None})
    memory.full = True
    with pytest.raises(MemoryError):
        packing.pack({"c": np.ones(3), "d": np.ones(2)})
    memory.full = False
    for keys in ("bc", "cd"):
        payload = packing.pack({keys[0]: np.zeros(3), keys[1]: np.ones(2)})
        assert payload.layout.treespec.entries() == list(keys)


def test_an_array_that_lies_in_shared_memory_is_not_copied_after_one_that_did_not() -> None:
    fd, length = create_file()
    writer = Writer(fd, length)
    packing = Packing(writer)
    packing.pack((np.ones(5), np.ones(2)))
    own = writer.empty(5, float)
    own[:] = 3
    payload = packing.pack((own, np.zeros(2)))
    reader = Reader(fd, length)
    os.close(fd)
    assert not own.flags.writeable
    assert len(payload.regions) == 2
    arrays = unpack(payload, [reader.lend(name) for name in payload.regions])
    assert [array.tolist() for array in arrays] == [[3.0] * 5, [0.0, 0.0]]


def test_none_is_a_leaf_and_refused_as_one() -> None:
    with pytest.raises(mpfeed.SignatureError, match=r"leaf \['a'\]\[1\] is None"):
        leaves_of(*flatten({"a": (1, None)}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.ma.masked_array([1, 2], [True, False]), "masked array"),
        (np.zeros(2, "i4,f8"), "structured array"),
        (np.array([1, None], object), r"objects of int \(entry 0: 1\)"),
        (np.array(["a", b"b"], object), "mixes str and bytes"),
        ([[1, 2], [3]], "cannot become an array"),
        (1 << 64, "more than 64 bits"),
        (object(), "objects of object"),
        (np.zeros(2, "V4"), "structured array"),
    ],
)
def test_what_cannot_be_a_tensor_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(mpfeed.SignatureError, match=words):
        as_leaf(value, "['x']")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": np.zeros(3, np.int16)}, r"shape \(3,\) where the first has \(2,\)"),
        ({"a": np.zeros(2, np.int32)}, "is int32 where the first is int16"),
        ({"a": np.array(["x", "y"])}, "is object where the first is int16"),
        ({"b": np.zeros(2, np.int16)}, "structure"),
    ],
)
def test_a_sample_unlike_the_first_is_refused_and_the_stack_stays_as_it_was(second: Any, words: str) -> None:
    stack = Stack(Heap(adopts=False), 3)
    for element in ({"a": np.ones(2, np.int16)}, {"a": np.ones(2, np.int8)}):
        values, treespec = flatten(element)
        stack.add(*leaves_of(values, treespec), treespec)
    values, treespec = flatten(second)
    with pytest.raises(mpfeed.SignatureError, match=words):
        stack.add(*leaves_of(values, treespec), treespec)
    assert stack.count == 2
    assert [sample["a"].tolist() for sample in stack.samples()] == [[1, 1], [1, 1]]
    assert {sample["a"].dtype.name for sample in stack.samples()} == {"int16"}


def test_an_element_over_the_first_region_of_adopted_arrays_is_found_again() -> None:
    with shared() as (writer, reader):
        mine = writer.empty((64, 64), np.float32)
        mine[...] = 3
        element = {"a": np.arange(4), "b": mine, "c": "text", "d": np.arange(3.0)}
        got = there_and_back(element, writer, reader.lend)
        assert not mine.flags.writeable
        assert (got["b"] == 3).all()
        assert [got["a"].tolist(), got["c"].item(), got["d"].tolist()] == [[0, 1, 2, 3], "text", [0, 1, 2]]
        assert reader.lent == 2


A = np.arange(3, dtype=np.float32)
PLAIN: dict[str, tuple[Any, list[Any]]] = {
    "array": (A, [A + 1, A.astype(np.float64), A[:2], A.tolist(), (A,), np.float32(1), A.astype(">f4"), A[::-1], None]),
    "number": (5, [7, -1, 2**70, True, 1.5, np.int64(3), np.int32(3), "text"]),
    "unsigned": (2**63, [2**63 + 1, 3, -1]),
    "scalar": (np.int64(5), [np.int64(6), 7, np.array(8), np.array([8]), np.int32(9), np.datetime64(5, "s")]),
    "tuple": ((A, 1), [(A + 1, 2), (A, 1.5), [A, 1], (A, 1, 2), (A,), {"a": A, "b": 1}, Point(A, 1)]),
    "list": ([A, 1], [[A + 1, 2], (A, 1), [A, [1]]]),
    "dict": (
        {"a": A, "b": 1},
        [{"b": 2, "a": A + 1}, {"a": A}, {"a": A, "c": 1}, {"a": A, "b": None},
         {"a": A, "b": 1, "c": 1}, OrderedDict(b=2, a=A), {"a": A, "b": []}],
    ),
    "nested": (
        {"a": (A, {"b": 1})},
        [{"a": (A + 1, {"b": 2})}, {"a": (A, {"c": 2})}, {"a": (A, 1)}, {"a": [A, {"b": 2}]}],
    ),
    "text": (("name", A), [("another", A + 1), (b"bytes", A), (3, A)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_a_sample_taken_at_a_glance_is_what_a_close_look_would_have_made_of_it(name: str) -> None:
    first, others = PLAIN[name]

    def stacked(samples: list[Any], glance: bool) -> list[Any] | str:
        stack = Stack(Heap(adopts=False), 3)
        try:
            for sample in samples:
                if not (glance and stack.take(sample)):
                    values, treespec = flatten(sample)
                    stack.add(*leaves_of(values, treespec), treespec)
        except mpfeed.SignatureError as error:
            return str(error)
        return stack.samples()

    glances = 0
    for other in others:
        samples = [first, first, other]
        closely, at_a_glance = stacked(samples, False), stacked(samples, True)
        if isinstance(closely, str):
            assert at_a_glance == closely
        else:
            assert digest(at_a_glance) == digest(closely)
        probe = Stack(Heap(adopts=False), 2)
        values, treespec = flatten(first)
        probe.add(*leaves_of(values, treespec), treespec)
        glances += probe.take(other)
    assert bool(glances) == (name != "text")


@pytest.mark.parametrize(("first", "second"), [(1, 2**63), (2**63, -1)])
def test_an_integer_never_wraps_into_another_sign(first: int, second: int) -> None:
    feed = mpfeed.from_map(lambda i: (first, second)[i], range(2), backend="inprocess", batch_size=2)
    with feed, pytest.raises(mpfeed.SignatureError, match="int64"):
        list(feed)
