"""What does ``from_map`` cost and hold back? ``python -m benchmarks.map``.

Three questions, each row in a fresh process, PyTorch's DataLoader beside mpfeed where its environment is there
(``make peers`` makes one):

items: does the number of items cost memory or time? Five paths and five million, 4 workers, a function that does next
to nothing. Memory is read from outside Python's own accounts: what the workers have for themselves (USS), and with
their part of what is shared (PSS), after so many batches. The first batch is timed from ``iter()`` on, the start of
the workers included; making the list is not.

slow: does a slow item hold up the others? One item in twenty takes ten times as long. Ideal is the time that all items
took, as each says itself, divided by the workers; what is told is the share of it that was reached, over whole epochs.

boundary: does the next epoch keep the training loop waiting? The first wait of an epoch, its iterator included, beside
the median of the others, and of those of the same worker, whose turn it is; a loop that waits for its workers, and one
that its workers wait for.

kills (asked for by name): does a training that is killed with SIGKILL ten times, at random moments, and started again
end with the weights of one that never was? ``benchmarks._training`` is that training.

Left out: transport of large batches (``benchmarks.transport``), and sources other than these. Two warm-up epochs are
not in "slow" and "boundary". Busy items share the cores with whatever else runs: measure on a quiet machine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks._map_loaders import Load
from benchmarks._map_row import Wanted
from benchmarks._rows import Surroundings
from benchmarks._training import killed

_CHECKOUT = Path(__file__).resolve().parents[1]
_TORCH = _CHECKOUT / ".venvs" / "peers" / "bin" / "python"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONWARNINGS": "ignore"}
_LIMIT_S = 240
_MANY = 5_000_000
_KILLS = 10


def rows_of(question: str) -> list[Wanted]:
    """All rows of a question."""
    return {"items": _items, "slow": _slow, "boundary": _boundary}[question]()


def _items() -> list[Wanted]:
    load = Load("path", 5, workers=4, batch_size=256)
    rows = []
    for count in (5, _MANY):
        one = replace(load, items=count, batch_size=256 if count > 5 else 1)  # five items are five batches
        batches = 2000 if count > 5 else 5
        rows += [
            Wanted("items", one, "mpfeed", f"mpfeed process, {count:,} paths", {}, batches),
            Wanted("items", one, "torch", f"PyTorch, {count:,} paths", {}, batches),
        ]
    return rows


def _slow() -> list[Wanted]:
    waiting = Load("waiting", 4800, workers=4, batch_size=32, cost_s=0.001)
    busy = Load("busy", 4800, workers=2, batch_size=32, cost_s=0.001)
    ready = {"buffer": 2}
    return [
        Wanted("slow", waiting, "mpfeed", "mpfeed process, waiting items", ready, epochs=5),
        Wanted("slow", waiting, "mpfeed", "… ordered=False", {**ready, "ordered": False}, epochs=5),
        Wanted("slow", replace(waiting, batch_size=None), "mpfeed", "… single items", ready, epochs=5),
        Wanted("slow", waiting, "torch", "PyTorch, waiting items", {"prefetch_factor": 2}, epochs=5),
        Wanted("slow", busy, "mpfeed", "mpfeed process, busy items", ready, epochs=3),
        Wanted("slow", replace(busy, batch_size=None), "mpfeed", "… single items", ready, epochs=3),
        Wanted("slow", busy, "torch", "PyTorch, busy items", {"prefetch_factor": 2}, epochs=3),
    ]


def _boundary() -> list[Wanted]:
    slower = Load("even", 192, workers=2, batch_size=16, cost_s=0.0025)
    faster = replace(slower, cost_s=0.0005)
    rows = []
    for load, step_s, words in ((slower, 0.005, "workers slower"), (faster, 0.02, "workers faster")):
        for name, loader, options in (
            ("mpfeed process", "mpfeed", {}),
            ("mpfeed process, dataset()", "mpfeed", {"tensors": True}),
            ("mpfeed process, dataset().repeat()", "mpfeed", {"repeats": True}),
            ("from_generator", "generator", {}),
            ("PyTorch, workers kept", "torch", {}),
            ("PyTorch, its defaults", "torch", {"persistent_workers": False}),
        ):
            rows.append(Wanted("boundary", load, loader, f"{name}, {words}", options, epochs=20, step_s=step_s))
    return rows


def killed_and_not(seed: int) -> dict[str, Any]:
    """One row: the weights of a training with and without deaths, and how many steps each life made."""
    row = {"label": f"{_KILLS} deaths", "wanted": {"question": "kills", "seed": seed}}
    row["surroundings"] = asdict(Surroundings.now())
    whole, steps = killed(0, seed)
    weights, lives = killed(_KILLS, seed)
    row["seen"] = {"whole": whole, "killed": weights, "steps": sum(steps), "steps_of_each_life": lives}
    return row if whole == weights else {**row, "error": f"the weights differ: {whole} and {weights}"}


def measured(wanted: Wanted, torch: Path) -> dict[str, Any]:
    """One row: what was wanted, and what its process saw or why it saw nothing."""
    row = {"label": wanted.label, "wanted": wanted.to_json(), "surroundings": asdict(Surroundings.now())}
    python = str(torch) if wanted.loader == "torch" else sys.executable
    if not os.path.exists(python):
        return {**row, "error": f"{torch} is not there (make peers)"}
    paths = os.pathsep.join(path for path in (str(_CHECKOUT), os.environ.get("PYTHONPATH", "")) if path)
    try:
        done = subprocess.run(
            [python, "-m", "benchmarks._map_row"], input=json.dumps(wanted.to_json()), capture_output=True, text=True,
            env={**os.environ, **_QUIET, "PYTHONPATH": paths}, timeout=_LIMIT_S, check=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {**row, "error": f"took more than {_LIMIT_S} s"}
    except subprocess.CalledProcessError as error:
        return {**row, "error": "\n".join(error.stderr.splitlines()[-6:])}
    return {**row, "seen": json.loads(done.stdout.splitlines()[-1])}


def figures(row: dict[str, Any]) -> dict[str, str]:
    """What of a row goes into the table."""
    seen, question = row.get("seen"), row["wanted"]["question"]
    if seen is None or "error" in row:
        return {"failed": row["error"]}
    if question == "kills":
        lives = " ".join(map(str, seen["steps_of_each_life"]))
        return {"weights": "the same", "sha256": seen["whole"][:16], "steps of each life": lives}
    if question == "items":
        own, share = (sum(seen[name]) / 1e6 for name in ("own_bytes", "share_bytes"))
        return {
            "first batch s": f"{seen['first_batch_s']:.2f}", "batches/s": f"{seen['batches_per_s']:.0f}",
            "workers' own MB": f"{own:.1f}", "with their part of shared MB": f"{share:.1f}",
        }  # fmt: skip
    if question == "slow":
        wall_s = statistics.median(wall for _, wall in seen["epochs"])
        return {"of the ideal": f"{seen['of_ideal']:.3f}", "epoch s": f"{wall_s:.2f}"}
    return {
        "median wait ms": f"{seen['median_ms']:.2f}", "of its turn": f"{seen['turn_ms']:.2f}",
        "first of an epoch, median": f"{seen['first_median_ms']:.2f}",
        "max": f"{seen['first_max_ms']:.2f}", "first ÷ median": f"{seen['ratio']:.2f}",
    }  # fmt: skip


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """A table for each question."""
    for question in dict.fromkeys(row["wanted"]["question"] for row in rows):
        mine = [row for row in rows if row["wanted"]["question"] == question]
        names = next((list(figures(row)) for row in mine if "seen" in row), ["failed"])
        table = Table("", *names, title=question, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for row in mine:
            found = figures(row)
            table.add_row(row["label"], *[found.get(name, "") for name in names])
            if "failed" in found:
                console.print(f"{row['label']}: {found['failed']}", style="red", markup=False)
        console.print(table)


def main(
    question: Annotated[list[str] | None, typer.Option(help="items, slow, boundary or kills; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Of the moments of the kills.")] = 0,
    loader: Annotated[str, typer.Option(help="mpfeed, torch, or both.")] = "both",
    torch: Annotated[Path, typer.Option(help="Python of an environment that has torch and psutil.")] = _TORCH,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write all rows with their raw values.")] = None,
) -> None:
    """Measure what from_map costs and holds back, PyTorch's DataLoader beside it."""
    console = Console(width=130)
    asked = question or ["items", "slow", "boundary"]
    wanted = [row for name in asked if name != "kills" for row in rows_of(name)]
    rows = [killed_and_not(seed)] if "kills" in asked else []
    for one in wanted:
        if loader == "both" or (loader == "torch") == (one.loader == "torch"):
            rows.append(measured(one, torch))
            said = ", ".join(f"{name} {value}" for name, value in figures(rows[-1]).items())
            console.print(f"{one.question} · {one.label}: {said}", markup=False, highlight=False)
    show(rows, console)
    console.print(str(Surroundings.now()), highlight=False)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(
            json.dumps({"benchmark": "map", "rows": rows}, indent=1).replace(f"{_CHECKOUT}/", "") + "\n"
        )
    raise typer.Exit(any("error" in row for row in rows))


if __name__ == "__main__":
    typer.run(main)
