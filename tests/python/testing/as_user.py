"""Runs `memtide` as another user: as_user.py UID GROUP,... ARGUMENTS. Root starts it, who alone may
be able to read the packages. They are loaded before the user changes.

With `open NAME TIME_TO_LIVE HOST_SHARE` as ARGUMENTS it opens a session instead, allocates a chunk,
prints "open" or the error, and keeps the session until its stdin ends.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from memtide._capi.client import Client, Kind
from memtide._capi.library import Options, load_library
from memtide._cli import administration, main, status
from memtide.errors import MemtideError
from rich.console import Console
from rich.table import Table


def _keep_open(socket_dir: Path, name: str, time_to_live_s: int, host_share_bytes: int) -> int:
    options = Options(
        socket_dir=socket_dir,
        job_name=name,
        time_to_live_s=time_to_live_s,
        host_share_bytes=host_share_bytes,
        chunk_bytes=2 << 20,
    )
    try:
        client = Client(options)
    except MemtideError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    client.allocate(Kind.PARAMETER, 1)
    print("open", flush=True)
    sys.stdin.read()
    client.close()
    return 0


def _run() -> int:
    uid, groups, *arguments = sys.argv[1:]
    load_library()
    table = Table()
    table.add_column("a", overflow="fold")
    table.add_row(status.plain("\x1b"))  # Tables of Unicode are loaded when one is needed.
    Console(file=io.StringIO()).print(table)
    assert administration.list_jobs
    os.setgroups([int(group) for group in groups.split(",")])
    os.setgid(int(groups.split(",")[0]))
    os.setuid(int(uid))
    if arguments[0] == "open":
        _, socket_dir, name, time_to_live_s, share = arguments
        return _keep_open(Path(socket_dir), name, int(time_to_live_s), int(share))
    return main.main(arguments)


if __name__ == "__main__":
    sys.exit(_run())
