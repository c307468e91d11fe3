"""A permutation computed on the fly: memory does not grow with the number of items.

A keyed Feistel network over the smallest even number of bits that holds n, with cycle walking for the values
outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). The round function is the
finaliser of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpfeed import _seed

_ROUNDS = 12
_BLOCK = 4096
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Permutation:
    """A permutation of ``range(n)`` that depends on (seed, epoch) alone."""

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self._n = n
        half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = _seed.sequence(seed, _seed.ORDER, epoch).generate_state(_ROUNDS, np.uint64)
        self._block = -1
        self._values: NDArray[np.uint64] = np.empty(0, np.uint64)

    def __getitem__(self, position: int) -> int:
        """Where ``position`` goes. Neighbours are computed together."""
        block = position // _BLOCK
        if block != self._block:
            start = block * _BLOCK
            self._values = self._walk(np.arange(start, min(start + _BLOCK, self._n), dtype=np.uint64))
            self._block = block
        return int(self._values[position - block * _BLOCK])

    def _walk(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        values = self._feistel(values)
        while (outside := values >= self._n).any():
            values[outside] = self._feistel(values[outside])
        return values

    def _feistel(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (self._mixed(right ^ key) & self._mask)
        return (left << self._half) | right

    @staticmethod
    def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> np.uint64(30))) * _MIX[0]
        z = (z ^ (z >> np.uint64(27))) * _MIX[1]
        return z ^ (z >> np.uint64(31))
