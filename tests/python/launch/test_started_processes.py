"""Each process that trains under `memtide run` is managed, or says at its first step why not."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import memtide._launch.on_path
import pytest
from harness import PACKAGE_PARENT, SCRIPTS, Cli
from stepping_script import node_daemon

_STARTS = Path(__file__).with_name("starts.py")
_ON_PATH = Path(memtide._launch.on_path.__file__).parent
_POOLS = ("--device=none", "--host-pool=32MiB", "--ssd-pool=256MiB")
_TRAINS = """
import os, sys, torch
def train(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 512)).square().mean().backward()
        optimizer.step()
        print("step", step + 1, file=sys.stderr, flush=True)
def make(): return torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 8))
"""
_FORKS_LATE = f"""{_TRAINS}
model = make()
child = os.fork()
if child == 0:
    train(make())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
_INHERITS_A_MODEL = f"""{_TRAINS}
import multiprocessing
class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
model = make()
for use in lambda: train(model), Around:
    process = multiprocessing.get_context("fork").Process(target=use)
    process.start()
    process.join()
    assert process.exitcode == 1
"""
_CHANGES_ENVIRONMENT = f"""
import os, subprocess, sys
env = {{name: value for name, value in os.environ.items() if name != "MEMTIDE_RUN"}}
subprocess.run([sys.executable, "-c", {_TRAINS + "train(make())"!r}], env=env, check=True)
"""
_HAS_NO_MEMTIDE = f"""
import os, subprocess, sys
env = dict(os.environ, PYTHONPATH={str(_ON_PATH)!r})
subprocess.run([sys.executable, "-c", {_TRAINS + "train(make())"!r}], env=env, check=True)
"""
_IS_KILLED = f"""
import subprocess, sys
code = {_TRAINS + "train(make()); os._exit(0)"!r}
subprocess.run([sys.executable, "-c", code], check=True)
"""
_KEEPS_THE_DEVICE = f"""{_TRAINS}
import subprocess
model = make()
subprocess.run([sys.executable, "-c", {_TRAINS + "train(make())"!r}], check=True)
"""
_TRAINS_NOTHING_LARGE = """
import sys, torch
weight = torch.ones(8, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for step in range(3):
    weight.sum().backward()
    optimizer.step()
    print("step", step + 1, file=sys.stderr, flush=True)
"""
_STARTS_HELPERS = """
import os, subprocess, sys
import torch
from torch.utils.data import DataLoader
class Ones(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        assert torch.utils.data.get_worker_info() is not None
        return torch.nn.Identity()(torch.ones(512))
helper = "import sys, torch; torch.nn.Identity()(torch.ones(1)); print(sorted(sys.modules))"
imported = subprocess.check_output([sys.executable, "-c", helper], text=True)
assert "'memtide._launch.started_process'" in imported
assert "'memtide._launch.managed_process'" not in imported
assert "memtide" not in subprocess.check_output(
    [sys.executable, "-c", "import sys; print(*sys.modules)"], text=True
)
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters())
for batch in DataLoader(Ones(), batch_size=4, num_workers=1):
    model(batch).square().mean().backward()
    optimizer.step()
"""
_LAUNCHES_RANKS = """
import os, subprocess, sys
count = 2
children = []
for rank in range(int(sys.argv.pop(1)), count):
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    env = {**os.environ, **{name: str(value) for name, value in ranks.items()}}
    children.append(subprocess.Popen([sys.executable, "-u", *sys.argv[1:]], env=env))
assert not any(child.wait() for child in children)
"""
# As Lightning's ddp: rank 0 makes the model, and then starts the other ranks by its own command.
_STARTS_ITSELF = """
import os, subprocess, sys, torch
import torch.distributed as dist
sys.path.insert(0, os.environ["SCRIPTS"])
from common import finish
rank = int(os.environ.get("LOCAL_RANK", "0"))
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
others = []
if rank == 0:
    env = dict(os.environ, LOCAL_RANK="1", WORLD_SIZE="2")
    others = [subprocess.Popen([sys.executable, *sys.argv], env=env)]
dist.init_process_group("gloo", f"file://{os.environ['RESULT']}.met", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for step in range(4):
    torch.manual_seed(step * 2 + rank)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 512)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
dist.barrier()
if rank == 0:
    finish(losses)
    if "AT_END" in os.environ:
        subprocess.run([sys.executable, *os.environ["AT_END"].split()], check=True)
dist.barrier()
dist.destroy_process_group()
assert not any(other.wait() for other in others)
"""


def _losses(result: Path) -> list[float]:
    return [float.fromhex(each) for each in json.loads(result.read_text())["losses"]]


def _assert_equal_losses(ours: Path, plain: Path) -> None:
    assert _losses(ours) == pytest.approx(_losses(plain), rel=1e-5)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of the script that the processes train."""
    folder = tmp_path_factory.mktemp("plain")
    Cli(folder).python(SCRIPTS / "mlp_sgd.py", RESULT=folder / "result").check()
    return folder / "result"


@pytest.mark.parametrize(
    "ways",
    [
        ["subprocess -I", "subprocess of a subprocess", "subprocess with variables", "exec"],
        ["forkserver", "spawn", "torch.multiprocessing.Process"],
        ["os.fork", "fork", "start_processes fork"],
    ],
    ids=["new programs", "new interpreters", "forks"],
)
def test_started_processes_are_managed(
    ways: list[str], plain: Path, cli: Cli, tmp_path: Path
) -> None:
    ours, stats = tmp_path / "ours", tmp_path / "stats"
    run = ["run", *_POOLS, f"--stats={stats}", _STARTS, SCRIPTS / "mlp_sgd.py", *ways]
    done = cli.memtide(*run, RESULT=ours).check()
    for number in range(len(ways)):
        _assert_equal_losses(Path(f"{ours}{number}"), plain)
    assert "managed nothing" not in done.err
    assert "without memtide" not in done.err
    assert done.err.count("chunks leased") == len(ways)
    assert done.err.count("--stats: of process") == len(ways) - 1
    statistics = json.loads(stats.read_text())
    assert statistics["iterations"] == 6
    assert statistics["chunks"] > 0


@pytest.mark.parametrize(
    "device",
    [
        [],
        ["--device=emulated", "--device-pool=32MiB"],
        ["--device=emulated:2", "--device-pool=16MiB"],
    ],
)
def test_ranks_of_any_launcher_divide_the_pools(
    device: list[str], cli: Cli, tmp_path: Path
) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text(_LAUNCHES_RANKS, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free.getsockname()[1]}
    script = [launcher, "0", SCRIPTS / "data_parallel.py"]
    plain, ours, stats = (tmp_path / name for name in ("plain", "ours", "stats"))
    cli.python(*script, RESULT=plain, **meeting).check()
    pools = [*(device or _POOLS[:1]), "--host-pool=64MiB", "--ssd-pool=1GiB"]
    done = cli.memtide("run", *pools, f"--stats={stats}", *script, RESULT=ours, **meeting).check()
    _assert_equal_losses(ours, plain)
    assert "without memtide" not in done.err
    assert done.err.count("chunks leased") == 1
    assert json.loads(stats.read_text())["iterations"] == 6


def test_a_rank_that_starts_the_others_is_one_of_them(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "itself.py"
    script.write_text(_STARTS_ITSELF, encoding="utf-8")
    plain, ours, stats = (tmp_path / name for name in ("plain", "ours", "stats"))
    more = {"SCRIPTS": SCRIPTS}
    cli.python(script, RESULT=plain, **more).check()
    pools = ["--device=none", "--host-pool=64MiB", "--ssd-pool=256MiB", f"--stats={stats}"]
    done = cli.memtide("run", *pools, script, RESULT=ours, **more).check()
    _assert_equal_losses(ours, plain)
    assert "without memtide" not in done.err
    assert done.err.count("chunks leased") == 1
    kinds = json.loads(stats.read_text())["kinds"]
    # Both ranks' states were in chunks of the one daemon; rank 1 may have ended first.
    assert kinds["optimizer_state"]["allocated_bytes"] > 0


def test_a_rank_that_made_its_model_before_shares_it_with_the_others(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "itself.py"
    script.write_text(_STARTS_ITSELF, encoding="utf-8")
    plain, ours = (tmp_path / name for name in ("plain", "ours"))
    cli.python(script, RESULT=plain, SCRIPTS=SCRIPTS).check()
    with node_daemon(tmp_path / "ssd", "--no-host-reserve", host_pool="128MiB") as sockets:
        more = {"SCRIPTS": SCRIPTS, "MEMTIDE_SOCKET_DIR": sockets}
        more["AT_END"] = f"-m memtide status --socket-dir={sockets}"
        done = cli.memtide("run", script, RESULT=ours, **more).check()
    _assert_equal_losses(ours, plain)
    assert "shares nothing" not in done.err
    rows = re.findall(r"(\d) of 2 +\d+ +([\d.]+) MiB +([\d.]+) MiB", done.out)
    assert [int(rank) for rank, *_ in rows] == [0, 1], done.out
    for _, contents, shared in rows:
        assert 16 <= float(shared) <= float(contents), done.out


def test_a_forked_process_cannot_use_a_model_in_chunks_and_says_why(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_INHERITS_A_MODEL, encoding="utf-8")
    done = cli.memtide("run", *_POOLS, script).check()
    reasons = re.findall("FailedPrecondition: this process was forked from process", done.err)
    assert len(reasons) == 2
    assert "step 1" not in done.err


@pytest.mark.parametrize(
    ("script", "flags", "reason"),
    [
        (_FORKS_LATE, _POOLS, "trains without memtide: it was forked from process"),
        (_CHANGES_ENVIRONMENT, _POOLS, "without MEMTIDE_RUN in its environment"),
        (_HAS_NO_MEMTIDE, _POOLS, "cannot import memtide"),
        (
            _KEEPS_THE_DEVICE,
            ("--device=emulated", "--device-pool=16MiB", *_POOLS[1:]),
            "trains without memtide: the device/0 pool has 0 B free",
        ),
        (_TRAINS_NOTHING_LARGE, _POOLS, "memtide managed nothing"),
    ],
    ids=["forked late", "environment", "no memtide", "device is taken", "too small"],
)
def test_a_process_that_is_not_managed_says_so_at_its_first_step(
    script: str, flags: tuple[str, ...], reason: str, cli: Cli, tmp_path: Path
) -> None:
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    if script is _CHANGES_ENVIRONMENT:  # The process looks for the command line of `memtide run`.
        cli = cli.in_new_interpreters()
    done = cli.memtide("run", *flags, file).check()
    before_second_step, _, _ = done.err.partition("step 2")
    assert before_second_step.count(reason) == 1
    assert "step 3" in done.err


_FORKS_AFTER_A_LARGE_MODEL = """
import os
import torch

torch.nn.Linear(512, 512)  # Torch divides a copy of so many elements between threads.
child = os.fork()
if child == 0:
    torch.nn.Linear(512, 512)(torch.ones(64, 512)).sum().backward()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_model_in_chunks_leaves_torch_usable_in_a_forked_process(
    cli: Cli, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_FORKS_AFTER_A_LARGE_MODEL, encoding="utf-8")
    # The child of a process with torch's threads would wait for them without end.
    cli.memtide("run", *_POOLS, script, OMP_NUM_THREADS=2).check()


def test_processes_that_do_not_train_run_nothing_and_say_nothing(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_STARTS_HELPERS, encoding="utf-8")
    done = cli.memtide("run", *_POOLS, script).check()
    assert "without memtide" not in done.err
    assert done.err.count("chunks leased") == 1


def test_the_run_says_that_the_process_which_writes_its_files_was_killed(
    cli: Cli, tmp_path: Path
) -> None:
    script, stats = tmp_path / "script.py", tmp_path / "stats"
    script.write_text(_IS_KILLED, encoding="utf-8")
    flags = (f"--stats={stats}", f"--trace={tmp_path / 'trace.json'}")
    done = cli.memtide("run", *_POOLS, *flags, script).check()
    steps = json.loads(stats.read_text(encoding="utf-8"))["iterations"]
    assert f"its summary is of its first {steps} steps, and there is no --trace of it" in done.err
    assert f"{steps} steps of" in done.err, "the summary is printed"
    assert "managed nothing" not in done.err


def test_what_outlives_its_run_says_so(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_TRAINS + "train(make())", encoding="utf-8")
    path = os.pathsep.join([str(PACKAGE_PARENT), str(_ON_PATH)])
    done = cli.python(script, PYTHONPATH=path, MEMTIDE_RUN=tmp_path / "gone").check()
    before_second_step, _, _ = done.err.partition("step 2")
    assert "the memtide run that started it has ended" in before_second_step


def test_torch_without_a_run_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_TRAINS + "train(make())", encoding="utf-8")
    path = os.pathsep.join([str(PACKAGE_PARENT), str(_ON_PATH)])
    done = cli.python(script, PYTHONPATH=path).check()
    assert done.err == "".join(f"step {step}\n" for step in (1, 2, 3))
