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
# From this size on, memcpy writes past the caches. glibc's own threshold follows the size of the last-level cache that
# the CPU reports, of which a virtual machine's share may be small (300 MiB for 2 cores: never reached). A copy of
# 48 MB, alone and beside another, in interleaved rounds, ms: 20.5 and 15.5 by default, 11.8 and 8.8 so; of 4.8 MB
# beside another 1.43 and 0.71.
_COPY = "glibc.cpu.x86_non_temporal_threshold=0x400000"


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that limit the thread pools of numeric libraries, and hide accelerators."""
    return dict.fromkeys(_THREAD_LIMITS, str(threads)) | {"CUDA_VISIBLE_DEVICES": "-1"}


def worker_environment(threads: int) -> dict[str, str]:
    """The environment of a worker; the caller's own is left alone."""
    return {**os.environ, **memory_settings(), **thread_limits(threads)}


def memory_settings() -> dict[str, str]:
    """Environment variables for glibc's allocator and its copying; what the user set of the latter stays."""
    return ALLOCATOR | {"GLIBC_TUNABLES": ":".join(filter(None, [_COPY, os.environ.get("GLIBC_TUNABLES")]))}
