"""The command `memtide admin`: lists and ends jobs, drains the node, shows and sets quotas."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from memtide._capi import admin
from memtide._cli import idle, quota_text
from memtide._cli.status import plain
from memtide._daemon import inspection
from memtide._daemon.inspection import Job, Node
from memtide._util.console import make_console, print_whole
from memtide._util.sizes import format_size
from memtide.errors import NotFound, UsageError

_POLL_S = 0.2
# A killed process may hold memory of a GPU for as long.
_FREED_WITHIN_S = 9.0
_DAY_S = 86400


def list_jobs(socket_dir: Path) -> None:
    """Prints a table of the jobs that this user may see, and the sessions without one."""
    node = inspection.inspect(socket_dir, sessions=True)
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("job", "user", "name", "state", "device", "host", "ssd", "age", "quota"):
        numbers = ("job", "device", "host", "ssd", "age")
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    some_durable = any(job.durable_every for job in node.jobs)
    if some_durable:
        table.add_column("durable to", no_wrap=True)
    table.add_column("processes", overflow="fold")
    for job in node.jobs:
        table.add_row(
            str(job.job_id),
            plain(_user(job.uid)),
            plain(job.name or "-"),
            _state(job),
            *(format_size(size) for size in job.bytes_by_tier.values()),
            _time(job.age_s),
            plain(_quota_of(job, node)),
            *([_durable(job)] if some_durable else []),
            ", ".join(_processes(job, node)),
        )
    if not node.jobs:
        table.add_row("none")
    console = make_console()
    print_whole(console, table)
    for session in node.sessions:
        if not int(session.get("job_id", 0)):
            user = _user(int(session.get("uid", 0)))
            console.print(plain(f"process {session.get('pid', 0)} of {user} has no job yet"))


def _state(job: Job) -> str:
    return f"lingers for {_time(job.lingers_for_s)}" if job.state == "lingering" else job.state


def _durable(job: Job) -> str:
    return f"step {job.durable_step}" if job.durable_every else "-"


def _processes(job: Job, node: Node) -> list[str]:
    return [str(s.get("pid", 0)) for s in node.sessions if int(s.get("job_id", 0)) == job.job_id]


def _quota_of(job: Job, node: Node) -> str:
    """The quota of the job's user, and what the user has too much of."""
    for quota in node.quotas:
        if quota.subject in (f"user:{job.uid}", f"user:{_user(job.uid)}"):
            over = [key for key, name in quota_text.KEYS.items() if name in quota.exceeded]
            name = "default" if quota.is_default else quota.subject
            return f"{name}, over: {' '.join(over)}" if over else name
    return "-"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _time(seconds: float) -> str:
    if seconds >= _DAY_S:
        return f"{seconds / _DAY_S:.1f} d"
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


def end_job(socket_dir: Path, name: str) -> None:
    """Ends the job of this number or name, and says what it had. NotFound, UsageError: none, or
    several, are meant."""
    jobs = inspection.inspect(socket_dir, sessions=True).jobs
    # A job whose name is a number is ended by its own number.
    named = [job.job_id for job in jobs if name in (job.name, str(job.job_id))]
    numbers = [int(name)] if name.isdecimal() and int(name) in named else named
    if not numbers:
        raise NotFound(f"there is no job {name!r} that you may end; `memtide admin list` lists all")
    if len(numbers) > 1:
        raise UsageError(f"{len(numbers)} jobs are named {name!r}: name one by its number")
    ended = inspection.parse_job(
        admin.call("EndJob", {"job_id": str(numbers[0])}, socket_dir).get("job", {})
    )
    deadline = time.monotonic() + _FREED_WITHIN_S
    freed = False
    while not freed and time.monotonic() < deadline:
        node = inspection.inspect(socket_dir, sessions=True)
        freed = all(job.job_id != ended.job_id for job in node.jobs)
        if not freed:
            time.sleep(_POLL_S)
    sizes = ", ".join(f"{format_size(size)} {tier}" for tier, size in ended.bytes_by_tier.items())
    label = f" {ascii(ended.name)}" if ended.name else ""
    print(
        f"ended job {ended.job_id}{label} of {_user(ended.uid)} with {ended.session_count} "
        f"sessions; {'freed' if freed else 'will be free when its processes are gone'}: {sizes}"
    )


def end_drain(socket_dir: Path) -> None:
    """The daemon takes sessions again."""
    admin.call("Drain", {"mode": "DRAIN_MODE_END"}, socket_dir)
    print("new sessions are taken again")


def drain(socket_dir: Path) -> None:
    """The daemon takes no new session. Prints what is open until nothing is."""
    admin.call("Drain", {"mode": "DRAIN_MODE_SESSIONS"}, socket_dir)
    print(
        "new sessions are refused, until `memtide admin drain --end` or a restart of the daemon",
        flush=True,
    )
    shown = ""
    while True:
        status, line = idle.what_would_end(socket_dir)
        if line != shown:
            print(line, flush=True)
            shown = line
        if status != idle.EXIT_SESSIONS:
            return
        time.sleep(_POLL_S)


def show_quotas(socket_dir: Path) -> None:
    """Prints the quotas that this user may see, and what is used of them. A limit that none of them
    has is left out."""
    quotas = inspection.inspect(socket_dir, sessions=True).quotas
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    limited = [
        key
        for key, name in quota_text.KEYS.items()
        if any(name in quota.limits for quota in quotas)
    ]
    for name in ("subject", *limited):
        table.add_column(name, no_wrap=True)
    for quota in quotas:
        by_default = " (default)" if quota.is_default else ""
        cells = (quota_text.cell(quota, key) for key in limited)
        table.add_row(plain(quota.subject + by_default), *cells)
    if not quotas:
        whom = "any user or group" if os.geteuid() == 0 else "this user"
        table.add_row(f"no quota concerns {whom} now")
    print_whole(make_console(), table)


def set_quota(socket_dir: Path, subject: str, limits: Sequence[str]) -> None:
    """Sets limits such as "host=4GiB", and prints what holds. UsageError: one is not understood."""
    request = quota_text.set_request(subject, limits)
    _print_quota(admin.call("SetQuota", request, socket_dir))


def clear_quota(socket_dir: Path, subject: str) -> None:
    """Forgets what was set for the subject, and prints what holds."""
    _print_quota(admin.call("ClearQuota", {"subject": subject}, socket_dir))


def _print_quota(reply: dict[str, Any]) -> None:
    quota = reply.get("quota", {})
    print(f"{ascii(quota.get('subject', ''))[1:-1]}: {quota_text.limits_line(quota)}")
    if not reply.get("outlives_daemon"):
        print("until the daemon ends: it was started without --settings-dir")
