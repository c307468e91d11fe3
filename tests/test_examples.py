"""Each script of ``examples/`` runs as its users run it, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TIMEOUT_S = 110
TRAINED = re.compile(
    r"(?P<backend>\w+): waited (?P<waited>[\d.]+) s of (?P<whole>[\d.]+) s \((?P<share>[\d.]+)%\) in (?P<epochs>\d+) "
    r"epochs; accuracy on 360 held-out digits (?P<accuracy>[\d.]+)"
)


def run(script: str, *arguments: str, cwd: Path, timeout_s: float = TIMEOUT_S) -> str:
    """What the script prints; it ends well and leaves no feed open."""
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "was forgotten" not in done.stderr, done.stderr
    return done.stdout


def matched(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in:\n{text}"
    return found[1]


def test_every_example_is_run_here_and_listed_in_its_readme() -> None:
    tested = Path(__file__).read_text()
    listed = (EXAMPLES / "README.md").read_text()
    scripts = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert scripts
    for script in scripts:
        assert f'run("{script}"' in tested.replace("\n        ", "")
        assert f"- `{script}`: " in listed


def test_quickstart_prints_its_batches_and_its_waits(tmp_path: Path) -> None:
    printed = run("quickstart.py", "200", cwd=tmp_path)
    assert printed.count("(32, 64, 64, 3)") == 6
    assert printed.count("(8, 64, 64, 3)") == 1
    assert "7 elements" in printed
    assert re.search(r"waits: .* ms: mean", printed)


def test_augmentation_is_the_same_in_every_run_on_every_backend_and_saves_a_picture(tmp_path: Path) -> None:
    checksums = set()
    for backend in ("process", "inprocess"):
        printed = run(
            "opencv_augmentation.py", "--repeats", "4", "--side", "64", "--batch-size", "4", "--backend", backend,
            "--save", "sheet.png", cwd=tmp_path,
        )  # fmt: skip
        assert "24 images of 64x64" in printed
        checksums.add(matched(r"sha256 (\w{16})", printed))
    assert len(checksums) == 1
    assert (tmp_path / "sheet.png").stat().st_size > 0


def test_augmentation_as_a_function_of_one_item_delivers_every_item(tmp_path: Path) -> None:
    small = ("--repeats", "4", "--side", "64", "--batch-size", "4")
    assert "24 images of 64x64" in run("opencv_augmentation.py", "--form", "map", *small, cwd=tmp_path)


def test_training_prints_the_share_of_waiting_with_each_backend_asked_for(tmp_path: Path) -> None:
    small = ("--epochs", "1", "--samples", "96")
    printed = run("train_keras.py", "--backend", "inprocess", "--backend", "process", *small, cwd=tmp_path)
    rows = [row.groupdict() for row in TRAINED.finditer(printed)]
    assert [row["backend"] for row in rows] == ["inprocess", "process"]
    for row in rows:
        assert row["epochs"] == "1"
        assert 0 < float(row["waited"]) <= float(row["whole"])
        assert 0 < float(row["share"]) <= 100
        assert 0 < float(row["accuracy"]) <= 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_training_reaches_97_percent_of_held_out_digits_on_every_backend(tmp_path: Path) -> None:
    rows = list(TRAINED.finditer(run("train_keras.py", cwd=tmp_path, timeout_s=550)))
    assert [row["backend"] for row in rows] == ["inprocess", "process", "ray"]
    for row in rows:
        assert float(row["accuracy"]) >= 0.97, row[0]


def test_the_same_source_gives_the_same_stream_on_ray(tmp_path: Path) -> None:
    printed = run("ray_same_source.py", "--samples", "256", cwd=tmp_path)
    assert "process: 256 samples" in printed
    assert "ray: 256 samples" in printed
    assert "the streams are the same, bit for bit" in printed


def test_distributed_training_reads_disjoint_parts_on_two_logical_devices(tmp_path: Path) -> None:
    printed = run("distributed.py", "--samples", "256", "--epochs", "2", cwd=tmp_path)
    assert "2 parts of 8 batches each are the 16 of the feed, in turn" in printed
    assert printed.count(": 8 steps of 2 replicas, loss ") == 2


def test_an_hdf5_file_is_opened_by_each_worker(tmp_path: Path) -> None:
    assert "64 samples" in run("hdf5.py", "--samples", "64", cwd=tmp_path)


def test_the_frames_of_every_video_come_in_order(tmp_path: Path) -> None:
    printed = run("video.py", "--videos", "3", "--frames", "16", cwd=tmp_path)
    assert printed.count("2 clips of 8 frames, in order") == 3


def test_remote_objects_are_read_once_where_they_are_cached(tmp_path: Path) -> None:
    printed = run("remote_objects.py", "--images", "20", "--cache", str(tmp_path / "cache"), cwd=tmp_path)
    assert "epoch 0: 20 images\nepoch 1: 20 images" in printed
    assert len([path for path in (tmp_path / "cache").iterdir() if path.stat().st_size]) == 20
