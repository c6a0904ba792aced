"""A real Prometheus scrapes a real memtided through memtide-metrics, by the shipped configuration;
the shipped rules and dashboard match the metrics.

Arguments: memtided, libmemtide.so, make_metrics_token.sh, prometheus.yml, rules.yml, the Grafana
dashboard. Runs in the folder that has pyclient/.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO, Any

DAEMON, LIBRARY, MAKE_TOKEN, PROMETHEUS_CONFIG, RULES, DASHBOARD = (
    Path(argument).resolve() for argument in sys.argv[1:]
)
_TOKEN_PATH = "/etc/memtide/metrics_token"
_PATIENCE_S = 40.0
_MIB = 1 << 20


def _wait_for_line(log: IO[str], text: str) -> str:
    lines = []
    for line in log:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}:\n{''.join(lines)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _get(url: str, token: str = "") -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
        body: bytes = response.read()
        return body.decode()


class PrometheusTest(unittest.TestCase):
    """One daemon, one memtide-metrics and one Prometheus for all tests."""

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.TemporaryDirectory(prefix="memtide-test-", dir="/tmp")
        cls.addClassCleanup(directory.cleanup)
        cls.root = Path(directory.name)
        cls._start(
            [
                str(DAEMON),
                f"--socket-dir={cls.root}/s",
                f"--ssd-dir={cls.root}/d",
                "--device=emulated",
                "--device-pool=16MiB",
                "--host-pool=64MiB",
                "--ssd-pool=128MiB",
            ],
            " serves ",
        )
        cls.token_file = cls.root / "etc/metrics_token"
        subprocess.run(["sh", MAKE_TOKEN, cls.token_file], check=True)
        line = cls._start(
            [
                sys.executable,
                "-P",
                "-m",
                "memtide._metrics",
                f"--socket-dir={cls.root}/s",
                f"--token-file={cls.token_file}",
                "--address=127.0.0.1:0",
            ],
            " serves ",
            PYTHONPATH=str(Path("pyclient").resolve()),
            MEMTIDE_LIBRARY=str(LIBRARY),
        )
        cls.metrics_url = line.split(" serves ")[1].strip()
        cls.api = f"http://127.0.0.1:{cls._start_prometheus()}/api/v1/"

    @classmethod
    def _start(cls, command: list[str], ready: str, **environment: str) -> str:
        """Starts a program, and returns the line of its log that has `ready`."""
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)
        assert process.stderr is not None
        cls.addClassCleanup(process.stderr.close)
        return _wait_for_line(process.stderr, ready)

    @classmethod
    def _start_prometheus(cls) -> int:
        """The shipped configuration with the test's address and token, and a shorter interval."""
        text = PROMETHEUS_CONFIG.read_text()
        for old, new in (
            ("127.0.0.1:9464", urllib.parse.urlsplit(cls.metrics_url).netloc),
            (_TOKEN_PATH, str(cls.token_file)),
            ("scrape_interval: 5s", "scrape_interval: 1s"),
        ):
            assert old in text, f"prometheus.yml does not say {old!r}"
            text = text.replace(old, new)
        config = cls.root / "prometheus.yml"
        config.write_text(text)
        (cls.root / "rules.yml").write_text(RULES.read_text())
        port = _free_port()
        cls._start(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={cls.root}/tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            "Server is ready to receive web requests",
        )
        return port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Repeats a query until it has a result, as the first scrape may still be due."""
        url = f"{self.api}query?{urllib.parse.urlencode({'query': expression})}"
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            answer: dict[str, Any] = json.loads(_get(url))
            self.assertEqual(answer["status"], "success", answer)
            result: list[dict[str, Any]] = answer["data"]["result"]
            if result:
                return result
        raise AssertionError(f"no result for {expression}")

    def test_the_states_of_a_pool_sum_to_its_capacity(self) -> None:
        expected = {"device": 16 * _MIB, "host": 64 * _MIB, "ssd": 128 * _MIB}
        for expression in ("sum by (tier) (memtide_pool_bytes)", "memtide_pool_capacity_bytes"):
            result = self.query(expression)
            found = {one["metric"]["tier"]: float(one["value"][1]) for one in result}
            self.assertEqual(found, expected, expression)

    def test_the_release_is_served(self) -> None:
        version = subprocess.run([DAEMON, "--version"], capture_output=True, text=True, check=True)
        served = self.query("memtide_build_info")[0]["metric"]["version"]
        self.assertTrue(version.stdout.startswith(f"memtided {served} ("), version.stdout)

    def test_rules_and_dashboard_use_only_metrics_that_are_served(self) -> None:
        # A histogram is served under names of its own, such as memtide_fetch_hit_seconds_bucket.
        served = set(re.findall(r"^(?:# TYPE )?(memtide_\w+)", self.metrics(), re.MULTILINE))
        self.assertGreater(len(served), 20)
        for path in (RULES, DASHBOARD):
            used = set(re.findall(r"(?<![\w:])memtide_\w+", path.read_text()))
            self.assertGreater(len(used), 5, path)
            self.assertLessEqual(used, served, path)

    def test_the_dashboard_shows_every_metric_that_grows_or_fills(self) -> None:
        shown = DASHBOARD.read_text()
        served = re.findall(r"^# TYPE (memtide_\w+)", self.metrics(), re.MULTILINE)
        self.assertEqual([name for name in served if name not in shown], ["memtide_draining"])

    def test_a_scrape_is_checked_by_promtool(self) -> None:
        check = subprocess.run(
            ["promtool", "check", "metrics"],
            input=self.metrics(),
            capture_output=True,
            text=True,
        )
        ours = [line for line in check.stdout.splitlines() if line.startswith("memtide_")]
        self.assertEqual(ours, [], check.stdout)

    def test_strangers_get_nothing(self) -> None:
        for token in ("", "0" * 64):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                _get(self.metrics_url, token)
            self.assertEqual(refused.exception.code, 401)
            refused.exception.close()

    def test_the_token_is_made_once_and_is_secret(self) -> None:
        token = self.token_file.read_text()
        self.assertRegex(token, "^[0-9a-f]{64}$")
        self.assertEqual(self.token_file.stat().st_mode & 0o7777, 0o640)
        self.assertEqual(
            [path.name for path in self.token_file.parent.iterdir()], ["metrics_token"]
        )

    def metrics(self) -> str:
        """The metrics that a scraper with the token gets."""
        return _get(self.metrics_url, self.token_file.read_text())


class RulesTest(unittest.TestCase):
    """promtool accepts the shipped files."""

    def test_promtool_accepts_the_configuration_and_the_rules(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for path in (PROMETHEUS_CONFIG, RULES, RULES.with_name("rules_test.yml")):
                text = path.read_text().replace(_TOKEN_PATH, "token")
                (Path(directory) / path.name).write_text(text)
            (Path(directory) / "token").write_text("secret")
            for arguments in (
                ["check", "config", "prometheus.yml"],
                ["check", "rules", "rules.yml"],
                ["test", "rules", "rules_test.yml"],
            ):
                check = subprocess.run(
                    ["promtool", *arguments], cwd=directory, capture_output=True, text=True
                )
                self.assertEqual(check.returncode, 0, check.stdout + check.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
