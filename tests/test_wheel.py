"""What is released: one version everywhere, and a wheel that works where nothing else is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from snippets import ROOT

import mpfeed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READ = """
import sys
import mpfeed
for backend in ("inprocess", "process"):
    with mpfeed.from_map(lambda n: {"n": n}, range(5), workers=1, backend=backend, batch_size=2) as feed:
        assert [e["n"].tolist() for e in feed] == [[0, 1], [2, 3], [4]]
assert not {"tensorflow", "ray", "cv2"} & set(sys.modules)
"""
PROGRAMS = {
    "": READ,
    "tf": "import mpfeed\n"
    "with mpfeed.from_map(lambda n: n, range(3), workers=1) as feed:\n"
    "    assert [int(n) for n in feed.dataset()] == [0, 1, 2]\n",
    "ray": "import mpfeed\n"
    "with mpfeed.from_map(lambda n: n, range(3), workers=1, backend='ray') as feed:\n"
    "    assert [int(n) for n in feed] == [0, 1, 2]\n",
    "cv": READ + "import cv2\n",
}


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["version"] == mpfeed.__version__
    assert f"({mpfeed.__version__})" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return folder


@pytest.mark.long
@pytest.mark.timeout(600)
def test_wheel_and_source_distribution_pass_twine(dist: Path) -> None:
    files = sorted(str(path) for path in dist.iterdir())
    assert [path.suffix for path in dist.iterdir()].count(".whl") == 1
    assert len(files) == 2
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", [*PROGRAMS])
def test_the_wheel_works_in_an_empty_environment(extra: str, dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    (wheel,) = dist.glob("*.whl")
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    constraint = ROOT / "constraints" / "py311.txt"
    pinned = ["--constraint", str(constraint)] if sys.version_info[:2] == (3, 11) else []
    install = [python, "-m", "pip", "install", "--quiet", *pinned, wanted]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", PROGRAMS[extra]], cwd=tmp_path, env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
