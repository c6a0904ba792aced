"""The rules of tools/tidy_test.py for the Python package: its layers, and what of it is public.

A file is a rules.File: only its path, text and lines are used.
"""

import ast
import re

# A package imports only itself and what stands in a row below its own. Imports inside functions,
# those for types and those by importlib count, so that no circle can hide.
LAYERS = (
    ("__main__",),
    ("_cli", "_metrics"),
    ("_launch", "_api", "pipeline"),
    ("_offloaded",),
    ("_torch_hooks",),
    ("_activations",),
    ("_resume",),
    ("_plot", "_optimizer_step"),
    ("_trace", "_telemetry"),
    ("_daemon", "optim", "_checkpoint", "exchange"),
    ("_memory",),
    ("_capi", "_plan_file"),
    ("_util",),
    ("errors",),
)
# Houses of their own, and the packages of memtide that are their doors. A house imports memtide and
# the houses before it, but no door.
HOUSES = {
    "memtide_plan": ("_cli", "pipeline"),
    "memtide_methods": ("_cli", "exchange", "pipeline"),
}
PUBLIC = ("memtide", "memtide.errors", "memtide.exchange", "memtide.optim", "memtide.pipeline")
_PRIVATE = r"\bmemtide(\.\w+)*\._[a-z]|\b(from|import) memtide_|\bfrom memtide\.?\w* import _"
# The one file that assigns to attributes of torch and of Python's standard library.
REPLACES = "pyclient/memtide/_torch_hooks/patching/attributes.py"
# The one file that replaces attributes by other rows than those of LaterPatches.
INSTALLS = "pyclient/memtide/_torch_hooks/runtime.py"
# The one file that knows which types of devices are GPUs.
DEVICES = "pyclient/memtide/_util/devices.py"
# Files in Python that read as a user's do: no private names of memtide.
USERS = ("examples/", "docs/", "README.md", "tests/libraries/", "tests/python/scripts/")


def row_of(package):
    """The number of the row of LAYERS that a package is in, 0 on top; None: it is in none."""
    rows = (row for row, packages in enumerate(LAYERS) if package in packages)
    return next(rows, None)


def memtide_imports(file):
    """(line, dotted module) of each import of memtide in a file in Python, at any depth: by a
    statement, or by importlib.import_module of a literal."""
    for node in ast.walk(ast.parse(file.text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            names = [f"{package}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        for name in names:
            if name.startswith(("memtide.", ".", *HOUSES)) or name == "memtide":
                yield node.lineno, name


def check_layering(file):
    if house := re.match(r"pyclient/(memtide_\w+)/", file.path):
        yield from _check_house(file, house[1])
        return
    match = re.fullmatch(r"pyclient/memtide/(\w+)(\.py|/.*\.py)", file.path)
    if not match or match[1] == "__init__":
        return
    row = row_of(match[1])
    if row is None:
        yield 1, f"{match[1]} has no place in LAYERS"
        return
    for number, name in memtide_imports(file):
        other = (name.split(".") + [""])[1]
        house = name.split(".")[0]
        if house in HOUSES:
            if match[1] not in HOUSES[house]:
                yield number, f"{match[1]} is no door of {house}"
        elif name.startswith("."):
            yield number, "import by the full name"
        elif other != match[1] and row_of(other) is not None and row_of(other) <= row:
            yield number, f"{other} does not stand below {match[1]}"
        elif other.startswith("_") and not other.startswith("__") and row_of(other) is None:
            yield number, f"{other} has no place in LAYERS"


def _check_house(file, house):
    above = list(HOUSES)[list(HOUSES).index(house) + 1 :] if house in HOUSES else None
    if above is None:
        yield 1, f"{house} has no place in HOUSES"
        return
    for number, name in memtide_imports(file):
        first, second = (name.split(".") + [""])[:2]
        if first in above or (first == "memtide" and second in ("__main__", *_doors())):
            yield number, f"{name} stands above {house}"
        elif name.startswith("."):
            yield number, "import by the full name"


def _doors():
    return {door for doors in HOUSES.values() for door in doors}


def check_public(file):
    """Public names are those of PUBLIC; in every other module's path, a word begins with an
    underscore."""
    module = re.fullmatch(r"pyclient/(memtide/.*)\.py", file.path)
    if module:
        name = module[1].replace("/", ".").removesuffix(".__init__")
        if name not in (*PUBLIC, "memtide.__main__") and "._" not in name:
            yield 1, "a private module, or package, has a name that begins with an underscore"
    elif file.path.startswith(USERS) and file.path.endswith((".py", ".md")):
        for number, line in enumerate(file.lines, 1):
            if re.search(_PRIVATE, line):
                yield number, "a private name of memtide"


def check_foreign_attributes(file):
    """Attributes of another package are replaced by one file, so that all of them can be undone. A
    name counts as foreign where an import binds it, also if only in one function of the file."""
    if not re.fullmatch(r"pyclient/memtide\w*/.*\.py", file.path) or file.path == REPLACES:
        return
    tree = ast.parse(file.text)
    foreign = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.asname or alias.name.split(".")[0], alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(alias.asname or alias.name, node.module or "") for alias in node.names]
        else:
            continue
        foreign |= {name for name, module in names if not module.startswith(("memtide", "."))}
    foreign -= {"sys"}  # sys.argv and the like are a program's own.
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in foreign:
                yield node.lineno, f"{ast.unparse(node)} is replaced in {REPLACES} alone"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
                yield node.lineno, f"{name} outside of {REPLACES}"
            if name == "Attributes" and file.path != INSTALLS:
                yield node.lineno, "what is replaced has a row of the patch table: LaterPatches"


def check_device_types(file):
    """One function says which types of devices are managed as GPUs, so that a test can have one
    without a GPU: elsewhere no type is compared with CUDA's, and torch's module of it is not named.
    """
    if not re.fullmatch(r"pyclient/memtide\w*/.*\.py", file.path) or file.path == DEVICES:
        return
    for node in ast.walk(ast.parse(file.text)):
        named = None
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"cuda(:\w*)?", node.value) and repr(node.value)
        elif isinstance(node, ast.Attribute) and node.attr == "is_cuda":
            named = "is_cuda"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda":
            named = "torch.cuda"
        elif isinstance(node, ast.Import):
            named = next((a.name for a in node.names if a.name.startswith("torch.cuda")), None)
        elif isinstance(node, ast.ImportFrom):
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            named = next((n for n in imported if re.match(r"torch\.cuda\b", n)), None)
        if named:
            yield node.lineno, f"{named}: ask memtide._util.devices.gpu_module"


def import_circles(files):
    """(path, circle) for each circle of imports among the modules of pyclient/memtide."""
    modules = {}
    for file in files:
        if re.fullmatch(r"pyclient/memtide\w*/.*\.py", file.path):
            name = file.path.removeprefix("pyclient/").removesuffix(".py").replace("/", ".")
            modules[name.removesuffix(".__init__")] = file
    imports = {}
    for module, file in modules.items():
        named = {name for _, name in memtide_imports(file)}
        named |= {name.rpartition(".")[0] for name in named}
        # The root imports all lazily; a package's own docstring imports nothing.
        imports[module] = sorted((named & modules.keys()) - {module, "memtide"})
    done = set()

    def visit(module, path):
        if module in path:
            circle = " -> ".join([*path[path.index(module) :], module])
            yield modules[module].path, circle
        elif module not in done:
            for other in imports[module]:
                yield from visit(other, [*path, module])
            done.add(module)

    for module in imports:
        yield from visit(module, [])


def check_the_rules(make_file):
    """Complaints about rules that do not see what is planted here."""
    folder = "pyclient/memtide/_memory"
    for text in (
        "from memtide._api import a",
        "from . import b",
        "import memtide._new",
        "import importlib\nimportlib.import_module('memtide._api')",
        "from importlib import import_module\nimport_module('memtide._api')",
    ):
        if not list(check_layering(make_file(f"{folder}/a.py", text + "\n"))):
            yield f"rule python-layering does not see {text!r}"
    for path in ("pyclient/memtide/memory/a.py", "pyclient/memtide/api.py"):
        if not list(check_public(make_file(path, ""))):
            yield f"rule python-public does not see {path}"
    for text in (
        "import torch\ntorch.nn.Module._apply = f",
        "from torch.optim import Optimizer as O\nO.step = f",
        "import torch\ndel torch.Tensor.mul_",
        "import threading\nthreading.Thread.start: object = f",
        "def f(owner, name, g):\n    setattr(owner, name, g)",
        "from memtide._torch_hooks import attributes\na = attributes.Attributes()",
    ):
        if not list(check_foreign_attributes(make_file(f"{folder}/a.py", text + "\n"))):
            yield f"rule foreign-attributes does not see {text!r}"
    for text in (
        "def f(t):\n    return t.device.type == 'cuda'",
        "def f(t):\n    return t.device.type in ('cpu', 'cuda')",
        "def f(t):\n    return t.is_cuda",
        "def f(n):\n    return f'cuda:{n}'",
        "import torch\ntorch.cuda.empty_cache()",
        "import torch.cuda.memory",
        "from torch import cuda",
        "from torch.cuda import empty_cache",
    ):
        if not list(check_device_types(make_file(f"{folder}/a.py", text + "\n"))):
            yield f"rule device-types does not see {text!r}"
    if list(check_device_types(make_file(DEVICES, "def f(t):\n    return t.is_cuda\n"))):
        yield "rule device-types objects to the file that has the function"
    a_circle = {"a": "def f():\n    from memtide._memory import b\n", "b": "", "c": ""}
    by_name = "import importlib\nimportlib.import_module('memtide._memory.a').f()\n"
    for text, circles in (
        ("from memtide._memory.a import f\n", 1),
        (by_name, 1),
        ("import memtide\n", 0),
    ):
        files = [make_file(f"{folder}/{n}.py", t) for n, t in {**a_circle, "b": text}.items()]
        if len(list(import_circles(files))) != circles:
            yield f"import_circles() does not see what {text!r} makes"
