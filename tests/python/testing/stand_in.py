"""The process of an interpreter that a program has started, while another one runs what it would.

    stand_in.py SOCKET ARGUMENTS

It asks the server at SOCKET (fork_server.py) to fork a process that runs `python ARGUMENTS` with
its own descriptors, environment and folder. It passes on the signals that it gets, and ends as the
forked process ends; the server kills that one when this one ends first.

It starts in some milliseconds, as it imports next to nothing.
"""

import _signal
import _socket
import marshal
import os
import sys

_SIGNALS = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT")


def _inherited() -> list[int]:
    """The descriptors that this process was started with. Its own ones are not inheritable."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208
    return [
        number
        for number in sorted(numbers)
        if os.path.lexists(f"/proc/self/fd/{number}") and os.get_inheritable(number)
    ]


def _pass_signals_to(target: int) -> None:
    def send(number: int, _frame: object) -> None:
        try:  # noqa: SIM105  To import contextlib takes longer than all of this.
            os.kill(target, number)
        except ProcessLookupError:
            pass  # It has ended, and so will this process.

    for name in _SIGNALS:
        _signal.signal(getattr(_signal, name), send)


def _main() -> None:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _, path, *arguments = sys.argv
    descriptors = _inherited()
    umask = os.umask(0)
    os.umask(umask)
    leads_session = os.getsid(0) == os.getpid()
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "descriptors": descriptors,
        "leads_session": leads_session,
        "umask": umask,
    }
    body = marshal.dumps(request)
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    header = len(body).to_bytes(4, "little")
    connection.sendmsg([header], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    connection.sendall(body)
    pid = _number(connection, 8)
    # A process that signals the leader of a session signals its group, as torchrun does: the forked
    # process leads a group of its own.
    _pass_signals_to(-pid if leads_session else pid)
    status = _number(connection, 4)
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _number(connection: _socket.socket, size_bytes: int) -> int:
    answer = connection.recv(size_bytes, _socket.MSG_WAITALL)
    assert len(answer) == size_bytes, "the process that forks others has ended"
    return int.from_bytes(answer, "little", signed=True)


_main()
