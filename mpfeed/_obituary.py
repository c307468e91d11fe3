"""Words for workers that died or take too long: what happened, to which one, on what, and what to do next."""

from __future__ import annotations

from mpfeed._errors import WorkerDied
from mpfeed._memory import memory_words
from mpfeed._messages import Died
from mpfeed._roster import Member, Roster, Ticket


def obituary(event: Died, *, starting: bool, blamed: Ticket | None, deaths: int, max_restarts: int) -> WorkerDied:
    """The error for a death that is not made good.

    Args:
        event: the death.
        starting: it died before it was ready.
        blamed: what it was making, if anything.
        deaths: how often a worker died there.
        max_restarts: how many deaths there are made good.
    """
    doing = "while it started" if starting else "while it was idle"
    if blamed is not None and not starting:
        doing = f"while making {blamed.run.describe(blamed.unit)}"
    pid = f" (pid {event.pid}{', node ' + event.node if event.node else ''})" if event.pid else ""
    times = f", {deaths} times at this place (max_restarts={max_restarts})" if deaths > 1 else ""
    text = f"worker {event.worker}{pid} {event.text} {doing}{times}.{_advice(event.exit_code)}"
    return WorkerDied(text, worker=event.worker, pid=event.pid, exit_code=event.exit_code)


def _advice(exit_code: int | None) -> str:
    if exit_code == -9:
        memory = memory_words()
        return (
            f" SIGKILL is what the kernel sends when memory runs out{f' ({memory})' if memory else ''}: use fewer "
            "workers, a smaller batch or buffer, or look for a leak (max_tasks_per_worker= replaces a worker that has "
            "one)"
        )
    if exit_code in (-11, -7, -6, -4, -8):
        return " This is a crash in C code: its Python stack is on the worker's stderr"
    if exit_code is not None and exit_code >= 0:
        return " Something in it left with os._exit or ended the process: an exit code is not the end of its data"
    return ""


def overdue(waited_s: float, roster: Roster, stacks: dict[int, str]) -> str:
    """What every worker is doing, for a wait that takes too long."""
    lines = [f"no element came within {waited_s:.1f} s"]
    for worker, member in roster:
        if member.state != "absent":
            stack = _indent(stacks.get(worker, "no stack"))
            lines.append(f"worker {worker}{member.where()}: {_doing(member)}\n{stack}")
    lines.append("Raise timeout= if this is as slow as it should be")
    return "\n".join(lines)


def _doing(member: Member) -> str:
    if member.state == "starting":
        return "starting"
    if not member.unanswered:
        return "idle"
    ticket = next(iter(member.unanswered.values()))
    return f"making {ticket.run.describe(ticket.unit)}"


def _indent(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
