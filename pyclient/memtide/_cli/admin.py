"""The arguments of `memtide admin`. Its commands print tables, with a package that `memtide idle`
must do without."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from memtide._cli.quota_text import KEYS
from memtide._util.parser import Parser, add_socket_dir

_Sockets = Callable[[argparse.Namespace], Path]


def add_arguments(parser: Parser, sockets: _Sockets) -> None:
    """Adds the actions to the parser of `memtide admin`. `sockets`: finds a daemon."""
    parser.description = (
        "For root, the daemon's user, and the members of its --admin-group. Other users may list "
        "and end their own jobs, and see their own quotas."
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, about: str) -> Parser:
        return _add(actions, name, about, sockets)

    add("list", "list all jobs, those that linger, too")
    end = add("end", "end a job, and free what it has")
    end.add_argument("job", metavar="JOB", help="its number, or its name")
    drain = add("drain", "take no new session, and wait until none is open")
    drain.add_argument("--end", action="store_true", help="take sessions again")
    changes = add("quota", "show quotas; `set` and `clear` change them").add_subparsers(
        metavar="CHANGE"
    )
    change = _add(changes, "set", "set limits, and keep the others", sockets)
    clear = _add(changes, "clear", "forget what was set: the configuration holds again", sockets)
    for each in (change, clear):
        each.add_argument("subject", metavar="SUBJECT", help="user:NAME, group:NAME or default")
    change.add_argument(
        "limits",
        nargs="+",
        metavar="KEY=VALUE",
        help=f"keys: {', '.join(KEYS)}; the value `none`: no limit",
    )


def _add(
    actions: argparse._SubParsersAction[Parser], name: str, about: str, sockets: _Sockets
) -> Parser:
    parser: Parser = actions.add_parser(name, help=about)
    add_socket_dir(parser)
    parser.set_defaults(command=lambda flags: _run(name, sockets(flags), flags))
    return parser


def _run(action: str, socket_dir: Path, flags: argparse.Namespace) -> Callable[[], int]:
    from memtide._cli import administration

    if action == "list":
        administration.list_jobs(socket_dir)
    elif action == "end":
        administration.end_job(socket_dir, flags.job)
    elif action == "drain" and flags.end:
        administration.end_drain(socket_dir)
    elif action == "drain":
        administration.drain(socket_dir)
    elif action == "quota":
        administration.show_quotas(socket_dir)
    elif action == "set":
        administration.set_quota(socket_dir, flags.subject, flags.limits)
    else:
        administration.clear_quota(socket_dir, flags.subject)
    return lambda: 0
