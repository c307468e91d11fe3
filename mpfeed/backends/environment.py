"""The environment of a worker: what has to be set before its interpreter runs."""

from __future__ import annotations

import os

_THREAD_LIMITS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "OPENCV_FOR_THREADS_NUM", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
)  # fmt: skip
# glibc gives big temporaries back to the system at every free and pays for them again in page faults. Setting any of
# these also switches off its own adaptation, so that all three are needed: opencv workload, 2 workers, batches/s in
# two interleaved rounds: none set 10.6 and 11.4, the slack alone 9.4 and 12.2, all three 13.7 and 16.6.
ALLOCATOR = {
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that limit the thread pools of numeric libraries, and hide accelerators."""
    return dict.fromkeys(_THREAD_LIMITS, str(threads)) | {"CUDA_VISIBLE_DEVICES": "-1"}


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker; the caller's own is left alone."""
    return {**os.environ, **ALLOCATOR, **thread_limits(threads)}
