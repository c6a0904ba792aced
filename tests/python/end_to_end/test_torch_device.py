"""torch has a device over the fake CUDA (tests/fake_device), which behaves as a GPU does."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import SCRIPTS, Cli, Outcome
from stepping_script import node_daemon

_BEGIN = "import ctypes, time, torch\n"


Run = Callable[..., Outcome]


@pytest.fixture
def run(cli: Cli, fake_device: dict[str, str]) -> Run:
    """Runs code that has torch, with more settings of the fake CUDA."""

    def run(code: str, settings: str = "delay_us=50") -> Outcome:
        cuda = ",".join([fake_device["MEMTIDE_FAKE_CUDA"], settings])
        return cli.python("-c", _BEGIN + code, **{**fake_device, "MEMTIDE_FAKE_CUDA": cuda})

    return run


def test_kernels_run_later_than_they_are_launched(run: Run) -> None:
    outcome = run(
        """
x = torch.zeros(1000, device="fakegpu")
torch.fakegpu.synchronize()
begun = time.monotonic()
x += 1
launched = time.monotonic()
assert x.sum().item() == 1000
done = time.monotonic()
print(launched - begun < 0.2 < done - begun)
""",
        "delay_us=300000",
    )
    assert outcome.check().out == "True\n"


def test_the_host_cannot_read_device_memory(run: Run) -> None:
    code = 'x = torch.ones(9, device="fakegpu"); print(ctypes.string_at(x.data_ptr(), 1))'
    assert run(code).status == -signal.SIGSEGV


def test_memory_is_freed_under_no_kernel(run: Run) -> None:
    outcome = run(
        """
x = torch.ones(4 << 20, device="fakegpu")
y = x + 1
del x
torch.fakegpu.empty_cache()
assert y.sum().item() == 2 * 4 << 20
""",
        "delay_us=100000",
    )
    outcome.check()


def test_running_out_of_memory_is_torchs_error(run: Run) -> None:
    outcome = run("""
kept = torch.empty(200 << 20, dtype=torch.uint8, device="fakegpu")
try:
    torch.empty(80 << 20, dtype=torch.uint8, device="fakegpu")
except torch.OutOfMemoryError as error:
    print(error)
del kept
torch.empty(80 << 20, dtype=torch.uint8, device="fakegpu")
""")
    assert "Tried to allocate 80.0" in outcome.check().out


def test_the_allocator_can_be_limited_to_a_part_of_the_device(run: Run) -> None:
    outcome = run("""
torch.fakegpu.set_per_process_memory_fraction(0.25)
kept = torch.empty(40 << 20, dtype=torch.uint8, device="fakegpu")
try:
    torch.empty(30 << 20, dtype=torch.uint8, device="fakegpu")
except torch.OutOfMemoryError as error:
    print(error)
del kept
torch.empty(60 << 20, dtype=torch.uint8, device="fakegpu")
try:
    torch.fakegpu.set_per_process_memory_fraction(1.5)
except ValueError as error:
    print(error)
print(torch.fakegpu.memory_reserved() >> 20)
""")
    shortage, invalid, reserved = outcome.check().out.splitlines()
    assert "Tried to allocate 30.0" in shortage
    assert "Allowed range: 0~1" in invalid
    assert reserved == "60", "the cache was emptied first"


def test_emptying_the_cache_frees_what_no_tensor_uses(run: Run) -> None:
    outcome = run("""
free, total = torch.fakegpu.mem_get_info()
x = torch.empty(80 << 20, dtype=torch.uint8, device="fakegpu")
assert torch.fakegpu.mem_get_info()[0] == free - (80 << 20)
assert torch.fakegpu.memory_allocated() == 80 << 20
del x
assert torch.fakegpu.mem_get_info()[0] == free - (80 << 20)
torch.fakegpu.empty_cache()
assert torch.fakegpu.mem_get_info()[0] == free
""")
    outcome.check()


def test_a_transformer_trains_as_on_the_cpu(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path
) -> None:
    losses = []
    for device in ("cpu", "fakegpu"):
        result = tmp_path / device
        cli.python(SCRIPTS / "on_device.py", device, 4, RESULT=result, **fake_device).check()
        losses.append([float.fromhex(loss) for loss in json.loads(result.read_text())["losses"]])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_bf16_trains_on_it_as_on_the_cpu(run: Run) -> None:
    outcome = run("""
def losses(device):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.BatchNorm1d(4), torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.GELU(),
        torch.nn.LayerNorm(32), torch.nn.Linear(32, 4, bias=False),
    ).to(device, torch.bfloat16)
    attention = torch.nn.MultiheadAttention(16, 2, batch_first=True).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW([*net.parameters(), *attention.parameters()], lr=1e-2)
    x = torch.randn(8, 4, 16).to(device, torch.bfloat16)
    for _ in range(4):
        optimizer.zero_grad()
        mixed = attention(x, x, x, need_weights=False)[0]
        loss = torch.nn.functional.cross_entropy(net(mixed).float(), torch.arange(8).to(device) % 4)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        yield loss.item()

print(list(losses("cpu")))
print(list(losses("fakegpu")))
""")
    on_cpu, on_device = (json.loads(line) for line in outcome.check().out.splitlines())
    assert on_cpu[-1] < on_cpu[0]
    assert on_cpu == pytest.approx(on_device, rel=0.02)


# In 64 MiB all fits, and one lease holds all chunks.
@pytest.mark.parametrize(("pool_mib", "fits"), [(20, False), (64, True)])
def test_memtide_gives_the_same_bits_on_it(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path, pool_mib: int, fits: bool
) -> None:
    script = [SCRIPTS / "on_device.py", "fakegpu", 5]
    cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
    outcome = cli.memtide(
        "run",
        "--device=cuda",
        f"--device-pool={pool_mib}MiB",
        "--host-pool=24MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        f"--stats={tmp_path / 'stats'}",
        *script,
        RESULT=tmp_path / "offloaded",
        **fake_device,
    ).check()
    assert "emptied 0 times" in outcome.out
    plain, offloaded, statistics = (
        json.loads((tmp_path / name).read_text()) for name in ("plain", "offloaded", "stats")
    )
    assert offloaded == plain
    assert statistics["kinds"]["parameter"]["allocated_bytes"] > 0
    assert (statistics["moved_bytes"]["host_to_device_bytes"] == 0) == fits


def test_passes_without_gradients_run_without_dispatch_where_all_fits(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path
) -> None:
    operations = {}
    for passes in (2, 42):
        script = [SCRIPTS / "evaluating.py", "fakegpu", passes]
        cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
        cli.memtide(
            *("run", "--device=cuda", "--device-pool=96MiB", "--host-pool=96MiB"),
            *(f"--ssd-dir={tmp_path / 'ssd'}", f"--stats={tmp_path / 'stats'}"),
            *script,
            RESULT=tmp_path / "offloaded",
            **fake_device,
        ).check()
        assert (tmp_path / "offloaded").read_text() == (tmp_path / "plain").read_text()
        statistics = json.loads((tmp_path / "stats").read_text())
        operations[passes] = statistics["hooks"]["operations"]
    # A pass has some 100, and there are four times as many passes. A covered one reads the memory's
    # statistics, an operation of this device, and so do moments of training, by the clock.
    assert operations[42] - operations[2] < 40 * 100


@pytest.mark.parametrize(
    "more",
    [("--job", "gpt"), ("--skip-non-finite",), ("--optimizer-on", "host")],
    ids=lambda m: m[0],
)
def test_what_is_asked_for_in_parts_is_stepped_on_the_host(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path, more: tuple[str, ...]
) -> None:
    script = [SCRIPTS / "on_device.py", "fakegpu", 5]
    cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
    with node_daemon(
        tmp_path / "ssd", "--device-pool=20MiB", device="cuda", host_pool="128MiB"
    ) as home:
        cli.memtide(
            *("run", f"--socket-dir={home}", f"--stats={tmp_path / 'stats'}", *more),
            *script,
            RESULT=tmp_path / "offloaded",
            **fake_device,
        ).check()
    plain, offloaded, statistics = (
        json.loads((tmp_path / name).read_text()) for name in ("plain", "offloaded", "stats")
    )
    # Torch chooses other functions for tensors on a device, and other bits with them.
    for ours, theirs in zip(offloaded["losses"], plain["losses"], strict=True):
        assert float.fromhex(ours) == pytest.approx(float.fromhex(theirs), rel=1e-5)
    assert statistics["offloaded_steps"] == 5


# In 48 MiB not all states fit, and in 160 they do.
@pytest.mark.parametrize(("limit_mib", "fits"), [(48, False), (160, True)])
def test_a_script_and_its_pool_stay_within_device_memory(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path, limit_mib: int, fits: bool
) -> None:
    script = [SCRIPTS / "on_device.py", "fakegpu", 6]
    alone = cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
    outcome = cli.memtide(
        *("run", "--device=cuda", "--host-pool=96MiB", "--ssd-pool=256MiB"),
        *(f"--device-memory={limit_mib}MiB", f"--ssd-dir={tmp_path / 'ssd'}"),
        f"--stats={tmp_path / 'stats'}",
        *script,
        RESULT=tmp_path / "limited",
        **fake_device,
    ).check()
    assert (tmp_path / "limited").read_text() == (tmp_path / "plain").read_text()
    # By the device, of which the pool and torch's allocator take their memory.
    assert _most_used_bytes(alone) > 48 << 20
    assert _most_used_bytes(outcome) <= limit_mib << 20
    statistics = json.loads((tmp_path / "stats").read_text())
    assert statistics["budget"]["device_bytes"] == limit_mib << 20
    assert statistics["budget"]["device_most_used_bytes"] <= limit_mib << 20
    assert (statistics["moved_bytes"]["host_to_device_bytes"] == 0) == fits


def test_a_script_that_the_gpu_cannot_hold_trains_without_a_flag(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path
) -> None:
    script = [SCRIPTS / "on_device.py", "fakegpu", 5, 0, 48, 8]
    larger = fake_device["MEMTIDE_FAKE_CUDA"].replace("memory=256MiB", "memory=1GiB")
    plain = {"RESULT": tmp_path / "plain", **fake_device, "MEMTIDE_FAKE_CUDA": larger}
    needed_bytes = _most_used_bytes(cli.python(*script, **plain).check())
    assert needed_bytes > 256 << 20
    outcome = cli.memtide(
        *("run", "--device=cuda", "--host-pool=512MiB", "--ssd-pool=256MiB"),
        *(f"--ssd-dir={tmp_path / 'ssd'}", f"--stats={tmp_path / 'stats'}"),
        *script,
        RESULT=tmp_path / "managed",
        **fake_device,
    ).check()
    assert (tmp_path / "managed").read_text() == (tmp_path / "plain").read_text()
    assert "of GPU memory that are there for it" in outcome.err
    budget = json.loads((tmp_path / "stats").read_text())["budget"]
    assert budget["activations"]["moved_bytes"] > 0
    assert budget["device_most_used_bytes"] <= 256 << 20


def _most_used_bytes(outcome: Outcome) -> int:
    match = re.search(r"used at most (\d+) bytes", outcome.out)
    assert match, outcome.out
    return int(match.group(1))


def test_with_an_older_driver_only_the_streams_of_torch_are_waited_for(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path
) -> None:
    script = [SCRIPTS / "on_device.py", "fakegpu", 5]
    alone = cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
    older = ",".join([fake_device["MEMTIDE_FAKE_CUDA"], "driver=no-context-events"])
    outcome = cli.memtide(
        "run",
        "--device=cuda",
        "--device-pool=20MiB",
        "--host-pool=24MiB",
        "--ssd-pool=256MiB",
        f"--ssd-dir={tmp_path / 'ssd'}",
        *script,
        RESULT=tmp_path / "offloaded",
        **{**fake_device, "MEMTIDE_FAKE_CUDA": older},
    ).check()
    plain, offloaded = ((tmp_path / name).read_text() for name in ("plain", "offloaded"))
    assert offloaded == plain
    assert alone.out.splitlines()[-1] in outcome.out, "not one wait more"


# The second optimizer of an iteration steps after the covered phase has ended.
@pytest.mark.parametrize("pool_mib", [12, 96])
def test_two_optimizers_in_turns_give_the_same_bits_on_it(
    cli: Cli, fake_device: dict[str, str], tmp_path: Path, pool_mib: int
) -> None:
    script = [SCRIPTS / "gan_on_device.py", "fakegpu", 8]
    cli.python(*script, RESULT=tmp_path / "plain", **fake_device).check()
    cli.memtide(
        *("run", "--device=cuda", "--host-pool=96MiB", "--ssd-pool=64MiB"),
        *(f"--device-pool={pool_mib}MiB", f"--ssd-dir={tmp_path / 'ssd'}"),
        *script,
        RESULT=tmp_path / "managed",
        **fake_device,
    ).check()
    assert (tmp_path / "managed").read_text() == (tmp_path / "plain").read_text()
