"""Shared memory of a worker: no two live slots overlap, what is lent does not change, everything comes back."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mpfeed._errors import ArenaFull
from mpfeed.transport import arena as arena_module
from mpfeed.transport.arena import TABLE_BYTES, Reader, Slot, Writer, create_file

PAGE = 4096
LIMIT = 24 * PAGE
LENGTH = 1 << 26


class NoRoom(Exception):
    """Nothing that is lent can come back."""


@dataclass(eq=False)
class Live:
    """A slot in use, by its place in the writer's memory."""

    address: int
    nbytes: int
    contents: bytes
    made: Any = None  # the source's array, of `empty`
    slot: Slot | None = None  # on its way, or lent
    lent: Any = None  # the consumer's array
    done: bool = False  # the consumer had it

    @property
    def on_its_way(self) -> bool:
        return self.slot is not None and self.lent is None and not self.done

    @property
    def pages(self) -> range:
        return range(self.address // PAGE, (self.address + self.nbytes - 1) // PAGE + 1)


def filled(memory: Any, seed: int) -> bytes:
    """Write a pattern; its bytes."""
    flat = memory.reshape(-1).view(np.uint8)
    flat[:] = (np.arange(flat.size) * 7 + seed) % 251
    return bytes(flat)


def address_of(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


class Arena(RuleBasedStateMachine):
    """A writer and a reader over one memfd, against a list of what is live."""

    @initialize(limited=st.booleans())
    def start(self, limited: bool) -> None:
        self.fd, _ = create_file()
        self.limit = LIMIT if limited else None
        # A part of the file is enough here, and hundreds of arenas of a tebyte would not fit an address space.
        self.writer = Writer(self.fd, LENGTH, self.limit, self.make_room)
        self.reader = Reader(self.fd, LENGTH)
        self.live: list[Live] = []
        self.seed = 0

    def make_room(self) -> None:
        """The limit is reached: the consumer drops the oldest array that it alone holds."""
        for live in self.live:
            if live.lent is not None and live.made is None:
                self.forget(live)
                return
        raise NoRoom

    def forget(self, live: Live) -> None:
        live.lent = live.made = None  # whoever still knows of `live` holds no array
        self.live.remove(live)

    def drawn(self, data: Any, choices: list[Live]) -> Live:
        """One of them; Hypothesis remembers what it draws, so that is a number."""
        number: int = data.draw(st.integers(0, len(choices) - 1))
        return choices[number]

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed

    @rule(nbytes=st.integers(1, 9 * PAGE))
    def allocate(self, nbytes: int) -> None:
        try:
            slot, memory = self.writer.allocate(nbytes)
        except (NoRoom, ArenaFull):
            assert self.limit is not None
            return
        assert memory.nbytes == nbytes
        assert address_of(memory) % 64 == 0
        self.live.append(Live(address_of(memory), nbytes, filled(memory, self.next_seed()), slot=slot))

    @rule(rows=st.integers(1, 40), dtype=st.sampled_from(["u1", "f4", "c16"]))
    def empty(self, rows: int, dtype: str) -> None:
        try:
            array = self.writer.empty((rows, 64), dtype)
        except (NoRoom, ArenaFull):
            assert self.limit is not None
            return
        assert (array.shape, array.dtype, array.flags.writeable) == ((rows, 64), np.dtype(dtype), True)
        contents = filled(array, self.next_seed())
        self.live.append(Live(address_of(array), array.nbytes, contents, made=array))

    @precondition(lambda self: any(live.made is not None and live.slot is None for live in self.live))
    @rule(data=st.data(), view=st.booleans())
    def adopt(self, data: Any, view: bool) -> None:
        live = self.drawn(data, [x for x in self.live if x.made is not None and x.slot is None])
        if view:
            other = live.made[:1]
            assert self.writer.adopt(live.made, goes_on=False) is None, "another view could still be written to"
            assert self.writer.adopt(other, goes_on=False) is None, "a view is not the whole"
            del other
        live.slot = self.writer.adopt(live.made, goes_on=False)
        assert live.slot is not None
        assert not live.made.flags.writeable
        assert self.writer.adopt(live.made, goes_on=False) is None, "adopted twice"

    @precondition(lambda self: any(live.on_its_way for live in self.live))
    @rule(data=st.data())
    def lend(self, data: Any) -> None:
        live = self.drawn(data, [x for x in self.live if x.on_its_way])
        assert live.slot is not None
        live.lent = self.reader.lend(pickle.loads(pickle.dumps(live.slot)))
        assert not live.lent.flags.writeable

    @precondition(lambda self: any(live.lent is not None for live in self.live))
    @rule(data=st.data())
    def keep_a_view_only(self, data: Any) -> None:
        live = self.drawn(data, [x for x in self.live if x.lent is not None])
        live.lent = live.lent[:].view()

    @precondition(lambda self: any(live.lent is not None for live in self.live))
    @rule(data=st.data())
    def drop(self, data: Any) -> None:
        live = self.drawn(data, [x for x in self.live if x.lent is not None])
        live.lent = None
        if live.made is None:
            self.forget(live)
        else:
            live.done = True  # the source still holds the array, so the slot stays its own

    @precondition(lambda self: any(live.made is not None for live in self.live))
    @rule(data=st.data())
    def forget_made(self, data: Any) -> None:
        live = self.drawn(data, [x for x in self.live if x.made is not None])
        live.made = None
        if live.slot is None or live.done:
            self.forget(live)

    @invariant()
    def no_two_live_slots_overlap(self) -> None:
        pages = [page for live in getattr(self, "live", ()) for page in live.pages]
        assert len(pages) == len(set(pages))

    @invariant()
    def what_is_held_keeps_its_contents(self) -> None:
        for live in getattr(self, "live", ()):
            for array in (live.made, live.lent):
                if array is not None:
                    assert bytes(array.reshape(-1).view(np.uint8)) == live.contents

    @invariant()
    def the_reader_counts_what_is_lent(self) -> None:
        lent = [live for live in getattr(self, "live", ()) if live.lent is not None]
        if hasattr(self, "reader"):
            assert self.reader.lent == len(lent)
            assert self.reader.lent_bytes == sum(live.nbytes for live in lent)

    @invariant()
    def the_limit_holds(self) -> None:
        if getattr(self, "limit", None) is not None:
            assert sum(len(live.pages) for live in self.live) * PAGE <= LIMIT

    def teardown(self) -> None:
        if not hasattr(self, "live"):
            return
        for live in list(self.live):
            if live.on_its_way:
                assert live.slot is not None
                live.lent = self.reader.lend(live.slot)  # what is on its way arrives
            self.forget(live)
        assert (self.reader.lent, self.reader.lent_bytes) == (0, 0)
        # All is reusable: one slot as large as the limit, at the very start.
        slot, _ = self.writer.allocate(LIMIT)
        assert slot[1] == TABLE_BYTES
        os.close(self.fd)


Arena.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestArena = Arena.TestCase


@contextmanager
def arena(limit: int | None = None, wait: Any = None) -> Iterator[tuple[Writer, Reader]]:
    fd, length = create_file()
    try:
        yield Writer(fd, length, limit, wait), Reader(fd, length)
    finally:
        os.close(fd)


def test_an_array_over_the_limit_is_refused_with_the_numbers() -> None:
    with arena(4 * PAGE) as (writer, _):
        with pytest.raises(ArenaFull, match=r"20,480 bytes .* 16,384 bytes"):
            writer.allocate(5 * PAGE)
        writer.allocate(4 * PAGE)


def test_a_slot_returns_with_the_last_view_and_not_before() -> None:
    with arena() as (writer, reader):
        slot, memory = writer.allocate(PAGE)
        del memory
        whole = reader.lend(slot)
        view = whole[8:16].view(np.float64)
        del whole
        assert reader.lent == 1
        other, memory = writer.allocate(PAGE)
        assert other[1] != slot[1]
        del view
        assert reader.lent == 0
        again, memory = writer.allocate(PAGE)
        assert again[1] == slot[1]
        del memory


def test_room_is_waited_for_until_a_slot_comes_back() -> None:
    held: list[Any] = []
    with arena(2 * PAGE, lambda: held.pop(0)) as (writer, reader):
        for _ in range(6):
            slot, memory = writer.allocate(PAGE)
            del memory
            held.append(reader.lend(slot))
        assert len(held) == 2


def test_where_every_slot_is_kept_the_next_is_refused_and_no_memory_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = PAGE
    monkeypatch.setattr(arena_module, "TABLE_BYTES", slots)
    none_will_come = [True]
    with arena(None, none_will_come.pop) as (writer, _):
        kept = [writer.empty(1, "u1") for _ in range(slots)]
        with pytest.raises(ArenaFull, match="all 4,096 slots of shared memory are in use") as caught:
            writer.empty(PAGE, "u1")
        assert "memory_limit" not in str(caught.value)
        place = address_of(kept.pop())
        array = writer.empty(2 * PAGE, "u1")
        assert address_of(array) == place, "the last extent was the kept array's"


def test_a_slot_is_awaited_where_all_are_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = PAGE
    monkeypatch.setattr(arena_module, "TABLE_BYTES", slots)
    held: list[Any] = []

    def drop_the_first() -> None:
        del held[0]

    with arena(None, drop_the_first) as (writer, reader):
        for _ in range(slots + 2):
            slot, memory = writer.allocate(1)
            del memory
            held.append(reader.lend(slot))
        assert len(held) == slots


def test_a_file_has_no_name_and_ends_with_its_last_descriptor() -> None:
    fd, length = create_file()
    name = os.readlink(f"/proc/self/fd/{fd}")
    assert "(deleted)" in name
    assert not os.path.exists(name.removesuffix(" (deleted)"))
    assert length >= 1 << 30
    assert os.fstat(fd).st_blocks == 0, "address space, not memory"
    os.close(fd)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="elsewhere files cannot be sealed")
@pytest.mark.parametrize("change", [-PAGE, PAGE])
def test_the_length_of_a_file_is_sealed(change: int) -> None:
    fd, length = create_file()
    with pytest.raises(PermissionError):
        os.ftruncate(fd, length + change)
    os.close(fd)


def test_memory_goes_back_to_the_system_after_a_peak() -> None:
    fd, length = create_file()
    try:
        writer, reader = Writer(fd, length), Reader(fd, length)
        held = []
        for _ in range(60):
            slot, memory = writer.allocate(4 << 20)
            memory[:] = 1
            held.append(reader.lend(slot))
        del memory
        held.clear()
        peak = os.fstat(fd).st_blocks * 512
        assert peak >= 240 << 20
        for _ in range(2000):
            slot, memory = writer.allocate(PAGE)
            del memory
            reader.lend(slot)
        assert os.fstat(fd).st_blocks * 512 <= 100 << 20
    finally:
        os.close(fd)
