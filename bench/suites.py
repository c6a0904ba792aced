"""Runs each benchmark program with its daemon, pools and arguments, and reads its samples."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import daemon_process
import fake_gpu
from figures import TRACES, Pair
from ranks import ranks
from small_pools import fits_cpu, small_pools
from training import (
    activations_on_ssd,
    durable_steps,
    placement,
    resume,
    train_overhead,
    verified_steps,
)

_PROGRAM_TIMEOUT_S = 180.0
Samples = dict[str, list[Pair]]


class SuiteFailed(Exception):
    """A program failed or took too long; the message has its command and its standard error."""


@dataclass(frozen=True)
class Context:
    """The options of every suite. Daemons make their SSD pools in `ssd_parent`."""

    binaries: Path
    root: Path
    ssd_parent: Path
    quick: bool
    smoke: bool  # One short round of everything. Implies quick.

    @property
    def memtided(self) -> Path:
        return self.binaries / "daemon" / "memtided"

    def run(self, program: str, *arguments: str) -> Samples:
        """Runs a program of this folder and reads the samples that it prints."""
        command = [str(self.binaries / "bench" / program), *arguments]
        if self.quick:
            command.append("--quick")
        if self.smoke:
            command.append("--most_rounds=1")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise SuiteFailed(
                f"not done after {error.timeout:.0f} s: {' '.join(command)}"
            ) from None
        if done.returncode != 0:
            raise SuiteFailed(f"{' '.join(command)}\n{done.stderr.strip()}")
        return _samples_of(done.stdout)

    def run_with_daemon(self, program: str, flags: list[str], *arguments: str) -> Samples:
        with daemon_process.running(self.memtided, self.ssd_parent, flags) as daemon:
            return self.run(
                program,
                f"--socket_dir={daemon.socket_dir}",
                f"--daemon={daemon.pid}",
                *(argument.format(ssd_dir=daemon.ssd_dir) for argument in arguments),
            )


def _samples_of(printed: str) -> Samples:
    """The samples that a program printed, one line of JSON for each figure."""
    return {
        figure["figure"]: [
            Pair(pair["limit"], pair["product"], pair["others"]) for pair in figure["pairs"]
        ]
        for figure in map(json.loads, printed.splitlines())
    }


def _engine(context: Context) -> Samples:
    return context.run("engine_bench")


def _copy(context: Context) -> Samples:
    return context.run("copy_bench")


def _hash(context: Context) -> Samples:
    return context.run("hash_bench")


def _staging(context: Context) -> Samples:
    # At the rate of PCIe 3.0 x16.
    return context.run("staging_bench", "--rate_mb_s=12000")


def _ssd(context: Context) -> Samples:
    samples: Samples = {}
    for chunk_mib in (64, 4):
        # ssd_bench leases at most 768 MiB; the other quarter of the pool stays free.
        samples |= context.run_with_daemon(
            "ssd_bench",
            ["--host-pool=1GiB", "--ssd-pool=2GiB"],
            "--ssd_dir={ssd_dir}",
            f"--chunk_mib={chunk_mib}",
        )
    return samples


def _rpc(context: Context) -> Samples:
    return context.run_with_daemon("rpc_bench", ["--host-pool=256MiB", "--no-ssd"])


def _client(context: Context) -> Samples:
    return context.run_with_daemon("client_bench", ["--host-pool=512MiB", "--no-ssd"])


def _idle(context: Context) -> Samples:
    with daemon_process.running(
        context.memtided, context.ssd_parent, ["--host-pool=1GiB"]
    ) as daemon:
        status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="utf-8")
    # RssShmem is left out: it is the memory of the pools.
    kilobytes = sum(int(n) for n in re.findall(r"^Rss(?:Anon|File):\s+(\d+) kB", status, re.M))
    return {"idle.memory": [Pair(0, kilobytes / 1024, 0)]}


def _policy(context: Context) -> Samples:
    command = [
        str(context.binaries / "daemon" / "replay" / "memtide-replay"),
        # A third on the device, a third in host memory, the rest on the SSD.
        *("--json", "--device-slots=33%", "--host-slots=33%"),
        *(str(context.root / "bench" / "traces" / f"{trace}.trace.gz") for trace in TRACES),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S)
    if done.returncode != 0:
        raise SuiteFailed(done.stderr.strip())
    samples: Samples = {}
    for trace, comparison in zip(TRACES, json.loads(done.stdout), strict=True):
        moved = {each["policy"]: each["moved_bytes"] / 2**20 for each in comparison["policies"]}
        for other, mebibytes in moved.items():
            samples[f"policy.{trace}.{other}"] = [Pair(mebibytes, moved["memtide"], 0)]
    return samples


def _plans(context: Context) -> Samples:
    return context.run("activation_plans")


def _activations(context: Context) -> Samples:
    # Its cgroup is of the tests, so only if the suite is run.
    from training import activation_steps

    options = activation_steps.Options(
        memtided=context.memtided,
        script=context.root / "examples" / "train_gpt.py",
        heavy_script=context.root / "tests" / "python" / "scripts" / "activation_heavy.py",
        most_pairs=1 if context.smoke else 6 if context.quick else 12,
        most_seconds=20 if context.quick else 100,
        few=context.quick,
    )
    try:
        return activation_steps.measure(options)
    except (train_overhead.TrainingEnded, subprocess.TimeoutExpired) as error:
        raise SuiteFailed(str(error)) from None


def _activations_on_ssd(context: Context) -> Samples:
    drive = context.run_with_daemon(
        "ssd_bench",
        ["--host-pool=1GiB", "--ssd-pool=2GiB"],
        *("--ssd_dir={ssd_dir}", "--chunk_mib=64"),
    )
    written, read = (
        1e9 * statistics.median(pair.limit for pair in drive[f"ssd.{way}.64"])
        for way in ("write", "read")
    )
    options = activations_on_ssd.Options(
        memtided=context.memtided,
        script=context.root / "tests" / "python" / "scripts" / "activation_heavy.py",
        ssd_parent=context.ssd_parent,
        written_per_second=written,
        read_per_second=read,
    )
    try:
        return {"activations_on_ssd.step": activations_on_ssd.measure(options)}
    except (train_overhead.TrainingEnded, subprocess.TimeoutExpired) as error:
        raise SuiteFailed(str(error)) from None


def _train(context: Context) -> Samples:
    model = ["--layers", "6", "--width", "384"] if context.quick else []
    options = train_overhead.StepOptions(
        script=context.root / "examples" / "train_gpt.py",
        arguments=["--steps", "1000", *model],
        # All states fit on the device, so no chunk is evicted.
        memtide_arguments=["--device-pool", "1280MiB", "--host-pool", "256MiB"],
        most_pairs=1 if context.smoke else 6 if context.quick else 12,
        most_seconds=20 if context.quick else 100,
    )
    try:
        return {"train.step": train_overhead.measure(options)}
    except train_overhead.TrainingEnded as error:
        raise SuiteFailed(str(error)) from None


def _net(context: Context) -> Samples:
    from training import net_steps  # Loads torch, so only if the suite is run.

    try:
        return net_steps.measure(
            net_steps.NetOptions(
                client=context.binaries / "client" / "libmemtide_fake_cuda.so",
                memtided=context.binaries / "daemon" / "memtided_fake_cuda",
                script=context.root / "examples" / "train_gpt.py",
                most_pairs=1 if context.smoke else 7 if context.quick else 15,
                most_seconds=2 if context.smoke else 10 if context.quick else 30,
                only_smallest=context.smoke,
            )
        )
    except (train_overhead.TrainingEnded, fake_gpu.NotBuilt) as error:
        raise SuiteFailed(str(error)) from None


def _gpu_model(context: Context) -> Samples:
    import gpu_model

    try:
        return gpu_model.measure(context.binaries, context.root, 3 if context.smoke else 14)
    except (gpu_model.NotPlayed, fake_gpu.NotBuilt) as error:
        raise SuiteFailed(str(error)) from None


def _compiled(context: Context) -> Samples:
    from training import compiled_steps  # Loads torch, so only if the suite is run.

    try:
        return compiled_steps.measure(
            fake_gpu.Options(
                client=context.binaries / "client" / "libmemtide_fake_cuda.so",
                memtided=context.binaries / "daemon" / "memtided_fake_cuda",
                script=context.root / "examples" / "train_gpt.py",
                most_pairs=1 if context.smoke else 7 if context.quick else 15,
                most_seconds=2 if context.smoke else 15 if context.quick else 40,
            )
        )
    except (train_overhead.TrainingEnded, fake_gpu.NotBuilt) as error:
        raise SuiteFailed(str(error)) from None


def _placement(context: Context) -> Samples:
    model = ["--layers", "6", "--width", "384"] if context.quick else []
    options = placement.PlacementOptions(
        memtided=context.memtided,
        ssd_parent=context.ssd_parent,
        script=context.root / "examples" / "train_gpt.py",
        arguments=model,
        steps=6 if context.quick else 9,
        turns=1 if context.quick else 3,
    )
    try:
        return placement.measure(options)
    except subprocess.CalledProcessError as error:
        raise SuiteFailed(str(error)) from None


def _small_pools(context: Context) -> Samples:
    options = small_pools.SmallPoolOptions(
        ssd_parent=context.ssd_parent,
        pairs=1 if context.smoke else 5 if context.quick else 15,
        seconds=5 if context.quick else 12,
    )
    if context.smoke:
        options = replace(options, models=("vae",))
    try:
        return {**small_pools.measure(options), **small_pools.count(options)}
    except (train_overhead.TrainingEnded, subprocess.CalledProcessError) as error:
        raise SuiteFailed(str(error)) from None


def _fits(context: Context) -> Samples:
    try:
        return fits_cpu.measure(1 if context.smoke else 5 if context.quick else 20)
    except subprocess.CalledProcessError as error:
        raise SuiteFailed(str(error)) from None


def _ranks(context: Context) -> Samples:
    options = ranks.RankOptions(
        memtided=context.memtided,
        ssd_parent=context.ssd_parent,
        steps=6 if context.smoke else 12,
        trials=1 if context.smoke else 20 if context.quick else 200,
    )
    try:
        return ranks.measure(options)
    except ranks.RanksFailed as error:
        raise SuiteFailed(str(error)) from None


def _resume(context: Context) -> Samples:
    model = ["--layers", "6", "--width", "384"] if context.quick else []
    script = [str(context.root / "examples" / "train_gpt.py"), *model]
    try:
        pairs = resume.measure(
            context.memtided, context.ssd_parent, script, 1 if context.quick else 3
        )
    except resume.ResumeFailed as error:
        raise SuiteFailed(str(error)) from None
    return {"resume.first_step": pairs}


def _verify(context: Context) -> Samples:
    return _of_named_runs(context, verified_steps.measure, 3 if context.smoke else 12, 7)


def _durable(context: Context) -> Samples:
    return _of_named_runs(context, durable_steps.measure, 10 if context.smoke else 20, 6)


def _of_named_runs(
    context: Context, measure: Callable[[resume.NamedRuns], Samples], steps: int, rounds: int
) -> Samples:
    """The samples of `measure` for the demo's GPT: in `rounds` rounds, or fewer to be quick."""
    model = ["--layers", "6", "--width", "384"] if context.quick else []
    runs = resume.NamedRuns(
        memtided=context.memtided,
        ssd_parent=context.ssd_parent,
        script=[str(context.root / "examples" / "train_gpt.py"), *model],
        steps=steps,
        rounds=1 if context.smoke else 3 if context.quick else rounds,
    )
    try:
        return measure(runs)
    except resume.ResumeFailed as error:
        raise SuiteFailed(str(error)) from None


def _balloon(context: Context) -> Samples:
    import balloon_latency  # Loads the client's library, so only if the suite is run.

    rounds = 1 if context.quick else 3
    try:
        return balloon_latency.measure(context.memtided, context.ssd_parent, rounds)
    except balloon_latency.NotReclaimed as error:
        raise SuiteFailed(str(error)) from None


def _losses(context: Context) -> Samples:
    # Loads torch, which takes seconds and memory, so only if the suite is run.
    from training import losses

    return losses.measure(2 if context.smoke else 100 if context.quick else losses.STEPS)


def _steps(context: Context) -> Samples:
    from training import ssd_steps  # As above.

    options = ssd_steps.Options(
        memtided=context.memtided,
        ssd_parent=context.ssd_parent,
        sets=24 if context.smoke else 40 if context.quick else 64,
        rounds=1 if context.smoke else 2 if context.quick else 5,
    )
    return ssd_steps.measure(options)


def _peers(context: Context) -> Samples:
    command = [str(context.root / "bench" / "peers" / "peers")]
    if context.quick:
        command.append("--rounds=2")
    # It inherits standard error, where it reports what it installs and what each run cost.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SuiteFailed(f"{command[0]} ended with status {done.returncode}")
    return _samples_of(done.stdout)


SUITES: dict[str, Callable[[Context], Samples]] = {
    "engine": _engine,
    "policy": _policy,
    "plans": _plans,
    "activations": _activations,
    "activations_on_ssd": _activations_on_ssd,
    "idle": _idle,
    "rpc": _rpc,
    "client": _client,
    "copy": _copy,
    "hash": _hash,
    "staging": _staging,
    "losses": _losses,
    "ssd": _ssd,
    "steps": _steps,
    "train": _train,
    "net": _net,
    "compiled": _compiled,
    "gpu-model": _gpu_model,
    "placement": _placement,
    "small_pools": _small_pools,
    "fits": _fits,
    "ranks": _ranks,
    "resume": _resume,
    "verify": _verify,
    "durable": _durable,
    "balloon": _balloon,
    "peers": _peers,
}
# Suites that run only if --only names them: tools/setup does not install what "peers" needs,
# "activations" takes 20 minutes, "activations_on_ssd" 20, and "durable" 15. "gpu-model" measures no
# machine.
BY_NAME_ONLY = {"activations", "activations_on_ssd", "durable", "gpu-model", "peers"}
