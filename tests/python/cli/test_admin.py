"""`memtide admin` with a real daemon, as root, as a member of the group of administrators, and as
another user."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from administered import NOBODY, Administered, admin_gid, administered, is_root
from harness import REPOSITORY, Cli, short_directory

pytestmark = pytest.mark.skipif(not is_root(), reason="needs root, to be several users")


@pytest.fixture
def daemon(cli: Cli) -> Iterator[Administered]:
    with short_directory() as home, administered(cli, home) as daemon:
        yield daemon


def rows(table: str) -> list[list[str]]:
    """The cells of a printed table, without its header."""
    return [re.split(r"\s{2,}", line.strip()) for line in table.strip().splitlines()[1:]]


def test_list_shows_jobs_of_all_users_and_those_that_linger(daemon: Administered) -> None:
    assert daemon.memtide("admin", "list").check().out.split()[-1] == "none"
    lingers, answer = daemon.open("\u202ekept", time_to_live_s=7200)
    assert answer == "open"
    daemon.close(lingers)
    runs, answer = daemon.open("", uid=NOBODY)
    assert answer == "open"
    lingering, running = rows(daemon.memtide("admin", "list").check().out)
    assert lingering[1:3] == ["root", "\ufffdkept"]
    assert re.fullmatch(r"lingers for 01:59:\d\d", lingering[3])
    assert running[1:4] == ["nobody", "-", "running"]
    assert running[5] == "16.0 MiB"
    assert running[-1] == str(runs.pid)
    as_member = daemon.memtide_as(NOBODY, "admin", "list", group=admin_gid()).check().out
    assert [row[0] for row in rows(as_member)] == ["1", "2"]
    as_other = daemon.memtide_as(NOBODY, "admin", "list").check().out
    assert [row[0] for row in rows(as_other)] == ["2"], "a user sees its own jobs"


def test_end_frees_a_job_and_says_what_it_had(daemon: Administered) -> None:
    lingers, _ = daemon.open("kept", time_to_live_s=7200)
    daemon.close(lingers)
    runs, _ = daemon.open("run", uid=NOBODY)
    refused = daemon.memtide_as(NOBODY, "admin", "end", "1")
    assert (refused.status, refused.out) == (1, "")
    assert "no job '1' that you may end" in refused.err
    done = daemon.memtide("admin", "end", "kept").check().out
    assert done.startswith(
        "ended job 1 'kept' of root with 0 sessions; freed: 0 B device, 16.0 MiB"
    )
    done = daemon.memtide_as(NOBODY, "admin", "end", "2", group=admin_gid()).check().out
    assert done.startswith("ended job 2 'run' of nobody with 1 sessions; freed: ")
    assert runs.poll() is None, "memtide kills no process"
    assert daemon.memtide("admin", "list").check().out.split()[-1] == "none"
    assert "no job '2'" in daemon.memtide("admin", "end", "2").err


def test_of_two_jobs_of_a_name_none_is_ended(daemon: Administered) -> None:
    daemon.open("same")
    daemon.open("same", uid=NOBODY)
    done = daemon.memtide("admin", "end", "same")
    assert done.status == 2
    assert "2 jobs are named 'same'" in done.err
    assert len(rows(daemon.memtide("admin", "list").check().out)) == 2


def test_drain_refuses_new_sessions_and_waits_for_those_that_are_open(
    daemon: Administered, cli: Cli
) -> None:
    assert daemon.memtide_as(NOBODY, "admin", "drain").err.startswith(
        "memtide: uid 65534 does not administer this node"
    )
    runs, answer = daemon.open("")
    assert answer == "open"
    drains = cli.start_memtide("admin", "drain", f"--socket-dir={daemon.socket_dir}")
    assert drains.stdout is not None
    assert drains.stdout.readline().startswith("new sessions are refused, until ")
    assert drains.stdout.readline().startswith("1 session is open: ")
    assert "draining" in daemon.open("")[1]
    assert drains.poll() is None
    assert "refusing new sessions" in daemon.memtide("status").check().out
    daemon.close(runs)
    out, _ = drains.communicate(timeout=30)
    assert out == "idle: no session is open, and no job waits\n"
    assert drains.returncode == 0
    daemon.memtide("admin", "drain", "--end").check()
    assert daemon.open("")[1] == "open"


def test_a_quota_that_is_set_holds_at_once_and_after_a_restart(daemon: Administered) -> None:
    name = "user:nobody"
    done = daemon.memtide("admin", "quota", "set", name, "host=24MiB", "jobs=3").check().out
    assert done == "user:nobody: host=24.0 MiB jobs=3\n"
    assert daemon.open("", uid=NOBODY, host_mib=16)[1] == "open"
    _, answer = daemon.open("", uid=NOBODY, host_mib=16)
    assert answer == (
        "ResourceExhausted: the quota of user:nobody is 24 MiB of host memory; used: 16 MiB; "
        "requested: 16 MiB. End a job, ask for less, or have an administrator raise it: it is set "
        "by `memtide admin quota set user:nobody host=...`"
    )
    shown = daemon.memtide_as(NOBODY, "status").check().out
    assert "quota of user:nobody: host 16.0 MiB of 24.0 MiB, jobs 1 of 3\n" in shown
    (row,) = rows(daemon.memtide_as(NOBODY, "admin", "quota").check().out)
    assert row == [name, "16.0 MiB of 24.0 MiB", "1 of 3"]
    (listed,) = rows(daemon.memtide("admin", "list").check().out)
    assert listed[-2] == name
    # The table does not fit, and nothing of it is cut off.
    narrow = daemon.memtide("admin", "list", COLUMNS=40).check().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in narrow
    assert rows(narrow)[0][1:4] == ["nobody", "-", "running"]

    daemon.memtide_as(
        NOBODY, "admin", "quota", "set", name, "host=8MiB", "jobs=none", group=admin_gid()
    ).check()
    (row,) = rows(daemon.memtide("admin", "quota").check().out)
    assert row == [name, "16.0 MiB of 8.00 MiB, over quota"]
    assert daemon.memtide("admin", "list").check().out.count("user:nobody, over: host") == 1

    daemon.stop()
    daemon.start()
    assert "is 8 MiB of host memory" in daemon.open("", uid=NOBODY)[1]
    assert daemon.memtide("admin", "quota", "clear", name).check().out == f"{name}: no limit\n"
    assert daemon.open("", uid=NOBODY)[1] == "open"


def test_only_administrators_change_quotas(daemon: Administered) -> None:
    for change in (("set", "default", "host=1GiB"), ("clear", "default")):
        refused = daemon.memtide_as(NOBODY, "admin", "quota", *change)
        assert refused.status == 1
        assert f"root, uid 0 and the members of group {admin_gid()} do" in refused.err
    assert not list(daemon.settings.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("set", "alice", "host=1GiB"), 'must be "user:NAME"'),
        (("set", "user:no-such-user", "host=1GiB"), 'no user "no-such-user"'),
        (("set", "default", "hots=1GiB"), "'hots=1GiB' is no limit of a quota"),
        (("set", "default", "host=much"), "'much' is not a size"),
        (("set", "default", "jobs=-1"), "jobs=-1: not a number"),
        (("set", "default", "lingering-hours=25"), "not 0 to 24 hours"),
        (("clear", "default"), 'no quota of "default" was set'),
    ],
)
def test_what_is_no_quota_is_refused(
    change: tuple[str, ...], message: str, daemon: Administered
) -> None:
    done = daemon.memtide("admin", "quota", *change)
    assert (done.status != 0, "Traceback" in done.err) == (True, False)
    assert message in done.err


def test_what_may_linger_is_bounded(daemon: Administered) -> None:
    daemon.memtide(
        "admin", "quota", "set", "default", "lingering-hours=0.5", "lingering=200MiB"
    ).check()
    assert "0.5 h of lingering for each job" in daemon.open("a", time_to_live_s=3600)[1]
    assert daemon.open("a", time_to_live_s=1800, host_mib=16)[1] == "open"


def test_a_budget_of_writes_is_set_while_the_daemon_runs(daemon: Administered) -> None:
    setting = ("admin", "quota", "set", "user:nobody")
    done = daemon.memtide(*setting, "ssd-written-per-day=64GiB").check().out
    assert done == "user:nobody: ssd-written-per-day=64.0 GiB\n"
    (row,) = rows(daemon.memtide("admin", "quota").check().out)
    assert row == ["user:nobody", "0 B of 64.0 GiB"]
    refused = daemon.memtide(*setting, "ssd-written-per-day=1MiB")
    assert refused.status == 1
    assert "ssd_written_per_day_bytes: 1 MiB; at least" in refused.err


def documented_commands() -> list[list[str]]:
    """The arguments of `memtide admin` in the section of docs/operations.md."""
    document = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^## Quotas and administration$(.*?)^## ", document, re.M | re.S)
    return [line.split("#")[0].split() for line in re.findall(r"^memtide (admin .*)$", text, re.M)]


def test_the_documents_commands_work(cli: Cli) -> None:
    document = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"^(quotas \{.*?)^```$", document, re.M | re.S)
    commands = documented_commands()
    assert [command[:2] for command in commands[:3]] == [
        ["admin", "list"],
        ["admin", "end"],
        ["admin", "drain"],
    ]
    with short_directory() as home:
        (home / "config").write_text(config, encoding="utf-8")
        with administered(cli, home, [f"--config={home / 'config'}"]) as daemon:
            for command in commands:
                if command[:2] == ["admin", "end"]:
                    lingers, answer = daemon.open(command[2], time_to_live_s=3600)
                    assert answer == "open"
                    daemon.close(lingers)
                done = daemon.memtide(*(word.replace("alice", "nobody") for word in command))
                assert (done.status, done.err) == (0, ""), command


def test_a_user_of_the_default_quota_has_its_own(cli: Cli) -> None:
    with short_directory() as home:
        (home / "config").write_text('quotas { subject: "default" jobs: 1 }', encoding="utf-8")
        with administered(cli, home, [f"--config={home / 'config'}"]) as daemon:
            assert daemon.open("")[1] == "open"
            assert daemon.open("", uid=NOBODY)[1] == "open"
            assert "the quota of default is 1 of jobs; used: 1" in daemon.open("", uid=NOBODY)[1]
            table = rows(daemon.memtide("admin", "quota").check().out)
            assert [row[0] for row in table] == [
                "default",
                "user:0 (default)",
                f"user:{NOBODY} (default)",
            ]
            assert "default" in daemon.memtide("admin", "list").check().out
