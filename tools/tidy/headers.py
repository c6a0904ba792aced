"""Headers that take a compiler a second or more, and which headers of ours may include each.

A source that includes one pays for itself; a header makes all who include it pay. Seconds of one
core are those of GCC 12 for the header alone.
"""

import re

# The beginning of an #include's path, its seconds, and the headers that may include it.
EXPENSIVE = {
    "spdlog/": (5.7, ()),
    "grpcpp/": (
        2.5,
        (
            "client/rpc/grpc_call.h",
            "daemon/service/call_messages.h",
            "daemon/service/services.h",
            "daemon/service/status_table.h",
            "daemon/service/testing/grpc_server_harness.h",
            "tests/integration/daemon_process.h",
        ),
    ),
    "gmock/": (
        2.6,
        (
            "daemon/device/testing/cuda_device_fixture.h",
            "daemon/io/testing/disk_contract.h",
            "daemon/replay/activations/testing/three_blocks.h",
        ),
    ),
    "absl/container/flat_hash_map.h": (
        2.3,
        ("daemon/service/call_queue.h", "daemon/service/loop.h", "daemon/session/token_table.h"),
    ),
    "prometheus/": (1.0, ("daemon/metrics/node_metrics.h",)),
    "CLI/": (2.0, ()),
    "regex": (2.0, ()),
    "filesystem": (1.0, ("daemon/service/testing/grpc_server_harness.h",)),
    "iostream": (0.5, ()),
}
_INCLUDE = re.compile(r'#include [<"]([^>"]+)[>"]')


def check_expensive(file):
    if not file.path.endswith(".h"):
        return
    for number, line in enumerate(file.lines, 1):
        included = _INCLUDE.match(line)
        for start, (seconds, headers) in EXPENSIVE.items():
            exact = included and (included[1] == start or start.endswith("/"))
            if exact and included[1].startswith(start) and file.path not in headers:
                yield number, f"<{start}> takes {seconds} s to compile: include it in a source"
