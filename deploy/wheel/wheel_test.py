"""The wheel is complete: a script trains with it in an environment without the rest of memtide.

    wheel_test.py memtide.whl wheel_name.txt site_packages.txt train_gpt.py

site_packages.txt names the packages of the environment that has torch and rich; torch is too large
to be installed once more.
"""

import base64
import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

WHEEL, WHEEL_NAME, SITE_PACKAGES, TRAIN_GPT = (Path(argument) for argument in sys.argv[1:])
MOST_BYTES = 30 << 20
PROGRAMS = ("memtide/libmemtide.so", "memtide/memtided", "memtide/memtide-replay")
# Libraries of the machine that torch needs as well.
MACHINES_OWN = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|ld-linux-(x86-64|aarch64))\.so\.\d"
)
# 54 MiB of parameters, gradients and states: more than both pools hold.
SMALL = ("--steps", "4", "--layers", "4", "--width", "256", "--batch", "2", "--context", "32")
TRAIN_AND_LIST_LIBRARIES = """
import runpy, sys
from pathlib import Path
train, libraries = sys.argv[1], Path(sys.argv[2])
sys.argv = [train, *sys.argv[3:]]
runpy.run_path(train, run_name="__main__")
paths = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "/" in line}
libraries.write_text("\\n".join(sorted(path for path in paths if ".so" in path)))
"""


def losses(log):
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


class Content(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.root = Path(cls.scratch.name)
        with zipfile.ZipFile(WHEEL) as archive:
            archive.extractall(cls.root)
            cls.modes = {each.filename: each.external_attr >> 16 for each in archive.infolist()}
        (cls.info,) = cls.root.glob("*.dist-info")
        cls.libraries = {path.name: path for path in (cls.root / "memtide.libs").iterdir()}

    def test_is_small_enough(self):
        self.assertLess(WHEEL.stat().st_size, MOST_BYTES)

    def test_programs_may_be_executed(self):
        for name in PROGRAMS:
            self.assertEqual(self.modes[name], 0o100755, name)

    def test_torch_finds_it_in_processes_of_a_run(self):
        points = (self.info / "entry_points.txt").read_text()
        called = "memtide._launch.on_path.memtide_run:torch_imported"
        self.assertIn(f"[torch.backends]\nmemtide = {called}\n", points)
        on_path = self.root / "memtide/_launch/on_path/memtide_run-1.dist-info"
        self.assertTrue(
            {"METADATA", "entry_points.txt"} <= {path.name for path in on_path.iterdir()}
        )

    def test_every_file_is_in_the_record_with_its_hash(self):
        recorded = {}
        for line in (self.info / "RECORD").read_text().splitlines():
            name, digest, _ = line.rsplit(",", 2)
            recorded[name] = digest
        self.assertEqual(recorded.keys(), self.modes.keys())
        self.assertEqual(recorded.pop(f"{self.info.name}/RECORD"), "")
        for name, digest in recorded.items():
            found = hashlib.sha256((self.root / name).read_bytes()).digest()
            found = base64.urlsafe_b64encode(found).rstrip(b"=").decode()
            self.assertEqual(digest, f"sha256={found}", name)

    def test_libraries_come_from_the_wheel_or_are_those_of_every_machine(self):
        self.assertGreater(len(self.libraries), 20)
        for path in [*(self.root / name for name in PROGRAMS), *self.libraries.values()]:
            dynamic = subprocess.run(
                ["readelf", "-d", path], capture_output=True, text=True, check=True
            ).stdout
            for needed in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
                if needed not in self.libraries:
                    self.assertRegex(needed, MACHINES_OWN, path.name)
            (rpath,) = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
            found_in = Path(os.path.normpath(rpath.replace("$ORIGIN", str(path.parent))))
            self.assertEqual(found_in, self.root / "memtide.libs", path.name)

    def test_no_library_has_the_name_of_the_machines_own(self):
        for name in self.libraries:
            self.assertRegex(name, r"-[0-9a-f]{8}\.so\.\d")

    def test_has_the_licences_of_what_it_brings(self):
        licences = {path.parent.name for path in (self.info / "licenses").glob("*/copyright")}
        for start in ("libgrpc", "libprotobuf", "libabsl", "liburing", "libssl", "libsystemd"):
            self.assertTrue(any(name.startswith(start) for name in licences), start)
        self.assertIn("Apache License", (self.info / "licenses/LICENSE").read_text())
        named = re.findall("^License-File: (.*)$", (self.info / "METADATA").read_text(), re.M)
        found = [p for p in (self.info / "licenses").rglob("*") if p.is_file()]
        self.assertEqual(sorted(self.info / "licenses" / name for name in named), sorted(found))


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        packages = SITE_PACKAGES.read_text().strip()
        if not packages:
            raise AssertionError("no environment with torch: run tools/setup")
        cls.scratch = tempfile.TemporaryDirectory(prefix="mt", dir="/tmp")
        cls.addClassCleanup(cls.scratch.cleanup)
        cls.home = Path(cls.scratch.name)
        venv = cls.home / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        (cls.site,) = venv.glob("lib/python*/site-packages")
        (cls.site / "torch_and_rich.pth").write_text(packages + "\n")
        wheel = cls.home / WHEEL_NAME.read_text().strip()
        shutil.copyfile(WHEEL, wheel)
        cls.bin = venv / "bin"
        cls.environment = {"PATH": f"{cls.bin}:/usr/bin:/bin", "HOME": str(cls.home)}
        cls.run_program("python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)

    @classmethod
    def run_program(cls, name, *arguments):
        done = subprocess.run(
            [cls.bin / name, *arguments],
            env=cls.environment,
            cwd=cls.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(
                f"{name} {arguments}: {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def test_programs_are_on_the_path_and_of_one_version(self):
        version = WHEEL_NAME.read_text().split("-")[1]
        self.assertEqual(self.run_program("memtide", "--version"), f"memtide {version}\n")
        self.assertTrue(
            self.run_program("memtided", "--version").startswith(f"memtided {version} ")
        )
        self.assertIn("memtide-replay", self.run_program("memtide-replay", "--help"))
        library = ctypes.CDLL(str(self.site / "memtide/libmemtide.so"))
        library.memtide_version.restype = ctypes.c_char_p
        self.assertEqual(library.memtide_version().decode(), version)

    def test_a_script_trains_to_the_same_losses(self):
        train = self.home / "train_gpt.py"
        shutil.copyfile(TRAIN_GPT, train)
        script = self.home / "script.py"
        script.write_text(TRAIN_AND_LIST_LIBRARIES)
        plain, managed = self.home / "plain.jsonl", self.home / "managed.jsonl"
        mapped = self.home / "mapped"
        self.run_program("python", train, *SMALL, "--log", plain)
        self.run_program(
            *("memtide", "run", "--device-pool", "24MiB", "--host-pool", "24MiB"),
            *(script, train, mapped, *SMALL, "--log", managed),
        )
        self.assertEqual(len(losses(plain)), 4)
        self.assertEqual(losses(plain), losses(managed))

        ours, torch = str(self.site), SITE_PACKAGES.read_text().strip()
        libraries = mapped.read_text().splitlines()
        self.assertIn(f"{ours}/memtide/libmemtide.so", libraries)
        for path in libraries:
            if not path.startswith((ours, torch)) and "/lib-dynload/" not in path:
                self.assertNotRegex(path, "grpc|protobuf|absl|uring|spdlog|prometheus|/memtide")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
