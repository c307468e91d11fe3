"""mpfeed keeps an accelerator fed when the preprocessing is plain Python.

Generators and functions that hold the GIL run in worker processes, or in Ray actors on one machine or a cluster;
their batches reach TensorFlow as a ``tf.data.Dataset`` without being copied in the training process.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from mpfeed import tfrecord
    from mpfeed._collate import collate_padded
    from mpfeed._context import Worker, empty, worker
    from mpfeed._errors import FeedClosed, FeedTimeout, MpfeedError, SignatureError, WorkerDied, WorkerError
    from mpfeed._factories import from_generator, from_map
    from mpfeed._feed import Feed
    from mpfeed._function import NumpyFunction, numpy_function
    from mpfeed._iterator import FeedIterator
    from mpfeed._monitor import Monitor, monitor
    from mpfeed._sizing import Resizing
    from mpfeed._source import Shard
    from mpfeed._span import span
    from mpfeed._stats import FeedStats, SlowestSample, WorkerStats
    from mpfeed._trace import Trace
    from mpfeed._verdict import Verdict
    from mpfeed.backends.in_process import InProcess
    from mpfeed.backends.processes import Process
    from mpfeed.backends.ray_actors import Ray

__version__ = "0.1.0"

# Each name is imported on first use: a worker imports this package too, and needs few of them.
_HOMES = {
    "Feed": "_feed",
    "FeedClosed": "_errors",
    "FeedIterator": "_iterator",
    "FeedStats": "_stats",
    "FeedTimeout": "_errors",
    "InProcess": "backends.in_process",
    "Monitor": "_monitor",
    "MpfeedError": "_errors",
    "NumpyFunction": "_function",
    "Process": "backends.processes",
    "Ray": "backends.ray_actors",
    "Resizing": "_sizing",
    "Shard": "_source",
    "SignatureError": "_errors",
    "SlowestSample": "_stats",
    "Trace": "_trace",
    "Verdict": "_verdict",
    "Worker": "_context",
    "WorkerDied": "_errors",
    "WorkerError": "_errors",
    "WorkerStats": "_stats",
    "collate_padded": "_collate",
    "empty": "_context",
    "from_generator": "_factories",
    "from_map": "_factories",
    "monitor": "_monitor",
    "numpy_function": "_function",
    "span": "_span",
    "tfrecord": "tfrecord",
    "worker": "_context",
}

__all__ = [
    "Feed",
    "FeedClosed",
    "FeedIterator",
    "FeedStats",
    "FeedTimeout",
    "InProcess",
    "Monitor",
    "MpfeedError",
    "NumpyFunction",
    "Process",
    "Ray",
    "Resizing",
    "Shard",
    "SignatureError",
    "SlowestSample",
    "Trace",
    "Verdict",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerStats",
    "collate_padded",
    "empty",
    "from_generator",
    "from_map",
    "monitor",
    "numpy_function",
    "span",
    "tfrecord",
    "worker",
]


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value = module if name == _HOMES[name] else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
