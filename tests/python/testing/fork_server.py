"""A process with torch imported. It forks one for each Python program that a test starts.

To import torch takes longer than most of these programs. A forked process is to the program what a
new interpreter is: nothing seems imported. A module that this process has imported is put into
`sys.modules` again when the program imports it, by a finder, so that what acts at the import of
torch acts. `memtide` is not imported here. One thing differs: what a module imports from another by
name, it has before a program can replace it.

Started with a socket that listens as its standard input, whose path is its argument, and ends when
the process that started it ends. It has one thread, and never computes, as the thread pools of
OpenMP and torch do not outlive a fork. A request is a connection on which there come a length of 4
bytes with the descriptors of the program, and a dictionary as `marshal` writes it. The answer is
the process id, of 8 bytes, and later the exit status, of 4. A process whose connection ends is
killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import marshal
import os
import runpy
import select
import signal
import socket
import sys
import threading  # noqa: F401  An interpreter that ends looks for it in sys.modules.
import traceback  # noqa: F401  So does one that shows an error.
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import python_commands
import started_pythons

# A process imports the second one with its first optimizer.
_PRELOADED = ("torch", "torch._dynamo")
_OWN_MODULES = ("python_commands", "started_pythons")
_MOST_DESCRIPTORS = 253  # The kernel passes no more at once.
_C_LIBRARY = ctypes.CDLL(None)


class Shelf(importlib.abc.MetaPathFinder):
    """The modules that are imported here, and that a program has not imported yet."""

    def __init__(self) -> None:
        self._modules: dict[str, types.ModuleType] = {}
        # The modules that one module of _PRELOADED brings, by each of their names.
        self._together: dict[str, list[str]] = {}
        # The attribute of a package with the name of a module of it, which need not be that module.
        self._attributes: dict[str, object] = {}
        self._restores = False

    def fill(self, preloaded: Iterable[str]) -> None:
        """Imports these modules."""
        known = set(sys.modules)
        for name in preloaded:
            importlib.import_module(name)
            new = [each for each in sys.modules if each not in known]
            known.update(new)
            for each in new:
                module = sys.modules[each]
                if isinstance(module, types.ModuleType):
                    self._modules[each] = module
                    self._together[each] = new

    def hide(self) -> None:
        """Makes the modules look as if they were not imported."""
        for name, module in self._modules.items():
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            above = self._modules.get(parent)
            if above is None or child not in vars(above):
                continue
            if self._together[parent] is self._together[name]:
                self._attributes[name] = vars(above)[child]
            elif vars(above)[child] is module:
                delattr(above, child)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        module = self._modules.get(fullname)
        if module is None or module.__spec__ is None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, _Loader(module, self.restored))
        spec.origin = module.__spec__.origin
        spec.submodule_search_locations = module.__spec__.submodule_search_locations
        return spec

    def restored(self, name: str) -> None:
        """A module is in `sys.modules` again: those follow that its own import has imported. Each
        goes through all finders, of which memtide's wait for some of them."""
        module = self._modules.pop(name)
        if self._restores:
            return
        self._restores = True
        package = name.partition(".")[0]
        names = self._together[name]
        if package != "torch":
            names = [other for other in names if other.partition(".")[0] == package]
        for other in names:
            self._restore(other)
        for other in self._attributes.keys() & names:
            parent, _, child = other.rpartition(".")
            setattr(sys.modules[parent], child, self._attributes[other])
        self._restores = False
        if name == "torch":
            module.default_generator.seed()  # Random, as that of a new process.
            if module._is_device_backend_autoload_enabled():
                module._import_device_backends()

    def _restore(self, name: str) -> None:
        hidden = self._modules.get(name)
        if (
            hidden is not None and hidden.__spec__ is None
        ):  # No finder has found it: C code made it.
            sys.modules[name] = self._modules.pop(name)
        importlib.import_module(name)


class _Loader(importlib.abc.Loader):
    """Loads a module that exists."""

    def __init__(self, module: types.ModuleType, restored: Callable[[str], None]) -> None:
        self._module = module
        self._restored = restored
        self._spec, self._loader = module.__spec__, module.__loader__

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self._module

    def exec_module(self, module: types.ModuleType) -> None:
        assert self._spec is not None
        vars(module).update(__spec__=self._spec, __loader__=self._loader)
        self._restored(self._spec.name)


class _Processes:
    """The processes that run, and the connection of each."""

    def __init__(self) -> None:
        self._connections: dict[int, socket.socket] = {}
        self._leaders: set[int] = set()

    def add(self, pid: int, connection: socket.socket, *, leads_session: bool) -> None:
        with contextlib.suppress(ConnectionError):  # It has ended: `pid` will be killed.
            connection.sendall(pid.to_bytes(8, "little"))
        self._connections[pid] = connection
        if leads_session:
            self._leaders.add(pid)

    def connections(self) -> list[socket.socket]:
        return list(self._connections.values())

    def kill_those_of(self, ended: Iterable[socket.socket]) -> None:
        """Kills the processes of connections that the other side has closed."""
        for pid, connection in list(self._connections.items()):
            if connection in ended:
                os.kill(pid, signal.SIGKILL)
                if pid in self._leaders:
                    with contextlib.suppress(ProcessLookupError):  # It did not yet lead.
                        os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._forget(pid)

    def report(self) -> None:
        """Says the exit statuses of the processes that have ended."""
        while self._connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            answer = os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True)
            with contextlib.suppress(ConnectionError):  # It is no longer waited for.
                self._connections[pid].sendall(answer)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        self._connections.pop(pid).close()
        self._leaders.discard(pid)


def _serve(
    listener: socket.socket, starter: int, search_path: list[str]
) -> python_commands.Program:
    """Forks a process for each request, until the process `starter` ends. Returns what to run in
    these processes."""
    processes = _Processes()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's, which is for the tests.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready = select.select([starter, listener, woken, *processes.connections()], [], [])[0]
        if starter in ready:
            sys.exit()
        if woken in ready:
            os.read(woken, 4096)
            processes.report()
        processes.kill_those_of(ready)
        if listener not in ready:
            continue
        connection, _ = listener.accept()
        header, descriptors, *_ = socket.recv_fds(connection, 4, _MOST_DESCRIPTORS)
        size_bytes = int.from_bytes(header, "little")
        body = connection.recv(size_bytes, socket.MSG_WAITALL)
        if not header or len(body) < size_bytes:  # It has ended before it could ask.
            connection.close()
            continue
        request: dict[str, Any] = marshal.loads(body)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for each in (listener, connection, *processes.connections()):
                each.close()
            return _become(request, descriptors, search_path)
        for descriptor in descriptors:
            os.close(descriptor)
        processes.add(pid, connection, leads_session=request["leads_session"])


def _take(descriptors: list[int], numbers: list[int]) -> None:
    """Gives the descriptors these numbers, and closes all other ones."""
    first_free = max(*descriptors, *numbers, 2) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, first_free) for each in descriptors]
    os.closerange(0, first_free)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
    os.closerange(first_free, os.sysconf("SC_OPEN_MAX"))


def _standard_streams(*, are_unbuffered: bool) -> tuple[TextIO, TextIO, TextIO]:
    """The server's streams are of its own descriptors, and know whether these were terminals."""

    def output(number: int, errors: str | None, buffering: int) -> TextIO:
        if not are_unbuffered:
            return open(number, "w", buffering, errors=errors, closefd=False)
        raw = open(number, "wb", 0, closefd=False)  # noqa: SIM115
        return io.TextIOWrapper(raw, errors=errors, write_through=True)  # type: ignore[type-var]

    return (
        open(0, closefd=False),
        output(1, sys.stdout.errors, -1),
        output(2, sys.stderr.errors, 1),
    )


def _become(
    request: dict[str, Any], descriptors: list[int], search_path: list[str]
) -> python_commands.Program:
    """Makes this process what a new one has: descriptors, environment, folder, flags, path."""
    program = python_commands.program_of(request["arguments"])
    assert program is not None
    _take(descriptors, request["descriptors"])
    always = bool(request["environment"].get("PYTHONUNBUFFERED"))
    streams = _standard_streams(are_unbuffered=program.is_unbuffered or always)
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = streams
    if "umask" in request:  # Else it is that of the process which started the server.
        os.umask(request["umask"])
    if request["leads_session"]:
        os.setsid()
    # The destructors of torch's libraries take longer than most programs. The destructors of what
    # the program loads come first.
    _C_LIBRARY.on_exit(_C_LIBRARY._exit, None)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
    vars(sys)["flags"] = types.SimpleNamespace(**{**flags, "safe_path": program.safe_path})
    sys.argv = program.arguments
    sys.orig_argv = [sys.executable, *request["arguments"]]
    folders = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, folders), *search_path]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    return program


def _run(program: python_commands.Program) -> None:
    """Runs the program as the interpreter does: `python -m NAME`, `-c NAME`, or the script NAME."""
    main, name = sys.modules["__main__"], program.name
    if program.kind == "module":
        if not program.safe_path:
            sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    if program.kind == "code":
        first, source, file = "", name.encode(), "<string>"
    else:
        first, source = str(Path(name).resolve().parent), Path(name).read_bytes()
        file = os.path.abspath(name)  # noqa: PTH100  Path.absolute keeps "..", Python does not.
        main.__dict__.update(__file__=file, __cached__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    if not program.safe_path:
        sys.path.insert(0, first)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _main() -> None:
    for name in _OWN_MODULES:
        del sys.modules[name]
    folders = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), sys.path[0]]
    search_path = [folder for folder in sys.path if folder not in folders]
    listener, starter = socket.socket(fileno=os.dup(0)), os.pidfd_open(os.getppid())
    started_pythons.fork_what_is_started(Path(sys.argv[1]), dict(os.environ))
    shelf = Shelf()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # Backends are for the environment to name.
    shelf.fill(_PRELOADED)
    shelf.hide()
    gc.collect()
    gc.freeze()  # Forked processes need not look through it.
    program = _serve(listener, starter, search_path)
    try:
        _run(program)
    except SystemExit:
        raise
    except BaseException as error:
        # A new interpreter has no frames of this file.
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        error.__traceback__ = frames
        sys.excepthook(type(error), error, frames)
        sys.excepthook = lambda *_: None
        raise  # The interpreter ends as after any error, or by SIGINT.


if __name__ == "__main__":
    _main()
