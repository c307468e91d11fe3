"""A picture of a trace: the opencv workload on worker processes, with a span for each stage of an augmentation.

    python -m benchmarks.timeline [--out FILE.png] [--trace FILE.json] [--batches 24] [--workers 2]

With ``--trace`` alone an existing trace is drawn. The step is a sleep, as while an accelerator works.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import mpfeed
from benchmarks import workloads
from benchmarks.workloads import BATCH, SIDE, WORKLOADS

_COLOURS = {
    "wait": "tab:red", "step": "tab:green", "decode": "tab:blue", "crop": "tab:cyan", "colours": "tab:purple",
    "elastic": "tab:olive", "collate": "tab:orange", "wait for room": "0.8",
}  # fmt: skip
_MESSAGE = "0.92"
_SHOWN_S = 0.6


def staged(shard: Any, folder: str) -> Iterator[Any]:
    """The opencv workload, each stage by its name."""
    import cv2

    paths = sorted(Path(folder).glob("*.jpg"))
    while True:
        images = np.empty((BATCH, SIDE, SIDE, 3), dtype=np.uint8)
        for i in range(BATCH):
            with mpfeed.span("decode"):
                image = cv2.imread(str(paths[shard.rng.integers(len(paths))]), cv2.IMREAD_COLOR)
            with mpfeed.span("crop"):
                image = workloads._random_crop(image, shard.rng)
            with mpfeed.span("colours"):
                image = workloads._jittered(image, shard.rng)
            with mpfeed.span("elastic"):
                images[i] = workloads._elastic(image, shard.rng)
        yield images


def record(path: Path, batches: int, workers: int) -> None:
    """Trace the opencv workload into a file."""
    workload = WORKLOADS["opencv"]()
    with mpfeed.from_generator(partial(staged, **workload.source.options), workers=workers) as feed, feed.trace(path):
        for number, _ in enumerate(feed):
            time.sleep(workload.step_s)
            if number == batches:
                break


def draw(path: Path, picture: Path) -> None:
    """The tracks of a trace below one another, the middle of it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [event for event in events if event["ph"] == "X"]
    middle_s = max(event["ts"] + event["dur"] for event in spans) / 2e6
    figure, axes = pyplot.subplots(figsize=(13, 1.2 + 0.8 * len(names)), layout="constrained")
    for place, pid in enumerate(sorted(names)):
        for event in (event for event in spans if event["pid"] == pid):
            _bar(axes, place, event)
    axes.set(xlim=(middle_s, middle_s + _SHOWN_S), xlabel="seconds", ylim=(len(names) - 0.4, -0.6))
    axes.set_yticks(range(len(names)), [names[pid].split(" (")[0] for pid in sorted(names)])
    handles = [
        mpl.patches.Patch(color=colour, label=name) for name, colour in {**_COLOURS, "message": _MESSAGE}.items()
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=len(handles), frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def _bar(axes: Any, place: int, event: dict[str, Any]) -> None:
    """A message is the frame around what it is made of."""
    message = event["name"].startswith("message of ")
    if not message and event["name"] not in _COLOURS:
        return
    colour = _MESSAGE if message else _COLOURS[event["name"]]
    height = 0.8 if message else 0.6
    axes.broken_barh([(event["ts"] / 1e6, event["dur"] / 1e6)], (place - height / 2, height), color=colour, lw=0)


def main(
    out: Annotated[Path, typer.Option(help="the picture")] = Path("docs/timeline.png"),
    trace: Annotated[Path | None, typer.Option(help="draw this one instead of recording")] = None,
    batches: Annotated[int, typer.Option(min=2)] = 24,
    workers: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Record and draw."""
    if trace is not None:
        draw(trace, out)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record(path, batches, workers)
        draw(path, out)


if __name__ == "__main__":
    typer.run(main)
