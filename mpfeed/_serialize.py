"""Pickling of user code by value, and exceptions on their way back.

cloudpickle sends lambdas, closures and whatever lives in ``__main__``. On top of it, code keeps the name of its
file and brings its source lines along, so that a traceback in a worker reads as it would here.
"""

from __future__ import annotations

import functools
import io
import linecache
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any

import cloudpickle

from mpfeed._errors import ArenaFull, MpfeedError, SignatureError, WorkerError
from mpfeed._messages import Failure
from mpfeed._source import name_of
from mpfeed._structure import Treespec

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SOURCE_LIMIT_BYTES = 1 << 20
# tensorflow/python/autograph/impl/api.py: the attributes of a function that tf.numpy_function was given.
_AUTOGRAPH = ("ag_dnc_wrapper__", "autograph_info__")


def _named_code(build: Callable[..., CodeType], arguments: tuple[Any, ...], filename: str) -> CodeType:
    return build(*arguments).replace(co_filename=filename)


def _without_autograph(state: Any) -> None:
    """Drop what TensorFlow leaves on each function it has called: it would import TensorFlow in the worker."""
    if type(state) is tuple and state and type(state[0]) is dict:
        for name in [name for name in state[0] if name in _AUTOGRAPH]:
            del state[0][name]


def _with_sources(value: Any, sources: dict[str, list[str]]) -> Any:
    for filename, lines in sources.items():
        if not linecache.getlines(filename):
            # Without a time stamp linecache.checkcache leaves the entry alone.
            linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)
    return value


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle that keeps file names: it writes "<dynamic-code>" (3.1) in place of co_filename."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.filenames: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, CodeType):
            build, arguments = self.dispatch_table[CodeType](obj)
            self.filenames.add(obj.co_filename)
            return _named_code, (build, arguments, obj.co_filename)
        reduced = super().reducer_override(obj)
        if isinstance(obj, FunctionType) and type(reduced) is tuple and len(reduced) > 2:
            _without_autograph(reduced[2])
        return reduced


def dumps(value: Any) -> bytes:
    """Pickle by value what a fresh interpreter could not import. ``loads`` reads it."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    sources = {name: lines for name in pickler.filenames if (lines := _source_lines(name))}
    if not sources:
        return file.getvalue()
    return pickle.dumps((_WITH_SOURCES, sources, file.getvalue()), pickle.HIGHEST_PROTOCOL)


_WITH_SOURCES = "mpfeed: with sources"


def loads(data: Any) -> Any:
    """Read what ``dumps`` wrote."""
    value = pickle.loads(data)
    if type(value) is tuple and len(value) == 3 and value[0] == _WITH_SOURCES:
        return _with_sources(pickle.loads(value[2]), value[1])
    return value


@functools.lru_cache(maxsize=64)
def structure_bytes(treespec: Treespec) -> bytes:
    """A structure on its way to a worker, which may not be able to import the classes that it names."""
    return dumps(treespec)


@functools.lru_cache(maxsize=64)
def structure_of(data: bytes) -> Treespec:
    """Read what ``structure_bytes`` wrote; the same classes each time."""
    treespec: Treespec = loads(data)
    return treespec


def _source_lines(filename: str) -> list[str]:
    lines = linecache.getlines(filename)
    return lines if sum(map(len, lines)) <= _SOURCE_LIMIT_BYTES else []


# How deep an error looks for what cannot be pickled: an object that refers to itself has no bottom.
_DEPTH = 4
_PLAIN = (int, float, str, bytes, bool)


def freeze(value: Any) -> bytes:
    """Pickle data (items, samples): quickly where it is plain, by value otherwise."""
    if type(value) is tuple and all(type(part) in _PLAIN for part in value):
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return dumps(value)


def dump_source(parts: dict[str, Any]) -> bytes:
    """Pickle the named parts of a source together, so that they share their globals.

    Raises:
        TypeError: naming the part, and inside it the variable, that cannot travel to a worker.
    """
    try:
        return dumps(tuple(parts.values()))
    except Exception as error:
        raise TypeError(_why_unpicklable(parts, error)) from error


def _why_unpicklable(parts: dict[str, Any], error: Exception) -> str:
    part = next((name for name, value in parts.items() if _fails(value)), "source")
    function = parts.get(part)
    found = _guilty(function)
    variable = f" because of {found}" if found else ""
    return (
        f"the {part} cannot be sent to a worker{variable}: {type(error).__name__}: {error}. Open files, locks and "
        "connections inside the worker instead: in worker_init (mpfeed.worker().state hands it on) or in the source"
    )


def _fails(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return True
    return False


def _guilty(value: Any) -> str:
    """The variable of a source that cannot be pickled, as words."""
    for function in getattr(value, "functions", ()) or (getattr(value, "function", value),):
        inner = getattr(function, "__func__", function)
        holder = function if inner is function and not isinstance(function, FunctionType) else None
        holder = getattr(function, "__self__", holder)
        for name, attribute in getattr(holder, "__dict__", {}).items():
            if _fails(attribute):
                return f"attribute {name!r} of its {type(holder).__name__}{_inside(attribute)}"
        if isinstance(inner, FunctionType):
            cells = zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=False)
            for name, cell in cells:
                if _fails(cell.cell_contents):
                    return f"variable {name!r} of {name_of(inner)}{_inside(cell.cell_contents)}"
            for name in inner.__code__.co_names:
                if name in inner.__globals__ and _fails(inner.__globals__[name]):
                    return f"global {name!r} used by {name_of(inner)}{_inside(inner.__globals__[name])}"
    return ""


def _inside(value: Any) -> str:
    """Where in a value that which cannot be pickled lies, as words."""
    path = ""
    for _ in range(_DEPTH):
        found = next(((step, part) for step, part in _parts_of(value) if _fails(part)), None)
        if found is None:
            break
        step, value = found
        path += step
    return f" (there: {path})" if path else ""


def _parts_of(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


# ------------------------------------------------------------------------------------------- exceptions


def _user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame outside mpfeed on."""
    tb = error.__traceback__
    while tb is not None and tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tb = tb.tb_next
    return tb


def failure_of(
    error: BaseException, where: str, *, remote: bool, shard: int | None = None, index: int | None = None
) -> Failure:
    """An exception of the user's code, ready to travel; whatever it is, this does not raise."""
    if isinstance(error, (SignatureError, ArenaFull)):
        cause = error.__cause__
        pickled = _pickled(cause) if remote and cause is not None else b""
        own = type(error)
        return Failure(
            own.__name__, str(error), "", pickled, own, where, shard, index, original=None if remote else cause
        )
    try:
        text = str(error)
    except Exception as second:
        text = f"<its text failed: {type(second).__name__}>"
    lines = traceback.format_exception(type(error), error, _user_traceback(error))
    return Failure(
        kind=_qualified(type(error)),
        text=text,
        traceback="".join(lines),
        pickled=_pickled(error) if remote else b"",
        own=None,
        where=where,
        shard=shard,
        index=index,
        original=None if remote else error,
    )


def _qualified(kind: type) -> str:
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _pickled(error: BaseException) -> bytes:
    """The exception in bytes, or b"" where it does not survive: some pickle but cannot be read back."""
    try:
        data = dumps(error)
        loads(data)
    except BaseException:
        return b""
    return data


def _revived(failure: Failure) -> BaseException:
    if failure.original is not None:
        return failure.original
    if failure.pickled:
        try:
            return loads(failure.pickled)  # type: ignore[no-any-return]
        except Exception as error:  # a class only the worker could import
            return RuntimeError(f"{failure.kind}: {failure.text} (not brought back: {error})")
    return RuntimeError(f"{failure.kind}: {failure.text}")


def error_of(failure: Failure) -> MpfeedError:
    """The error to raise here for a failure there."""
    if isinstance(failure.original, MpfeedError) and getattr(failure.original, "mpfeed_as_is", False):
        return failure.original  # a part of a shared split passes on what the whole feed raised
    who = _who(failure)
    if failure.own is not None:
        by = "" if failure.worker is None else f" in worker {failure.worker}"
        refusal = failure.own(f"{failure.where}{by}: {failure.text}")
        if failure.pickled or failure.original is not None:
            refusal.__cause__ = _revived(failure)
        return refusal
    message = f"{failure.kind}: {failure.text}\n  while making {failure.where} in {who}\n{_indent(failure.traceback)}"
    error = WorkerError(message.rstrip(), worker=failure.worker, shard=failure.shard, index=failure.index)
    error.__cause__ = _revived(failure)
    return error


def _who(failure: Failure) -> str:
    if failure.worker is None:
        return "the calling process"
    pid = f" (pid {failure.pid}{', node ' + failure.node if failure.node else ''})" if failure.pid else ""
    return f"worker {failure.worker}{pid}"


def _indent(text: str) -> str:
    return "".join(f"  | {line}\n" for line in text.splitlines())


def main_arguments() -> list[str]:
    """The driver's ``sys.argv``, which workers show too."""
    return list(sys.argv)
