"""Code blocks of Markdown pages, run as the programs they are.

A Python block is a program of its own. ``<!-- continues -->`` above a block joins it to the one before,
``<!-- not run: reason -->`` leaves it out. All run in one process, one after the other, each in a namespace and a
folder of its own: importing TensorFlow takes longer than most of them. Run as a program, this file is that process.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import select
import subprocess
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]*) -->\n+)?^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TIMEOUT_S = 110


@dataclass
class Script:
    """Blocks that run in one namespace."""

    page: str
    title: str
    line: int
    blocks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {self.title}"


def scripts(page: Path) -> list[Script]:
    """What is to run of a page, in its order."""
    text = page.read_text()
    found: list[Script] = []
    for block in BLOCK.finditer(text):
        mark = block["mark"] or ""
        if mark.startswith("not run: "):
            continue
        code = "\n".join(line.removeprefix(block["indent"]) for line in block["code"].split("\n"))
        if mark == "continues":
            found[-1].blocks.append(code)
            continue
        headings = HEADING.findall(text, 0, block.start())
        line = text.count("\n", 0, block.start("code")) + 1
        found.append(Script(str(page.relative_to(ROOT)), headings[-1] if headings else "the first", line, [code]))
    return found


class Runner:
    """The process that runs scripts; started anew after one that did not answer."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = self._started()

    def run(self, script: Script, folder: Path) -> tuple[str, str]:
        """(the traceback it ended with or nothing, what it wrote to standard error)."""
        program = folder / "snippet.py"
        program.write_text("\n".join(script.blocks))
        if self._process is None:
            self._process = self._started()
        requests, replies = _pipes(self._process)
        requests.write(f"{program}\n")
        requests.flush()
        ready, _, _ = select.select([replies], [], [], TIMEOUT_S)
        reply = replies.readline() if ready else ""
        if not reply:
            self.close()
        wrong = json.loads(reply) if reply else "the process died" if ready else f"not done after {TIMEOUT_S} s"
        return wrong, (folder / "stderr.txt").read_text()

    @staticmethod
    def _started() -> subprocess.Popen[str]:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def close(self) -> None:
        """End the process, and with it the pipes to it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _serve() -> None:
    """Run what is asked for on standard input; each answer is a line of JSON: the traceback, or nothing."""
    requests, replies = sys.stdin, os.fdopen(os.dup(1), "w")
    for request in requests:
        program = Path(request.rstrip("\n"))
        os.chdir(program.parent)
        for standard, name in ((1, "stdout.txt"), (2, "stderr.txt")):  # also what worker processes write
            output = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(output, standard)
            os.close(output)
        replies.write(json.dumps(_run(str(program))) + "\n")
        replies.flush()


def _run(program: str) -> str:
    sys.argv = [program]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as exit_:
        return f"ended with {exit_.code}" if exit_.code else ""
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return ""


if __name__ == "__main__":
    _serve()
