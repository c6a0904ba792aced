"""`python -m memtide_plan.seen_model ANSWER SECONDS SCRIPT ARGUMENTS...`: writes what the script
shows of its model to the file ANSWER, as JSON of memtide_plan.models.described.Described, or
{"error": ...}, and ends. SECONDS: how long the script may run until then.

The process ends without what a script would do at its end, such as writing its results.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from memtide._launch.program import Program, run_program
from memtide.errors import UsageError

from memtide_plan.seen_model.no_writes import NoWrites
from memtide_plan.seen_model.watch import Watch


class _TimeIsOver(BaseException):
    """No exception that a script catches."""


class _Process:
    """The script's process."""

    def __init__(self, answer: Path, seconds: float, program: Program) -> None:
        self._answer = answer
        self._seconds = seconds
        self._program = program
        self._watch = Watch(self._shown)

    def run(self) -> NoReturn:
        """Runs the script, and ends with it."""
        signal.signal(signal.SIGALRM, _over)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            run_program(self._program.located())
            reason = "it has ended"
        except _TimeIsOver:
            reason = f"it has shown none in {self._seconds:.0f} s"
        except UsageError as error:
            reason = str(error)
        except SystemExit as error:
            reason = f"it has ended with status {error.code}"
        except BaseException as error:  # Whatever the script raises ends it here.
            reason = f"it has raised {_line(error)}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not self._watch.optimizers:
            self._end({"error": f"{reason} before an optimizer of torch was made"})
        roots = self._watch.roots()
        if not roots:
            self._end({"error": f"{reason}, and no module has the parameters of its optimizer"})
        self._describe(roots[0], f"{reason} before a forward pass")

    def _shown(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._describe(module, None, args, kwargs)

    def _describe(
        self,
        module: Any,
        unseen: str | None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> NoReturn:
        from memtide_plan.seen_model.description import describe

        try:
            answer = describe(
                Path(self._program.name).stem, module, self._watch, args, kwargs or {}, unseen
            )
        except Exception as error:  # The modules are the script's.
            answer = {"error": f"its modules raise {_line(error)}"}
        self._end(answer)

    def _end(self, answer: dict[str, Any]) -> NoReturn:
        self._answer.write_text(json.dumps(answer), encoding="utf-8")
        os._exit(0)


def _over(number: int, frame: FrameType | None) -> NoReturn:
    raise _TimeIsOver


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _main() -> NoReturn:
    answer, seconds, script, *arguments = sys.argv[1:]
    path = Path(answer)
    process = _Process(path, float(seconds), Program(script, arguments))
    NoWrites(path.parent.resolve()).install()
    process.run()


if __name__ == "__main__":
    _main()
