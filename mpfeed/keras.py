"""Callbacks for ``model.fit``. Needs TensorFlow and Keras (``pip install 'mpfeed[tf]'``)."""

from mpfeed._checkpoint import FeedCheckpoint
from mpfeed._input_monitor import InputMonitor

__all__ = ["FeedCheckpoint", "InputMonitor"]
