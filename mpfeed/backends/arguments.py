"""Arguments of calls on their way to a worker process or actor: the arena turned round.

The driver writes them to shared memory that the worker maps, one copy in all; ``fn`` gets arrays over it. It comes
back when the worker's last array over it dies, so that ``fn`` may keep what it was given. Small ones travel in the
message itself.
"""

from __future__ import annotations

from typing import Any

from mpfeed._errors import ArenaFull
from mpfeed._layout import Bytes, Layout, Payload, heap, unpack
from mpfeed._leaves import Array
from mpfeed._messages import Arguments, Calls
from mpfeed._packing import Packing
from mpfeed._serialize import structure_bytes, structure_of
from mpfeed.backends.layouts import SeenLayouts, SentLayouts
from mpfeed.transport.arena import Reader, Slot, Writer

# Below this a slot costs more than the three copies of a pickle: about 30 us on both sides.
_INLINE_BYTES = 16 << 10


class Packed:
    """The arguments of one call as they travel."""

    __slots__ = ("layout", "regions", "texts")

    def __init__(self, layout: tuple[bytes, Any] | int, regions: list[Any], texts: list[list[Any]]) -> None:
        self.layout = layout
        self.regions = regions
        self.texts = texts


class PackedCalls:
    """``Calls`` as they travel."""

    __slots__ = ("arguments", "number", "run", "traced")

    def __init__(self, number: int, run: int, arguments: list[Packed], traced: bool) -> None:
        self.number = number
        self.run = run
        self.arguments = arguments
        self.traced = traced

    def __reduce__(self) -> tuple[Any, ...]:
        # The arguments as their values: see `Reply`.
        packed = [(one.layout, one.regions, one.texts) for one in self.arguments]
        return _received, (self.number, self.run, packed, self.traced)


def _received(number: int, run: int, packed: list[Any], traced: bool) -> PackedCalls:
    """Calls that were pickled."""
    return PackedCalls(number, run, [Packed(*one) for one in packed], traced)


class Packer:
    """The driver's side, one for each worker (an ``Allocator``).

    Args:
        fd: of the shared memory's file; it stays the caller's.
        length: of the file.
    """

    def __init__(self, fd: int, length: int) -> None:
        self._writer = Writer(fd, length)
        self._layouts = SentLayouts()
        self._packing = Packing(self)
        self.waited_s = 0.0

    def pack(self, calls: Calls) -> PackedCalls:
        """The calls as they travel; their arguments are copied."""
        packed = [self._packed(arguments) for arguments in calls.arguments]
        return PackedCalls(calls.number, calls.run, packed, calls.traced)

    def _packed(self, arguments: Arguments) -> Packed:
        payload = self._packing.pack_leaves(arguments.values, arguments.treespec)
        sent: Any = self._layouts.refer(payload.layout)
        if isinstance(sent, Layout):
            sent = structure_bytes(sent.treespec), sent.leaves
        return Packed(sent, payload.regions, payload.texts)

    def allocate(self, nbytes: int) -> tuple[Slot | Bytes, Bytes]:
        """A slot, or memory that is pickled with the message."""
        if nbytes > _INLINE_BYTES:
            try:
                return self._writer.allocate(nbytes)
            except ArenaFull:
                pass  # the worker's code keeps as many arrays as there are slots
        memory = heap(nbytes)
        return memory, memory

    def adopt(self, array: Array, *, goes_on: bool) -> None:
        """Nothing lies here already."""

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Not for the driver."""
        raise NotImplementedError


class Unpacker:
    """The worker's side."""

    def __init__(self, fd: int, length: int) -> None:
        self._reader = Reader(fd, length)
        self._layouts = SeenLayouts()

    def unpack(self, calls: PackedCalls) -> Calls:
        """The calls with arguments as ``tf.numpy_function`` hands them over: writable arrays, 0-d ones as scalars."""
        arguments = tuple(self._unpacked(packed) for packed in calls.arguments)
        return Calls(calls.number, calls.run, arguments, calls.traced)

    def _unpacked(self, packed: Packed) -> Arguments:
        sent = packed.layout
        layout = self._layouts.resolve(sent if isinstance(sent, int) else Layout(structure_of(sent[0]), sent[1]))
        regions = [self._reader.lend(r, writable=True) if isinstance(r, tuple) else r for r in packed.regions]
        values: list[Any] = []
        for array in unpack(Payload(layout, packed.regions, packed.texts, 1, False), regions):
            array.flags.writeable = True
            values.append(array if array.ndim else array[()])
        return Arguments(values, layout.treespec)
