"""Callbacks for ``model.fit``. Needs Keras (``pip install 'mpfeed[tf]'``)."""

from mpfeed._checkpoint import FeedCheckpoint

__all__ = ["FeedCheckpoint"]
