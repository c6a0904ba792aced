"""A daemon with administrators, and sessions of several users with it."""

from __future__ import annotations

import contextlib
import grp
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import Cli, Outcome
from memtide._capi.locate import find_daemon
from memtide._daemon.private_daemon import answers

NOBODY = 65534
# A group that each Debian has, whose members administer the daemon here.
ADMIN_GROUP = "games"
_AS_USER = Path(__file__).with_name("as_user.py")
_START_S = 30


@dataclass
class Administered:
    """A running memtided of root's, which keeps quotas in `settings`."""

    home: Path
    cli: Cli
    flags: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    sessions: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def socket_dir(self) -> Path:
        return self.home / "s"

    @property
    def settings(self) -> Path:
        return self.home / "settings"

    def start(self) -> None:
        """Starts the daemon and returns when it listens."""
        command = [
            find_daemon(),
            f"--socket-dir={self.socket_dir}",
            f"--ssd-dir={self.home / 'ssd'}",
            f"--settings-dir={self.settings}",
            f"--admin-group={ADMIN_GROUP}",
            "--device=none",
            "--host-pool=64MiB",
            "--ssd-pool=256MiB",
            *self.flags,
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_S
        while not answers(self.socket_dir):
            assert self.process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends the sessions and the daemon."""
        for session in self.sessions:
            session.kill()
            session.communicate()
        self.sessions.clear()
        if self.process is not None:
            self.process.terminate()
            assert self.process.wait() == 0
        self.process = None

    def memtide(self, *arguments: object, **more: object) -> Outcome:
        """`memtide ARGUMENTS --socket-dir=...`, as root, with `more` in the environment."""
        return self.cli.memtide(*arguments, f"--socket-dir={self.socket_dir}", **more)

    def memtide_as(self, uid: int, *arguments: object, group: int | None = None) -> Outcome:
        """The same as another user, who may connect as a member of root's group, and is a member
        of `group`, too."""
        return self.cli.python(
            _AS_USER, uid, _groups(group), *arguments, f"--socket-dir={self.socket_dir}"
        )

    def open(
        self, name: str, *, uid: int = 0, time_to_live_s: int = 0, host_mib: int = 16
    ) -> tuple[subprocess.Popen[str], str]:
        """A process of the user with a session, and what it says: "open", or an error."""
        process = subprocess.Popen(
            [
                sys.executable,
                str(_AS_USER),
                str(uid),
                _groups(None),
                *("open", str(self.socket_dir), name, str(time_to_live_s), str(host_mib << 20)),
            ],
            env=self.cli.environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.sessions.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def close(self, process: subprocess.Popen[str]) -> None:
        """Ends a process that `open` has started, in order."""
        self.sessions.remove(process)
        process.communicate()


def admin_gid() -> int:
    return grp.getgrnam(ADMIN_GROUP).gr_gid


def is_root() -> bool:
    """Whether this process can be several users."""
    return os.geteuid() == 0


@contextlib.contextmanager
def administered(cli: Cli, home: Path, flags: Sequence[str] = ()) -> Iterator[Administered]:
    """A started daemon, which ends with the context. Others may reach its sockets."""
    home.chmod(0o755)
    daemon = Administered(home, cli, flags)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def _groups(group: int | None) -> str:
    return "0" if group is None else f"0,{group}"
