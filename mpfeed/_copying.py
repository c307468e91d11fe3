"""Items as a function gets them in the calling process: its own to change, as in a worker, where they were pickled."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np

_SEQUENCES = (list, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
_LEAVES = (np.void, set, bytearray)


def own_item(item: Any) -> Any:
    """The same with containers and writable arrays of its own.

    Other objects are shared: they may be large, and pickling them may be what in-process feeds are chosen to avoid.
    """
    return _own(item, {})


def _own(item: Any, made: dict[int, Any]) -> Any:
    """``made`` has what was copied by the id of its original, since an item may hold one thing twice, or itself."""
    if id(item) in made:
        return made[id(item)]
    kind = type(item)
    own: Any
    if isinstance(item, np.ndarray):
        own = item.copy() if item.flags.writeable else item
    elif kind in _SEQUENCES:
        own = made[id(item)] = copy.copy(item)
        for i, part in enumerate(item):
            own[i] = _own(part, made)
    elif kind in _MAPPINGS:
        own = made[id(item)] = copy.copy(item)
        for key, value in item.items():
            own[key] = _own(value, made)
    elif kind is tuple:
        own = tuple(_own(part, made) for part in item)
    elif isinstance(item, tuple) and hasattr(item, "_fields"):
        own = kind(*(_own(part, made) for part in item))
    elif kind in _LEAVES:
        own = copy.copy(item)
    else:
        return item
    made[id(item)] = own
    return own
