"""What a consumer holds of Ray's object store, in place."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any

import numpy as np

from mpfeed._layout import Bytes
from mpfeed._messages import Parcel

# Part of this node's object store that a consumer may hold in place; beyond it gets copies, so that views of old
# batches never stop the store from taking new ones.
LENT_SHARE = 0.3
_SMALL_STORE_BYTES = 128 << 20


class _Loan(weakref.ref[Any]):
    __slots__ = ("nbytes",)
    nbytes: int


class Loans:
    """Messages that are read in place.

    Args:
        store_bytes: of this node's object store; 0 where that is not known.
    """

    def __init__(self, store_bytes: int) -> None:
        self._store_bytes = store_bytes
        self._loans: dict[int, _Loan] = {}
        self._lent_bytes = 0

    def lend(self, region: Any) -> Bytes:
        """The bytes of a message in place, counted until they die."""
        # NumPy makes the last array of a chain of views the base of further ones: its death says that all are gone.
        owner = region
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        loan = _Loan(owner, self._returned)
        loan.nbytes = region.nbytes
        self._loans[id(loan)] = loan
        self._lent_bytes += loan.nbytes
        memory: Bytes = region
        return memory

    def _returned(self, loan: Any) -> None:
        if self._loans.pop(id(loan), None) is not None:
            self._lent_bytes -= loan.nbytes

    def crowded(self, parcel: Parcel) -> bool:
        """Whether so much is held that a message had better be copied out."""
        return self._lent_bytes > LENT_SHARE * self._store_bytes > 0


def warn_of_small_store(store_bytes: int) -> None:
    """Say so where Ray's object store, through which batches travel, cannot lie in memory.

    Args:
        store_bytes: of this node's object store; 0 where that is not known.
    """
    try:
        stats = os.statvfs("/dev/shm")
    except OSError:
        return
    total = stats.f_frsize * stats.f_blocks
    if total < min(_SMALL_STORE_BYTES, store_bytes or _SMALL_STORE_BYTES):
        warnings.warn(
            f"/dev/shm holds only {total:,} bytes, so Ray keeps its object store on disk, and what does not lie in "
            "shared memory (batches of other nodes, long text) travels slowly: enlarge it (docker run --shm-size=4g)",
            RuntimeWarning,
            stacklevel=2,
        )
