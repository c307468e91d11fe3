"""mpfeed keeps an accelerator fed when the preprocessing is plain Python.

Generators and functions that hold the GIL run in worker processes, or in Ray actors on one machine or a cluster;
their batches reach TensorFlow as a ``tf.data.Dataset`` without being copied in the training process.
"""

from mpfeed._collate import collate_padded
from mpfeed._context import Worker, empty, worker
from mpfeed._errors import FeedClosed, FeedTimeout, MpfeedError, SignatureError, WorkerDied, WorkerError
from mpfeed._factories import from_generator, from_map
from mpfeed._feed import Feed
from mpfeed._function import NumpyFunction, numpy_function
from mpfeed._iterator import FeedIterator
from mpfeed._source import Shard
from mpfeed._stats import FeedStats, WorkerStats
from mpfeed.backends.in_process import InProcess
from mpfeed.backends.processes import Process
from mpfeed.backends.ray_actors import Ray

__version__ = "0.1.0"

__all__ = [
    "Feed",
    "FeedClosed",
    "FeedIterator",
    "FeedStats",
    "FeedTimeout",
    "InProcess",
    "MpfeedError",
    "NumpyFunction",
    "Process",
    "Ray",
    "Shard",
    "SignatureError",
    "Worker",
    "WorkerDied",
    "WorkerError",
    "WorkerStats",
    "collate_padded",
    "empty",
    "from_generator",
    "from_map",
    "numpy_function",
    "worker",
]
