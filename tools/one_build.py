"""One build of a tree with many mutants, and its test programs, which a number tells the mutant."""

import contextlib
import math
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path

import mutations
from shell import bazel

# A line of the compiler's that names what does not compile, or what instantiates it.
_COMPILER = re.compile(
    r"^([\w/]+\.(?:cc|h)):(\d+):\d+: +(?:(?:\w+ )*error|required from here)", re.M
)
# A mutant that allocates without end must not end others. Address space may be had without end.
MOST_BYTES = 6 << 30
# A test that takes longer without a mutant does not pass.
MOST_SECONDS = 900


class BuildError(Exception):
    """Mutants cannot be tried, as something is not built, or fails without one."""


def take(pool, chosen, count):
    """Moves mutations from the shuffled pool to `chosen` until that has `count`."""
    while len(chosen) < count and pool:
        candidate = pool.pop()
        if not any(mutations.overlap(candidate, other) for other in chosen):
            chosen.append(candidate)


def leave_out(wrong, pool, chosen):
    """Others take the places of the wrong ones. The rest keep their numbers, so that only files in
    which something changes are compiled again."""
    rest = [mutation for mutation in chosen if mutation not in wrong]
    count = len(rest)
    take(pool, rest, len(chosen))
    others = rest[count:]
    for i in reversed([i for i, mutation in enumerate(chosen) if mutation in wrong]):
        other = others.pop() if others else chosen.pop()
        if i < len(chosen):
            chosen[i] = other


def write(root, originals, chosen):
    definition = root / mutations.DEFINED_IN
    if not definition.exists():
        definition.write_text(mutations.DEFINITION)
    for path, text in originals.items():
        numbered = [(n, m) for n, m in enumerate(chosen, 1) if m.path == path]
        mutated = mutations.apply(text, numbered) if numbered else text
        if (root / path).read_text() != mutated:
            (root / path).write_text(mutated)


def build(root, originals, pool, chosen, count, targets):
    """Leaves mutations that do not compile out, and takes others instead, until all compile."""
    take(pool, chosen, count)
    while True:
        write(root, originals, chosen)
        status, output = bazel(root, 'bazel_build -c opt "$@"', *targets)
        if status == 0:
            return
        bad = set(_COMPILER.findall(output))
        wrong = [m for m in chosen if any((m.path, str(n)) in bad for n in lines_of(m))]
        if not wrong:
            raise BuildError(f"the mutants do not compile, and no line of one is named\n{output}")
        for mutation in wrong:
            print(f"does not compile: {mutation}", flush=True)
        leave_out(wrong, pool, chosen)


def lines_of(mutation):
    return range(mutation.line, mutation.line + mutation.original.count("\n") + 1)


def tests_in(root, query):
    """The test programs in C++ that a query names."""
    status, output = bazel(root, 'bazel_query "$@"', f"kind(cc_test, {query})")
    if status != 0:
        raise BuildError(output)
    return [line for line in output.splitlines() if line.startswith("//")]


def _settings(root, targets):
    """The arguments that BUILD files give to each test, and what they put into its environment."""
    found = {}
    script = 'bazel_query --output=xml "$@" 2>/dev/null'
    rules = xml.etree.ElementTree.fromstring(bazel(root, script, f"set({' '.join(targets)})")[1])
    for rule in rules.iter("rule"):
        package = rule.attrib["name"].partition(":")[0]
        texts = [each.attrib["value"] for each in rule.findall("dict[@name='env']/pair/string")]
        paths = re.compile(r"\$\(rootpath (.+)\)")
        arguments = [each.attrib["value"] for each in rule.findall("list[@name='args']/string")]
        found[rule.attrib["name"]] = arguments, {
            name: _path(package, label.group(1)) if (label := paths.fullmatch(value)) else value
            for name, value in zip(texts[::2], texts[1::2], strict=True)
        }
    return found


def _path(package, label):
    folder, _, name = label.rpartition(":")
    return f"{(folder or package)[2:]}/{name}"


class Programs:
    """The test programs of a tree, which ask MEMTIDE_MUTANT for the mutant: 0 is none."""

    def __init__(self, root, targets):
        self._binaries = Path(bazel(root, "bazel_bin -c opt")[1].strip().splitlines()[-1])
        self._root = root
        self._settings = _settings(root, targets)
        self._seconds = {}
        self._cpu_seconds = {}

    def tests_in(self, query):
        """The tests that a query names, which are built if they were not."""
        tests = tests_in(self._root, query)
        new = [test for test in tests if test not in self._settings]
        if new:
            status, output = bazel(self._root, 'bazel_build -c opt "$@"', *new)
            if status != 0:
                raise BuildError(output)
            self._settings |= _settings(self._root, new)
        return tests

    def seconds(self, test, chosen="*", **environment):
        """The time that the test takes without a mutant; None: it does not pass."""
        key = test, chosen, *environment.items()
        if key not in self._seconds:
            start, used = time.monotonic(), _cpu_seconds()
            passes = self._passes(test, 0, MOST_SECONDS, MOST_SECONDS, chosen, environment)
            self._seconds[key] = time.monotonic() - start if passes else None
            self._cpu_seconds[key] = _cpu_seconds() - used
        return self._seconds[key]

    def sees(self, number, test, chosen="*", **environment):
        """Whether the test fails with the mutant, or takes ten times as long as without it, or
        computes for three times as long.

        REQUIRES: it passes without.
        """
        seconds = self.seconds(test, chosen, **environment)
        computes = self._cpu_seconds[test, chosen, *environment.items()]
        most_s, most_cpu_s = 10 * seconds + 10, math.ceil(3 * computes + 10)
        return not self._passes(test, number, most_s, most_cpu_s, chosen, environment)

    def _passes(self, test, number, timeout, most_cpu_s, chosen, environment):
        def limit():
            resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s))

        program = self._binaries / _path("", test)
        with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
            process = subprocess.Popen(
                [program, *self._settings[test][0]],
                cwd=f"{program}.runfiles/memtide",
                env={
                    **os.environ,
                    "TEST_TMPDIR": scratch,
                    **self._settings[test][1],
                    **environment,
                    # A fuzzer knows no flags of GoogleTest's.
                    "GTEST_FILTER": chosen,
                    "GTEST_FAIL_FAST": "1",
                    "MEMTIDE_MUTANT": str(number),
                },
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=limit,
            )
            try:
                return process.wait(timeout) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                _end(process)


def _cpu_seconds():
    """The seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _end(process):
    """Ends the test, and what it started and did not end."""
    with contextlib.suppress(ProcessLookupError):  # All have ended.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
