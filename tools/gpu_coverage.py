"""Prints which branches of the code for GPUs were reached: gpu_coverage.py python JSON, or
gpu_coverage.py c++ FOLDER, with what coverage.py and gcov have written (tools/gpu-coverage)."""

import ast
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# In Python: files that do something only on a GPU, and the words by which others ask whether there
# is one.
GPU_FILES = re.compile(
    r"_torch_hooks/(on_gpu/(?!element_slices)\w+|compiled_regions|mode_stack"
    r"|around_step/step_dispatch)|_memory/(device_oom|covered_streams|hold)"
    r"|_daemon/gpus|_util/devices"
)
# In C++: the end of a function because a call that it made has failed, one line in each.
PASSED_ON = re.compile(r"MEMTIDE_(RETURN_IF_ERROR|ASSIGN_OR_RETURN|LOAD|CHECK)\b")
GPU_WORDS = re.compile(
    r"gpu|cuda|\bstrict\b|handles_faults|manages|dl_device|is_emulated|\bstreams\b|device_type"
    r"|is_shortage|_elastic\b|device\.type"
)


def python_branches(report):
    """Yields (path, line, target, whether it is reached, whether it asks for a GPU) by branch."""
    for name, file in sorted(json.loads(Path(report).read_text())["files"].items()):
        path = name[name.index("memtide/_") if "memtide/_" in name else 0 :]
        source = (ROOT / name).read_text(encoding="utf-8")
        asks = {
            node.lineno
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.If | ast.While) and GPU_WORDS.search(ast.unparse(node.test))
        }
        for reached, branches in ((1, "executed_branches"), (0, "missing_branches")):
            for line, target in file[branches]:
                yield path, line, target, reached, line in asks


def cxx_branches(folder):
    """The same of gcov's files. A line counts in each object that has it; reached in one is
    reached. Left out are branches of exceptions, which our code does not throw."""
    reached, owners = defaultdict(int), {}
    for report in sorted(Path(folder).glob("*.json.gz")):
        with gzip.open(report, "rt", encoding="utf-8") as text:
            files = json.load(text)["files"]
        for file in files:
            path = file["file"]
            if not re.match(r"(base/cuda/\w+|daemon/device/.*|client/cuda/.*)\.(cc|h)$", path):
                continue
            if re.search("test|benchmark|fake|emulated|streaming", path):
                continue
            for line in file["lines"]:
                # A template or an inlined function is one branch, however often it is made.
                for index, branch in enumerate(b for b in line["branches"] if not b["throw"]):
                    key = path, line["line_number"], index
                    reached[key] += branch["count"]
                    owners[key] = branch
    for (path, line, index), count in sorted(reached.items()):
        yield path, line, index, int(count > 0), False


def main(language, where):
    """Prints the table of files, and what is not reached."""
    branches = list(python_branches(where) if language == "python" else cxx_branches(where))
    shown = [b for b in branches if language != "python" or b[4] or GPU_FILES.search(b[0])]
    all_of, reached_of = Counter(), Counter()
    for path, _line, _target, reached, _asks in shown:
        all_of[path] += 1
        reached_of[path] += reached
    print("| file | branches reached | of |\n|---|---|---|")
    for path, count in sorted(all_of.items()):
        print(f"| `{path}` | {reached_of[path]} | {count} |")
    print(f"| all | {sum(reached_of.values())} | {sum(all_of.values())} |\n")
    passed_on = 0
    for path, line, target, reached, asks in shown:
        if not reached:
            name = f"pyclient/{path}" if path.startswith("memtide/") else path
            text = (ROOT / name).read_text(encoding="utf-8").splitlines()[line - 1].strip()
            if PASSED_ON.search(text):
                passed_on += 1
                continue
            mark = " [asks for a GPU]" if asks else ""
            print(f"{path}:{line} -> {target}{mark}: {text}")
    print(f"{passed_on} more pass on the failure of a call, or of a CHECK")


if __name__ == "__main__":
    main(*sys.argv[1:])
