"""However a program runs and ends: the feed works there, its workers go, and it says no word of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from streams import eventually

_LIMIT_S = 60

READ = """
import os
import mpfeed
scale = 2
feed = mpfeed.from_map(lambda i: (i * scale, os.getpid()), range(20), workers=2, backend="process")
"""
TOTAL = READ + "with feed:\n    print(sum(int(number) for number, _ in feed))\n"


def ran(code: str, tmp_path: Path, how: str = "file") -> subprocess.CompletedProcess[str]:
    """A program, run as a file, from standard input ("-") or as an argument ("-c")."""
    folder = tmp_path / "tmp"
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments, text = [how, code] if how == "-c" else [how], code if how == "-" else None
    if how == "file":
        program = tmp_path / "program.py"
        program.write_text(code)
        arguments = [str(program)]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        env=environment,
        check=False,
    )
    assert os.listdir(folder) == []
    return done


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("how", ["file", "-", "-c"])
def test_a_program_needs_no_main_guard_and_no_file(how: str, tmp_path: Path) -> None:
    done = ran(TOTAL, tmp_path, how)
    assert (done.stdout, done.stderr, done.returncode) == ("380\n", "", 0)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_daemonic_process_of_any_start_method_may_read_a_feed(method: str, tmp_path: Path) -> None:
    code = f"""
import multiprocessing

def total():
    import mpfeed
    with mpfeed.from_map(lambda i: i * 2, range(20), workers=2, backend="process") as feed:
        print(sum(map(int, feed)), flush=True)

if __name__ == "__main__":
    child = multiprocessing.get_context({method!r}).Process(target=total, daemon=True)
    child.start()
    child.join()
"""
    done = ran(code, tmp_path)
    assert (done.stdout, done.stderr) == ("380\n", "")


def test_a_fork_neither_reads_the_feed_nor_ends_its_workers(tmp_path: Path) -> None:
    code = (
        READ
        + """
import sys
iterator = iter(feed)
numbers = [int(next(iterator)[0])]
if os.fork() == 0:
    try:
        next(iterator)
    except mpfeed.MpfeedError as error:
        print("another process" in str(error), flush=True)
    with mpfeed.from_map(lambda i: i, range(3), workers=1, backend="process") as own:
        print(list(map(int, own)), flush=True)
    feed.close()
    sys.exit()
os.wait()
numbers += [int(number) for number, _ in iterator]
print(numbers == [2 * i for i in range(20)])
feed.close()
"""
    )
    done = ran(code, tmp_path)
    assert (done.stdout, done.stderr) == ("True\n[0, 1, 2]\nTrue\n", "")


def test_a_fork_that_lives_on_keeps_no_worker_from_its_clean_up(tmp_path: Path) -> None:
    code = """
import os, warnings
from pathlib import Path
import mpfeed
warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() beside threads
ended = Path("TMP/ended")
def counted(shard):
    try:
        yield from range(1_000_000)
    finally:
        ended.touch()
feed = mpfeed.from_generator(counted, workers=1, backend="process")
iterator = iter(feed)
next(iterator)
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    os.read(read, 1)  # until the other has closed its end
    os._exit(0)
feed.close()
print(ended.exists())
os.close(write)
os.wait()
""".replace("TMP", os.fspath(tmp_path))
    done = ran(code, tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


@dataclass(frozen=True)
class Ending:
    """How a program leaves a started feed: its last line, and what must be seen."""

    line: str
    code: int = 0
    last_word: str = ""


ENDINGS = {
    "half read": Ending("pass"),
    "never read": Ending("iterator = None"),
    "sys.exit": Ending("import sys; sys.exit(3)", code=3),
    "an exception": Ending("raise LookupError('mine')", code=1, last_word="LookupError: mine"),
    "from a thread": Ending("import threading; threading.Thread(target=lambda: next(iterator)).start()"),
    "TensorFlow": Ending("held = iter(feed.dataset()); next(held)"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_without_a_word_of_the_feeds(name: str, tmp_path: Path) -> None:
    ending = ENDINGS[name]
    start = "iterator = iter(feed)\nprint(int(next(iterator)[1]), flush=True)\n" if name != "never read" else ""
    done = ran(READ + start + ending.line, tmp_path)
    assert done.returncode == ending.code, done.stderr
    tracebacks = done.stderr.count("Traceback")
    assert tracebacks == bool(ending.last_word)
    assert ending.last_word in done.stderr
    assert "Exception ignored" not in done.stderr
    assert eventually(lambda: all(gone(int(pid)) for pid in done.stdout.split()), 10)


BUSY = {
    "a feed that was closed": "with feed:\n    held = iter(feed.dataset().repeat().prefetch(1000))\n    next(held)",
    "a feed that was not closed": "held = iter(feed.dataset().repeat().prefetch(1000))\nnext(held)",
    "a numpy_function": """
import tensorflow as tf
function = mpfeed.numpy_function(lambda i: i, tf.TensorSpec((), tf.int64), backend=BACKEND, workers=1)
held = iter(tf.data.Dataset.range(10**9).map(function, num_parallel_calls=4).prefetch(1000))
next(held)
""",
}


@pytest.mark.parametrize("backend", ["inprocess", "process"])
@pytest.mark.parametrize("name", BUSY)
def test_a_program_ends_while_threads_of_tensorflow_ask_for_more(name: str, backend: str, tmp_path: Path) -> None:
    feed = "feed = mpfeed.from_map(lambda i: i, range(10**6), batch_size=1, workers=1, backend=BACKEND)\n"
    done = ran(f"import mpfeed\nBACKEND = {backend!r}\n{feed}{BUSY[name]}", tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_program_ends_where_errors_are_ignored_for_ever(tmp_path: Path) -> None:
    """No error of the closed function ends the iteration, so its thread would call on and on: it is let go of."""
    function = BUSY["a numpy_function"].replace(".prefetch(1000)", ".ignore_errors().prefetch(10)")
    last = "import atexit\natexit.register(lambda: print('_iterator_resource' in vars(held)))\n"  # runs after mpfeed's
    done = ran(f"{last}import mpfeed\nBACKEND = 'process'\n{function}", tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


HANDLERS = {
    "default": ("", -signal.SIGTERM, ""),
    "the user's": ("signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(4)))", 4, "saved\n"),
}


@pytest.mark.parametrize("handler", HANDLERS)
def test_sigterm_is_handled_once_by_the_program_alone(handler: str, tmp_path: Path) -> None:
    setting, code, words = HANDLERS[handler]
    done = ran(
        READ
        + f"""
import signal, sys
{setting}
iterator = iter(feed)
print(int(next(iterator)[1]), flush=True)
os.killpg(os.setsid() or os.getpgrp(), signal.SIGTERM)
signal.pause()
""",
        tmp_path,
    )
    pid, _, rest = done.stdout.partition("\n")
    assert (done.returncode, rest, done.stderr) == (code, words, "")
    assert eventually(lambda: gone(int(pid)), 10)


def test_a_notebook_reads_a_feed_of_what_was_typed_into_it(tmp_path: Path) -> None:
    pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    done = ran(
        f"""
import nbclient, nbformat
cells = [
    "import mpfeed\\nscale = 2\\nclass Item:\\n    def __init__(self, i): self.i = i",
    "def sample(item): return item.i * scale",
    "feed = mpfeed.from_map(sample, [Item(i) for i in range(20)], workers=2, backend='process')",
    "print(sum(int(n) for n in feed))\\nfeed.close()",
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
nbclient.NotebookClient(notebook, timeout={_LIMIT_S}, resources={{"metadata": {{"path": {str(tmp_path)!r}}}}}).execute()
print(notebook.cells[-1].outputs[0]["text"], end="")
""",
        tmp_path,
    )
    assert done.stdout == "380\n", done.stderr


def test_a_worker_that_is_starting_when_its_feed_closes_leaves_what_it_entered(tmp_path: Path) -> None:
    code = """
import contextlib, os, threading
from pathlib import Path
import mpfeed
folder = Path("TMP")
os.mkfifo(folder / "closing")
@contextlib.contextmanager
def entered():
    index = mpfeed.worker().index
    if index == 1:
        (folder / "begun").touch()
        with open(folder / "closing") as file:
            file.read()
    (folder / f"in {index}").touch()
    yield
    (folder / f"in {index}").unlink()
feed = mpfeed.from_map(abs, range(100), workers=2, worker_init=entered, batch_size=2, backend="process")
next(iter(feed))
while not (folder / "begun").exists():
    threading.Event().wait(0.01)
closing = threading.Thread(target=feed.close)
closing.start()
while not feed.closed:
    threading.Event().wait(0.01)
with open(folder / "closing", "w"):
    pass
closing.join()
print([path.name for path in folder.glob("in *")])
""".replace("TMP", os.fspath(tmp_path))
    done = ran(code, tmp_path)
    assert (done.stdout, done.stderr) == ("[]\n", "")
