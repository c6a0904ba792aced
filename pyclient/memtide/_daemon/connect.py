"""Connects to the node's daemon, or to a private one that it starts."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from memtide._capi.client import Client, default_chunk_bytes
from memtide._capi.library import Options
from memtide._capi.locate import default_socket_dir
from memtide._capi.lost_chunks import NamesIn, no_names
from memtide._daemon import gpus, inspection, least_pools, training
from memtide._daemon.job_sessions import wait_until_free
from memtide._daemon.memory_budget import MemoryBudget, budget_of_cgroup
from memtide._daemon.private_daemon import Pools, PrivateDaemon, answers
from memtide._daemon.training import Training
from memtide._memory import chunk_size
from memtide._memory.chunk_size import Parameter
from memtide.errors import FailedPrecondition, ResourceExhausted, Unavailable

# With fewer slots of host memory, the daemon opens no job: a step part uses a dozen at a time.
_LEAST_HOST_SLOTS = 12


@dataclass(frozen=True)
class SessionRequest:
    """The daemon and the session that a process asks for."""

    pools: Pools = field(default_factory=Pools)
    # It excludes the pools that it limits (MemoryBudget.check). A limit means a private daemon.
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    socket_dir: Path | None = None
    chunk_bytes: int = 0  # 0: the best size for `parameters`; without any, the library's default.
    parameters: tuple[Parameter, ...] = ()
    job_name: str = ""  # A named job outlives this process, so it needs the node's daemon.
    time_to_live_s: int = 0
    durable_every: int = 0  # A named job's steps of this number outlive the machine.
    host_share_bytes: int = 0
    device_share_bytes: int = 0
    # Number of processes that train together on this node. Each is on one device and gets an equal
    # part of its pool; their host shares are elastic.
    ranks: int = 1
    rank: int = 0  # This process's number among them, and that of its device.
    # No other process uses a daemon that is started for this one.
    is_alone: bool = False
    names_in: NamesIn = no_names  # Names the parameters of a chunk that is lost.


@dataclass
class Connection:
    """An open session, and the private daemon that it is with, if there is one."""

    client: Client
    socket_dir: Path
    daemon: PrivateDaemon | None
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    training: Training | None = None  # The session is one of its several ranks.
    is_named: bool = False  # The job has a name.

    @property
    def shares_contents(self) -> bool:
        """Whether other sessions of the user may share contents with this one: they use the same
        daemon, which is no private one of this process. Ranks that share their job, and named
        jobs, share none with others."""
        return self.daemon is None and self.training is None and not self.is_named


@dataclass
class Reached:
    """A daemon that answers, and what was asked for."""

    request: SessionRequest
    socket_dir: Path
    daemon: PrivateDaemon | None  # It ends with this process.


def connect(request: SessionRequest) -> Connection:
    """Opens a session with the daemon that `reach` finds or starts. A private daemon's only user is
    this process, of whatever rank.

    The exceptions are those of `reach` and `open_session`.
    """
    reached = reach(replace(request, is_alone=True))
    try:
        return open_session(reached, replace(reached.request, ranks=1) if reached.daemon else None)
    except BaseException:
        if reached.daemon is not None:
            reached.daemon.stop()
        raise


def reach(request: SessionRequest) -> Reached:
    """Finds the node's daemon if it answers and the request names no pools; else starts a private
    daemon, which ends with this process. Where this process's cgroup has a memory limit and neither
    pools nor a budget are asked for, the limit is the budget.

    UsageError: the budget or a pool is too small. Unavailable, NotInstalled: the message has the
    remedy.
    """
    request.budget.check(request.pools)
    request = _limited_by_cgroup(request)
    if request.job_name:
        return Reached(request, _named_job_socket_dir(request), None)
    socket_dir, daemon = find_or_start(request)
    if daemon is not None:
        atexit.register(daemon.stop)
    return Reached(request, socket_dir, daemon)


def open_session(reached: Reached, request: SessionRequest | None = None) -> Connection:
    """Opens a session with a daemon, as `request` says, or as was asked for when it was reached. A
    rank of several gets its part of the device.

    ResourceExhausted: the message has the remedy. FailedPrecondition: another process runs the job.
    """
    request, socket_dir = request or reached.request, reached.socket_dir
    node = inspection.inspect(socket_dir, sessions=True)
    if request.job_name and _has_own_job(request, node):
        wait_until_free(socket_dir, _own_job_name(request), 0, 1)
    elif request.job_name:
        wait_until_free(socket_dir, request.job_name, request.rank, request.ranks)
    shared = None
    if request.ranks > 1:
        request, shared = _one_rank_of(request, socket_dir, node)
    client = None
    if shared is not None:
        client = _open_with_ranks(request, shared, socket_dir, node)
        shared = shared if client is not None else None
    client = client or _open(_options(request, socket_dir, node), request, node)
    is_named = bool(request.job_name)
    budget = request.budget
    if not client.properties.handles_faults:  # A GPU.
        budget = replace(budget, sharing_what_is_free=_ranks_on_device(request, node))
    elif not budget.named() and not client.properties.device_slots:
        budget = MemoryBudget(sharing_what_is_free=request.ranks)
    return Connection(client, socket_dir, reached.daemon, budget, shared, is_named)


def finds_daemon(request: SessionRequest) -> bool:
    """Whether `connect` would use a daemon that is running already."""
    asks = request.pools.named() or request.budget.named()
    return not asks and answers(request.socket_dir or default_socket_dir())


def find_or_start(request: SessionRequest) -> tuple[Path, PrivateDaemon | None]:
    """The socket directory of the daemon that `connect` would use, and the private daemon, if that
    is one; the caller stops it.

    UsageError: a pool is too small. Unavailable, NotInstalled: the message has the remedy.
    """
    if finds_daemon(request):
        return request.socket_dir or default_socket_dir(), None
    pools = request.budget.divided(request.pools)
    if request.is_alone:
        pools = gpus.of_one_process(pools, request.rank)
    least_pools.check(pools, chunk_bytes=request.chunk_bytes)
    daemon = PrivateDaemon.start(pools, request.socket_dir)
    return daemon.socket_dir, daemon


def _open(options: Options, request: SessionRequest, node: inspection.Node) -> Client:
    try:
        return Client(options, request.names_in)
    except ResourceExhausted:
        # The daemon knows one session at a time, and not what all ranks need.
        capacities = {p.tier: p.capacity_bytes for p in _pools_of(request.rank, node)}
        pools = Pools(capacities.get("device"), capacities.get("host"), capacities.get("ssd"))
        default_bytes = default_chunk_bytes(pools.device_bytes or 0, pools.host_bytes or 0)
        sharing = _ranks_on_device(request, node)
        least_pools.check(
            pools, request.ranks, options.chunk_bytes or default_bytes, ranks_on_device=sharing
        )
        raise


def _options(
    request: SessionRequest, socket_dir: Path, node: inspection.Node, job_name: str = ""
) -> Options:
    in_group = bool(request.job_name) and _has_own_job(request, node)
    return Options(
        str(socket_dir),
        job_name=_own_job_name(request) if in_group else job_name or request.job_name,
        group=request.job_name if in_group else "",
        group_rank=request.rank if in_group else 0,
        group_ranks=request.ranks if in_group else 0,
        time_to_live_s=request.time_to_live_s,
        durable_every=request.durable_every,
        program=Path(sys.argv[0]).name,
        chunk_bytes=request.chunk_bytes
        or _chunk_bytes_of_others(request, node)
        or _searched_chunk_bytes(request, node),
        host_share_bytes=request.host_share_bytes,
        device_share_bytes=request.device_share_bytes,
        device=_device_of(request.rank, node),
        # Ranks on devices have what they train in common (_optimizer_step/common_parameters.py).
        alike=request.ranks if node.devices else 0,
    )


def _has_own_job(request: SessionRequest, node: inspection.Node) -> bool:
    """Whether this process is one of several ranks that have a device, and so a job, each."""
    return request.ranks > 1 and bool(node.devices)


def _own_job_name(request: SessionRequest) -> str:
    return f"{request.job_name}/{request.rank}"


def _open_with_ranks(
    request: SessionRequest, shared: Training, socket_dir: Path, node: inspection.Node
) -> Client | None:
    """Opens a session of the job of all ranks. None: this process does not fit among them."""
    options = _options(request, socket_dir, node, request.job_name or shared.job_name)
    options.rank, options.ranks = shared.rank, shared.ranks
    try:
        return _open(options, request, node)
    except FailedPrecondition as error:
        if request.job_name:
            raise
        print(
            f"memtide: rank {shared.rank} shares nothing with other ranks: {error}", file=sys.stderr
        )
        return None


def _device_of(rank: int, node: inspection.Node) -> str:
    """Options.device of this local rank. A node without a choice, and without a device, is not
    asked for one."""
    count = len(node.devices)
    if count < 2:
        return ""
    number = rank % count
    if not node.devices[number].cuda_device_uuid:
        return str(number)
    # The process may see fewer GPUs than the daemon, or number them differently.
    # tidy(device-types): a form of memtide_options.device, which is no device of torch.
    return f"cuda:{rank % max(1, gpus.count_gpus())}"


def _pools_of(rank: int, node: inspection.Node) -> tuple[inspection.Pool, ...]:
    return node.pools_with(rank % max(1, len(node.devices)))


def _ranks_on_device(request: SessionRequest, node: inspection.Node) -> int:
    """How many of the ranks have this one's device."""
    count = max(1, len(node.devices))
    return len(range(request.rank % count, request.ranks, count))


def _limited_by_cgroup(request: SessionRequest) -> SessionRequest:
    # Ranks divide a limit among them in a way that only they know.
    if request.budget.named() or request.job_name or request.ranks > 1 or finds_daemon(request):
        return request
    return replace(request, budget=budget_of_cgroup(request.pools))


def _named_job_socket_dir(request: SessionRequest) -> Path:
    socket_dir = request.socket_dir or default_socket_dir()
    # A private daemon ends with this process, and all its jobs end with it (decision 14).
    if request.pools.named() or request.budget.named() or not answers(socket_dir):
        raise Unavailable(
            f"job '{request.job_name}' needs a daemon that does not end with this process, and "
            f"none answers at {socket_dir}: start memtided, or set --socket-dir to its sockets"
        )
    return socket_dir


def _one_rank_of(
    request: SessionRequest, socket_dir: Path, node: inspection.Node
) -> tuple[SessionRequest, Training | None]:
    """The request of one of several ranks: an equal part of its device's pool, and chunks so small
    that its parts of the pools have enough slots. Where chunks stay in host memory, ranks share
    their job."""
    sharing = {"device": _ranks_on_device(request, node)}
    parts = {
        pool.tier: pool.capacity_bytes // sharing.get(pool.tier, request.ranks)
        for pool in _pools_of(request.rank, node)
    }
    # Ranks use a device at the same time, and alike, so that each has an equal part of it for good.
    # Host shares are elastic, and follow what each rank needs (decision 18).
    request = replace(
        request,
        chunk_bytes=request.chunk_bytes
        or default_chunk_bytes(parts.get("device", 0), parts.get("host", 0)),
        device_share_bytes=request.device_share_bytes or parts.get("device", 0),
    )
    on_device = bool(parts.get("device", 0))
    training_of_ranks = training.of_rank(request.rank, request.ranks, socket_dir)
    return request, None if on_device else training_of_ranks


def _chunk_bytes_of_others(request: SessionRequest, node: inspection.Node) -> int:
    """The chunk size of another script of this user: in chunks of one size they can share contents
    (docs/decisions/0037). 0: there is none whose size suits this one, too."""
    if request.job_name or request.ranks > 1:
        return 0
    pools = _obtainable_bytes(request, node)
    least_slots = {"host": _LEAST_HOST_SLOTS}
    if node.devices:
        least_slots["device"] = chunk_size.LEAST_SLOTS
    for session in node.sessions:
        is_like_this = session.get("uid") == os.getuid() and not session.get("job_name")
        size = int(session.get("chunk_size_bytes", 0)) if is_like_this else 0
        if not size or any(pools.get(tier, 0) < n * size for tier, n in least_slots.items()):
            continue
        better = chunk_size.clearly_better(
            request.parameters, pools, size, min_slots=node.min_slots
        )
        if better is None:
            return size
    return 0


def _obtainable_bytes(request: SessionRequest, node: inspection.Node) -> dict[str, int]:
    """By tier, the bytes that a job of this request may have."""
    pools = {pool.tier: pool.obtainable_bytes for pool in _pools_of(request.rank, node)}
    for tier, share in (("device", request.device_share_bytes), ("host", request.host_share_bytes)):
        if share:
            pools[tier] = share
    return pools


def _searched_chunk_bytes(request: SessionRequest, node: inspection.Node) -> int:
    # `memtide run` opens its session before the script has made a model (decision 11).
    if not request.parameters:
        return 0
    pools = _obtainable_bytes(request, node)
    choice = chunk_size.search(request.parameters, pools, min_slots=node.min_slots)
    return choice.chunk_bytes if choice is not None else 0
