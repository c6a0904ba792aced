"""`python3 -m memtide._metrics`: the service memtide-metrics.

It runs as a user of its own, so that no stranger's bytes are parsed in the daemon, beside the
memory of all jobs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from memtide._metrics.server import MetricsServer

_LEAST_TOKEN = 32
_EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is terminated. Returns 2 if the settings cannot work."""
    parser = argparse.ArgumentParser(prog="memtide-metrics", description=__doc__)
    parser.add_argument("--socket-dir", type=Path, help="the daemon's (default: the node's)")
    parser.add_argument(
        "--address", default="127.0.0.1:9464", help="HOST:PORT to listen on [127.0.0.1:9464]"
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        required=True,
        help=f"the token that a scraper brings, at least {_LEAST_TOKEN} characters",
    )
    flags = parser.parse_args(arguments)
    host, colon, port = flags.address.rpartition(":")
    if not (colon and host and port.isdecimal() and int(port) < 1 << 16):
        return _refuse(f"--address is {flags.address!r}; it must be HOST:PORT")
    try:
        token = flags.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        return _refuse(f"--token-file cannot be read: {error}")
    if len(token) < _LEAST_TOKEN:
        return _refuse(
            f"--token-file {flags.token_file} has {len(token)} characters; "
            f"at least {_LEAST_TOKEN} are needed"
        )
    try:
        server = MetricsServer((host.strip("[]"), int(port)), token, flags.socket_dir)
    except OSError as error:
        return _refuse(f"--address {flags.address} cannot be listened on: {error}")
    print(f"memtide-metrics: serves {server.url}", file=sys.stderr, flush=True)
    server.serve_forever()
    return 0


def _refuse(why: str) -> int:
    print(f"memtide-metrics: {why}", file=sys.stderr)
    return _EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
