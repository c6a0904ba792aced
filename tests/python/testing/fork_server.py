"""A process with torch imported. It forks one for each Python program that a test starts.

To import torch takes longer than most of these programs. A forked process is to the program what a
new interpreter is: nothing seems imported. A module that this process has imported is put into
`sys.modules` again when the program imports it, by a finder, so that what acts at the import of
torch acts. `memtide` is not imported here.

Started with a socket as its standard input, and ends when the other end is closed. It has one
thread, and never computes, as the thread pools of OpenMP and torch do not outlive a fork. A request
is a length of 4 bytes and JSON, with four descriptors: stdin, stdout and stderr of the program, and
a pipe for its exit status. The answer is the process id.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
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
from typing import Any

# A process imports the second one with its first optimizer.
_PRELOADED = ("torch", "torch._dynamo")
_C_LIBRARY = ctypes.CDLL(None)


class Shelf(importlib.abc.MetaPathFinder):
    """The modules that are imported here, and that a program has not imported yet."""

    def __init__(self) -> None:
        self._modules: dict[str, types.ModuleType] = {}
        # The modules that one module of _PRELOADED brings, by each of their names.
        self._together: dict[str, list[str]] = {}
        # What a package has under the name of a module of it, which need not be that module.
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


def _serve(connection: socket.socket, search_path: list[str]) -> dict[str, Any]:
    """Forks a process for each request. Returns the request in these processes."""
    statuses: dict[int, int] = {}  # The pipe of each process that runs.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's, which is for the tests.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready = select.select([connection, woken], [], [])[0]
        if woken in ready:
            os.read(woken, 4096)
            _report(statuses)
        if connection not in ready:
            continue
        header, descriptors, *_ = socket.recv_fds(connection, 4, 4)
        if not header:
            sys.exit()
        body = connection.recv(int.from_bytes(header, "little"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            connection.close()
            request: dict[str, Any] = json.loads(body)
            _become(request, descriptors[:3], search_path)
            return request
        statuses[pid] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(8, "little"))


def _report(statuses: dict[int, int]) -> None:
    """Writes the exit statuses of the processes that have ended."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # The test no longer waits for it.
            os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        os.close(pipe)


def _become(request: dict[str, Any], descriptors: list[int], search_path: list[str]) -> None:
    """Makes this process what a new one has: descriptors, environment, folder, flags, path."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    # The objects of the server are of its own descriptors, and know whether these were terminals.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors=sys.stderr.errors, closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    # The destructors of torch's libraries take longer than most programs. Those of what the program
    # loads come first.
    _C_LIBRARY.on_exit(_C_LIBRARY._exit, None)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
    vars(sys)["flags"] = types.SimpleNamespace(**{**flags, "safe_path": request["safe_path"]})
    sys.argv = request["arguments"]
    sys.orig_argv = [sys.executable, *request["command"]]
    folders = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*filter(None, folders), *search_path]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})


def _run(kind: str, name: str, *, safe_path: bool) -> None:
    """Runs the program as the interpreter does: `python -m NAME`, `-c NAME`, or the script NAME."""
    main = sys.modules["__main__"]
    if kind == "module":
        if not safe_path:
            sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(name)  # type: ignore[attr-defined]
        return
    if kind == "code":
        first, source, file = "", name.encode(), "<string>"
    else:
        first, source = str(Path(name).resolve().parent), Path(name).read_bytes()
        file = os.path.abspath(name)  # noqa: PTH100  Path.absolute keeps "..", Python does not.
        main.__dict__.update(__file__=file, __cached__=None)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", file)
    if not safe_path:
        sys.path.insert(0, first)
    exec(compile(source, file, "exec", dont_inherit=True), main.__dict__)


def _main() -> None:
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    search_path = [folder for folder in sys.path if folder not in folders]
    connection = socket.socket(fileno=os.dup(0))
    shelf = Shelf()
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # Backends are for the environment to name.
    shelf.fill(_PRELOADED)
    shelf.hide()
    gc.collect()
    gc.freeze()  # Forked processes need not look through it.
    request = _serve(connection, search_path)
    try:
        _run(request["kind"], request["name"], safe_path=request["safe_path"])
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
