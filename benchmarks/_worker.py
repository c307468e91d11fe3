"""The process of one row: ``python -m benchmarks._worker FD`` reads a job from stdin and reports to FD."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import traceback
from dataclasses import asdict
from typing import Any

from benchmarks._job import Job
from benchmarks._measure import Progress, measure


def main() -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # asked for by a parent that gives up waiting
    job = Job.from_json(json.load(sys.stdin))
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as channel:

        def send(kind: str, content: Any) -> None:
            print(json.dumps({kind: content}), file=channel)

        def report(progress: Progress) -> None:
            send("progress", asdict(progress))

        try:
            send("outcome", measure(job, report).to_json())
        except Exception:
            send("error", traceback.format_exc())
            return 1
    return 0


if __name__ == "__main__":
    status = main()
    # An ordinary exit can hang in TensorFlow, while a generator's thread waits for the GIL (seen with interleave).
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    os._exit(status)
