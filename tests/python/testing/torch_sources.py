"""Looks for what memtide uses of torch in the sources of another torch, which is not imported.

    tools/torch-versions 2.5.0 2.15.0

A wheel's Python files and stubs (.pyi) are the same for all platforms, so the smallest wheel is
downloaded, and nothing of it is run. It finds what has gone or come, not what works differently.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from memtide._torch_hooks.patching import patches
from memtide._torch_hooks.patching.patch_row import OLDEST_TORCH, Version
from memtide._torch_hooks.patching.patch_table import PATCHES, UNCOMPILED

PACKAGE = Path(patches.__file__).parents[1]
_PLATFORMS = ("macosx_11_0_arm64", "macosx_14_0_arm64")  # Without CUDA, so tenths of the size.
_PYTHON = "3.11"
Folder = Path | zipfile.Path


class TorchSources:
    """The modules of a torch below a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._modules: dict[str, dict[str, ast.AST] | None] = {}

    def has_module(self, module: str) -> bool:
        """Whether it is a module in Python, or one that has a stub."""
        return self._names(module) is not None

    def has(self, owner: str, name: str) -> bool:
        """Whether "module" or "module:Class" has the attribute, or inherits it."""
        module, _, kind = owner.partition(":")
        if not kind:
            return self._find(module, name) is not None or self.has_module(f"{module}.{name}")
        found = self._find(module, kind)
        return found is not None and self._class_has(*found, name)

    def _class_has(self, module: str, kind: ast.AST, name: str) -> bool:
        if not isinstance(kind, ast.ClassDef):
            return False
        if name in _bound(kind.body):
            return True
        for base in kind.bases:
            home, _, base_name = ast.unparse(base).rpartition(".")
            found = self._find(home or module, base_name)
            if found is not None and self._class_has(*found, name):
                return True
        return False

    def _find(self, module: str, name: str, depth: int = 0) -> tuple[str, ast.AST] | None:
        """The module that defines a name, and where; imports are followed."""
        names = self._names(module)
        if names is None or depth > 8:
            return None
        node = names.get(name)
        if isinstance(node, ast.ImportFrom):
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return self._find(self._source_of(module, node), original, depth + 1)
        if node is not None:
            return module, node
        stars = (node for key, node in names.items() if key.startswith("*"))
        for star in stars:
            assert isinstance(star, ast.ImportFrom)
            found = self._find(self._source_of(module, star), name, depth + 1)
            if found is not None:
                return found
        return None

    def _source_of(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        is_package = (self.folder / module.replace(".", "/") / "__init__.py").exists()
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *filter(None, [node.module])])

    def _names(self, module: str) -> dict[str, ast.AST] | None:
        if module not in self._modules:
            path = module.replace(".", "/")
            files = (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi", f"{path}/__init__.pyi")
            found = next((f for name in files if (f := self.folder / name).exists()), None)
            text = None if found is None else found.read_text(encoding="utf-8")
            self._modules[module] = None if text is None else _bound(ast.parse(text).body)
        return self._modules[module]


def _bound(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """The names that statements bind, also inside `if`, `try` and `with`."""
    names: dict[str, ast.AST] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                is_star = alias.name == "*"
                key = f"*{node.level}{node.module}" if is_star else alias.asname or alias.name
                names.setdefault(key, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names.update({n.id: node for n in ast.walk(target) if isinstance(n, ast.Name)})
        else:
            for field in ("body", "orelse", "handlers", "finalbody"):
                names.update(_bound(getattr(node, field, [])))
    return names


def uses_of_torch() -> Iterator[tuple[str, str, str]]:
    """Path, module and name of what memtide imports from torch, and of each `torch.module.name`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = str(path.relative_to(PACKAGE))
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
                for alias in node.names:
                    yield where, node.module or "", alias.name
            elif isinstance(node, ast.Attribute):
                module, _, name = ast.unparse(node).rpartition(".")
                if re.fullmatch(r"torch(\.\w+)*", module):
                    yield where, module, name


def differences(folder: Folder, version: Version) -> Iterator[str]:
    """The claims of the table of patches, or of an import, that are not so in that version."""
    sources = TorchSources(folder)
    expected = patches.expected(version)
    for patch in PATCHES:
        if patch.module.partition(".")[0] != "torch":
            continue
        is_there = all(sources.has(patch.owner, name) for name in (patch.name, *patch.beside))
        if is_there != (patch in expected):
            yield f"{patch} is {'' if is_there else 'not '}there"
    for path, module, name in uses_of_torch():
        if sources.has_module(module) and not sources.has(module, name):
            yield f"{path} uses {module}.{name}, which is not there"


def compiles(folder: Folder) -> bool:
    """As `patches.can_compile`, and torch takes dispatch modes off while it compiles."""
    sources = TorchSources(folder)
    needs = [(patch.owner, patch.name) for patch in PATCHES if patch.absent == UNCOMPILED]
    needs.append(("torch.utils._python_dispatch:TorchDispatchMode", "ignore_compile_internals"))
    needs.append(("torch._dynamo.convert_frame", "_disable_current_modes"))
    return all(sources.has(owner, name) for owner, name in needs)


def main(versions: list[str]) -> int:
    count = 0
    for version in versions or [".".join(map(str, (*OLDEST_TORCH, 0)))]:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--only-binary=:all:", f"--python-version={_PYTHON}", f"--dest={folder}"]
            command += [f"--platform={platform}" for platform in _PLATFORMS]
            subprocess.run([*command, f"torch=={version}"], check=True)
            (wheel,) = Path(folder).glob("*.whl")
            found = list(differences(zipfile.Path(wheel), patches.version_of(version)))
            compiling = "on" if compiles(zipfile.Path(wheel)) else "off"
        for difference in found:
            print(f"torch {version}: {difference}")
        print(f"torch {version}: {len(found)} differences from the table of patches")
        print(f"torch {version}: torch.compile on a GPU is {compiling}")
        count += len(found)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
