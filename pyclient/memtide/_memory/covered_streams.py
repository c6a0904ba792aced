"""Names the CUDA streams on which torch launches work, for drivers that need it.

Before driver 555 (CUDA 12.5) nothing tells when the work of all streams of a process is done. The
library then waits for all work of the process whenever it unmaps a chunk, unless it knows the
streams (memtide_cover_streams). Here each use of chunks by operations that memtide sees names the
stream on which this thread launches them. Work that memtide does not see may be launched on any
stream: that of a covered phase or of `memtide.hold`, and operations that are not torch's own, such
as the collectives of NCCL. From the first of these on, all work is waited for.

Streams of torch live until the process ends, except `torch.cuda.ExternalStream`s.
"""

from __future__ import annotations

import threading
from typing import Any

from memtide._capi.client import Client
from memtide._util.devices import GpuModule, current_stream, gpu_module, type_name

# Their operations launch all work on the thread's current stream.
_ON_CURRENT_STREAM = frozenset({"aten", "prims", "prim"})


class CoveredStreams:
    """The streams of this process that a client knows. Safe to use from any thread."""

    def __init__(self, client: Client, module: GpuModule) -> None:
        self._client = client
        self._module = module
        self._device = client.properties.dl_device[1]
        self._lock = threading.Lock()
        self._known: set[int] = set()
        self._all = False

    def see_operation(self, func: Any) -> None:
        """Before an operation is launched."""
        if not self._all and func.namespace not in _ON_CURRENT_STREAM:
            self.cover_all()

    def see_stream(self) -> None:
        """Before this thread launches work."""
        if self._all:
            return
        stream, is_of_torch = current_stream(self._module, self._device)
        if stream in self._known:
            return
        if not is_of_torch:
            self.cover_all()
            return
        with self._lock:
            if not self._all:
                self._client.cover_streams([stream])
                self._known.add(stream)

    def cover_all(self) -> None:
        """From now on work may be launched on any stream."""
        with self._lock:
            if not self._all:
                self._client.cover_all_streams()
                self._all = True


def covered_streams(client: Client) -> CoveredStreams | None:
    """None: the client's library needs no streams, or tensors are on no GPU, where operations run
    at once."""
    module = gpu_module(type_name(client.properties.dl_device))
    if module is None or not client.properties.needs_streams:
        return None
    return CoveredStreams(client, module)
