"""`memtide status`: prints the node's pools, training states, sessions and counters."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from memtide._cli.quota_text import quota_line
from memtide._daemon import inspection
from memtide._daemon.inspection import HostMemory, Node, Others, SsdDirectory, UserSsdWrites
from memtide._telemetry.summary_tables import kinds_table, pools_table, shared_line
from memtide._util.sizes import format_size

_COMMAND_LENGTH = 60
# Unicode categories of characters that change how a terminal shows others: controls, formats such
# as a change of direction, surrogates, and separators of lines and paragraphs.
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def print_status(socket_dir: Path, console: Console) -> None:
    """Prints the state of the daemon. Unavailable: no daemon answers."""
    node = inspection.inspect(socket_dir, sessions=True)
    state = "draining" if node.draining else "serving"
    if node.refuses_sessions:
        state = "refusing new sessions (`memtide admin drain`)"
    console.print(f"[bold cyan]memtided[/] {node.version}, {state}")
    console.print(pools_table(node))
    console.print(_obtainable_line(node))
    if line := host_memory_line(node.host_memory):
        console.print(line)
    for line in ssd_directory_lines(node.ssd_directories):
        console.print(plain(line))
    for line in [*map(ssd_writes_line, node.ssd_directories), *map(user_line, node.ssd_users)]:
        console.print(plain(line))
    if node.kinds:
        console.print(kinds_table(node))
    if line := shared_line(node):
        console.print(line)
    console.print(_sessions_table(node))
    if line := others_line(node.others):
        console.print(line)
    for quota in node.quotas:
        if line := quota_line(quota):
            console.print(plain(line))
    if any("rank_use" in session for session in node.sessions):
        console.print(_ranks_table(node))
    console.print(_counters_line(node))
    for warning in node.warnings:
        console.print(Text.assemble(("warning:", "yellow"), " ", plain(warning)))


def _obtainable_line(node: Node) -> str:
    # More than the pools' free bytes: it includes what can be reclaimed from other jobs.
    sizes = (f"{format_size(pool.obtainable_bytes)} {pool.name}" for pool in node.pools)
    return f"a further job can have {', '.join(sizes)}"


def host_memory_line(memory: HostMemory) -> str:
    """The pinned or coherent bytes, and the place of host memory; empty where nothing has to be
    pinned."""
    parts = []
    if memory.pinned_bytes or memory.staging_bytes:
        how = "coherent with the GPU" if memory.coherent else "pinned"
        parts.append(f"{format_size(memory.pinned_bytes)} {how}")
        parts.append(f"{format_size(memory.staging_bytes)} of staging buffers")
    if memory.unpinned_bytes:
        through = "staging buffers" if memory.staging_bytes else "the driver's, which is slower"
        parts.append(f"{format_size(memory.unpinned_bytes)} not pinned, copied through {through}")
    if memory.numa_node is not None:
        parts.append(f"on NUMA node {memory.numa_node}")
    if memory.numa_node_by_device:
        nodes = sorted(memory.numa_node_by_device.items())
        of_devices = (f"{node} for device/{device}" for device, node in nodes)
        parts.append(f"of each job on the NUMA node of its device, {', '.join(of_devices)}")
    return f"host memory: {', '.join(parts)}" if parts else ""


def ssd_directory_lines(directories: Sequence[SsdDirectory]) -> list[str]:
    """How stores are striped over several directories; nothing where there is one."""
    if len(directories) < 2:
        return []
    cycle = sum(directory.stripes for directory in directories)
    return [
        f"SSD directory {directory.path}: {directory.stripes} of {cycle} stripes, "
        + (
            f"{format_size(directory.bytes_per_second)}/s"
            if directory.bytes_per_second
            else "speed not measured"
        )
        for directory in directories
    ]


def ssd_writes_line(directory: SsdDirectory) -> str:
    """The bytes written to a drive, how long it lasts, and whether evictions wait for its
    budget."""
    if not directory.endurance_bytes:
        life = "predicted life unknown (--ssd-endurance)"
    elif directory.life_years is None:
        life = "no life predicted, as nothing was written"
    else:
        life = f"predicted life {directory.life_years:.1f} years"
    line = (
        f"written to {directory.path}: {_last_day(directory)}, "
        f"{format_size(directory.written_bytes)} in all; {life}"
    )
    return f"{line}; evictions wait for this budget" if directory.is_awaited else line


def user_line(user: UserSsdWrites) -> str:
    """The bytes that a user wrote to SSD, and the chunks that wait."""
    line = f"written to SSD by uid {user.uid}: {_last_day(user)}"
    if not user.waiting_chunks:
        return line
    budget = "a budget of the user or a group" if user.is_awaited else "the budget of a drive"
    return f"{line}; {user.waiting_chunks} chunks wait for {budget}"


def _last_day(writes: SsdDirectory | UserSsdWrites) -> str:
    written = f"{format_size(writes.written_last_day_bytes)} in the last 24 hours"
    budget = writes.written_per_day_bytes
    return f"{written} of at most {format_size(budget)}" if budget else written


def others_line(others: Others) -> str:
    """The sessions and jobs of other users, with their memory; empty where there are none that this
    user may not see."""
    if not others.session_count and not others.job_count:
        return ""
    return (
        f"other users: {others.session_count} sessions, {others.job_count} jobs with "
        f"{format_size(others.device_share_bytes)} of device and "
        f"{format_size(others.host_share_bytes)} of host memory"
    )


def plain(text: str) -> Text:
    """A text of someone else as it is: its brackets are no markup, and its characters change
    nothing on the terminal."""
    return Text("".join("\N{REPLACEMENT CHARACTER}" if _is_hidden(c) else c for c in text))


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _NOT_SHOWN


def _sessions_table(node: Node) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("session", "pid", "uid", "job", "chunk", "leases", "device share", "host share"):
        table.add_column(name, justify="left" if name == "job" else "right", no_wrap=True)
    table.add_column("command", overflow="fold")
    for session in sorted(node.sessions, key=_job_and_rank):
        table.add_row(
            str(session.get("session_id", 0)),
            str(session.get("pid", 0)),
            str(session.get("uid", 0)),
            plain(_job(session)),
            format_size(int(session.get("chunk_size_bytes", 0))),
            str(session.get("leases", 0)),
            format_size(int(session.get("device_share_bytes", 0))),
            format_size(int(session.get("host_share_bytes", 0))),
            plain(_command(int(session.get("pid", 0)))),
        )
    if not node.sessions:
        table.add_row("none")
    return table


def _ranks_table(node: Node) -> Table:
    """The contents of each rank's chunks, and how much of them other ranks have, too."""
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("job", "rank", "session", "contents", "shared"):
        table.add_column(name, justify="left" if name == "job" else "right", no_wrap=True)
    for session in sorted(node.sessions, key=_job_and_rank):
        if "rank_use" not in session:
            continue
        use = inspection.rank_use(session)
        table.add_row(
            plain(_job(session)),
            f"{use.rank} of {use.ranks}",
            str(session.get("session_id", 0)),
            format_size(use.named_bytes),
            format_size(use.shared_bytes),
        )
    return table


def _job(session: Mapping[str, Any]) -> str:
    return session.get("job_name", "") or f"#{session.get('job_id', 0)}"


def _job_and_rank(session: Mapping[str, Any]) -> tuple[int, int]:
    """The sort key of rows: the ranks of a job stand under one another, by number."""
    return int(session.get("job_id", 0)), int(session.get("rank", 0))


def _command(pid: int) -> str:
    """The end of a process's command line, which says most; empty if this user may not read it."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    text = b" ".join(words).decode(errors="replace").strip()
    return text if len(text) <= _COMMAND_LENGTH else "…" + text[1 - _COMMAND_LENGTH :]


def _counters_line(node: Node) -> str:
    count = node.counters
    stalled = sum(node.stalls_s.values())
    return (
        f"since the daemon's start: {count.get('fetches', 0)} fetches "
        f"({count.get('fetch_hits', 0)} without a transfer), "
        f"{count.get('evictions', 0)} evictions, "
        f"{format_size(count.get('ssd_read_bytes', 0))} read and "
        f"{format_size(count.get('ssd_written_bytes', 0))} written on SSD, "
        f"stalled {stalled:.1f} s"
    )
