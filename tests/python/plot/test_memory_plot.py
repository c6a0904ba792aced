"""The plot of an iteration's memory, as an image and as a page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from memtide._plot import memory_page, memory_plot
from memtide._plot.palette import COLOURS, RANK_COLOURS, drawn_rows
from memtide._telemetry.memory_timeline import RankSample, Sample, Tide
from memtide._trace.residency import Residency, Row

_MIB = 2**20
# Stands for a browser: enough of a document for the page to draw itself and to answer a pointer.
_BROWSER = """
const fs = require("fs");
const page = fs.readFileSync(process.argv[2], "utf8");
const elements = {}, listeners = {};
const element = id => elements[id] ??= {
  style: {}, clientWidth: 1000, offsetWidth: 100, innerHTML: "", checked: false,
  textContent: id === "data" ? page.match(/<script id="data"[^>]*>(.*?)<\\/script>/s)[1] : "",
  getBoundingClientRect: () => ({left: 0, top: 0, width: 1000}),
  addEventListener: (kind, act) => { listeners[id + " " + kind] = act; },
  setAttribute: () => {}, removeAttribute: () => {},
};
globalThis.document = {getElementById: element};
globalThis.addEventListener = () => {};
globalThis.innerWidth = 1000;
new Function(page.match(/<script>\\n(.*?)<\\/script>/s)[1])();
const drawn = element("chart").innerHTML;
listeners["chart mousemove"]({clientX: 700});
const tip = element("tip").innerHTML;
element("even").checked = true;
listeners["even change"]();
console.log(JSON.stringify({keys: element("keys").innerHTML, drawn, tip,
                            waits: element("waits").textContent,
                            even: element("chart").innerHTML}));
"""


def sample(index: int, *, budget_mib: int = 96, waited_s: float = 0.0) -> Sample:
    phase = ("forward", "backward", "step")[min(2, index // 4)]
    usage = {"allocated_bytes": 64 * _MIB, "device_bytes": (index % 7) * _MIB, "host_bytes": 5}
    return Sample(
        seconds=1 + index / 10,
        phase=phase,
        name="Linear",
        own_host_bytes=100 * _MIB,
        own_device_bytes=0,
        kinds={"parameter": usage, "gradient": usage, "activation": {"allocated_bytes": 0}},
        budget_bytes={"device": budget_mib * _MIB, "host": 64 * _MIB},
        stalled_s=waited_s,
        waits_s={"call": waited_s / 2, "map": index / 1000, "dispatch": index / 500},
    )


@pytest.fixture
def falling() -> Tide:
    """Twelve moments; from the ninth on, the job has a smaller device share, and it stalls once."""
    samples = [sample(index) for index in range(8)]
    samples += [sample(index, budget_mib=16, waited_s=0.25) for index in range(8, 12)]
    return Tide(3, samples, {"device": 96 * _MIB, "host": 64 * _MIB, "ssd": 0})


def test_the_tide_is_taken_apart_by_tier_and_kind(falling: Tide) -> None:
    assert falling.tiers() == ["device", "host"]
    assert list(falling.kinds("device")) == ["parameter", "gradient"]
    assert falling.kinds("device")["gradient"][:3] == [0, _MIB, 2 * _MIB]
    limits = falling.limits("device")
    assert [size // _MIB for size in limits["budget"]] == [96] * 8 + [16] * 4
    assert set(limits["pool limit"]) == {96 * _MIB}
    assert list(falling.limits("host")) == ["budget"]
    assert falling.stalls_s() == [0.0] * 7 + [0.25] + [0.0] * 4
    assert falling.waits_s()["call"] == [0.0] * 7 + [0.125] + [0.0] * 4
    assert falling.waits_s()["map"] == pytest.approx([0.001] * 11 + [0.0])
    assert list(falling.own()) == ["host"]


def test_kept_activations_are_a_part_of_the_process_s_own_memory(
    falling: Tide, tmp_path: Path
) -> None:
    def keeping(sample: Sample, device_mib: int, index: int) -> Sample:
        own = {"own_device_bytes": device_mib * _MIB, "kept_activation_bytes": index * 20 * _MIB}
        return Sample(**{**vars(sample), **own})

    on_host = Tide(3, [keeping(s, 0, i) for i, s in enumerate(falling.samples)], falling.pool_bytes)
    own = on_host.own()
    assert list(own) == ["activations", "host"]
    assert [size // _MIB for size in own["activations"]][:7] == [0, 20, 40, 60, 80, 100, 100]
    assert all(sum(sizes) == 100 * _MIB for sizes in zip(*own.values(), strict=True))
    own = Tide(3, [keeping(falling.samples[0], 50, 1)], falling.pool_bytes).own()
    assert {name: sizes[0] // _MIB for name, sizes in own.items()} == {
        "activations": 20,
        "host": 100,
        "device": 30,
    }
    page = memory_page.page(on_host)
    assert '"name":"activations","colour":"#b5524a"' in page
    memory_plot.draw(on_host, tmp_path / "tide.svg")
    # Text is drawn as paths, so the colour has to do.
    assert "#b5524a" in (tmp_path / "tide.svg").read_text(encoding="utf-8")


def test_moved_activations_look_different_from_kept_ones(falling: Tide, tmp_path: Path) -> None:
    moved = {"activation": {"allocated_bytes": _MIB, "device_bytes": _MIB}}
    samples = [
        Sample(**{**vars(each), "kinds": moved, "kept_activation_bytes": _MIB})
        for each in falling.samples
    ]
    tide = Tide(3, samples, falling.pool_bytes)
    page = memory_page.page(tide)
    assert '"name":"moved activations","colour":"#dd9b95"' in page
    assert '"name":"activations","colour":"#b5524a"' in page
    memory_plot.draw(tide, tmp_path / "tide.svg")
    image = (tmp_path / "tide.svg").read_text(encoding="utf-8")
    assert "#dd9b95" in image
    assert "#b5524a" in image


def test_stalls_are_drawn_where_there_are_some(falling: Tide, tmp_path: Path) -> None:
    calm = Tide(3, [replace(each, stalled_s=0.0) for each in falling.samples], falling.pool_bytes)
    for tide, stalls in ((falling, True), (calm, False)):
        memory_plot.draw(tide, tmp_path / "tide.svg")
        assert ("#c0392b" in (tmp_path / "tide.svg").read_text(encoding="utf-8")) is stalls


@pytest.fixture
def of_ranks(falling: Tide) -> Tide:
    """Rank 1 comes after the first moment."""

    def with_ranks(sample: Sample, index: int) -> Sample:
        uses = [RankSample(rank, (8 * rank + index) * _MIB, 300 * _MIB) for rank in (0, 1)]
        return replace(sample, ranks=tuple(uses[: 1 + bool(index)]))

    samples = [with_ranks(each, index) for index, each in enumerate(falling.samples)]
    return Tide(3, samples, falling.pool_bytes)


def test_ranks_are_drawn_under_one_another(of_ranks: Tide, falling: Tide, tmp_path: Path) -> None:
    ranks = of_ranks.ranks()
    assert list(ranks) == [0, 1]
    assert [size // _MIB for size in ranks[1]["leased"]][:3] == [0, 9, 10]
    assert falling.ranks() == {}
    for tide, count in ((falling, 0), (of_ranks, 2)):
        memory_plot.draw(tide, tmp_path / "tide.svg")
        image = (tmp_path / "tide.svg").read_text(encoding="utf-8")
        assert image.count('id="axes_') == 3 + count
        assert (RANK_COLOURS["leased"] in image) == bool(count)


@pytest.fixture
def granular(falling: Tide) -> Residency:
    """One chunk stays, and the other is away in the backward pass."""
    phases = tuple(sample.phase for sample in falling.samples)
    rows = (Row(4, "parameter", ((0, 12),)), Row(9, "optimizer state", ((0, 4), (8, 12))))
    return Residency("device", phases, rows)


def test_chunks_that_stay_and_that_leave_have_a_row_each(
    falling: Tide, granular: Residency, tmp_path: Path
) -> None:
    memory_plot.draw(falling, tmp_path / "tide.svg", granular)
    image = (tmp_path / "tide.svg").read_text(encoding="utf-8")
    assert image.count('id="axes_') == 4
    # The chunk that leaves has two bars.
    assert image.count(f"fill: {COLOURS['optimizer_state']}") == 2
    drawn = json.loads(
        memory_page.page(falling, granular)
        .split('type="application/json">')[1]
        .split("</script>")[0]
    )
    assert drawn["residency"] == {
        "name": "on device, by chunk: 1 of 2 chunks stay on the device",
        "rows": [
            {"number": 4, "colour": COLOURS["parameter"], "spans": [[0, 12]]},
            {"number": 9, "colour": COLOURS["optimizer_state"], "spans": [[0, 4], [8, 12]]},
        ],
    }


def test_the_residency_of_another_kind_of_iteration_is_not_drawn(
    falling: Tide, granular: Residency, tmp_path: Path
) -> None:
    shorter = replace(granular, phases=granular.phases[1:])
    memory_plot.draw(falling, tmp_path / "tide.svg", shorter)
    assert (tmp_path / "tide.svg").read_text(encoding="utf-8").count('id="axes_') == 3
    assert '"residency":null' in memory_page.page(falling, shorter)


def test_of_many_chunks_every_nth_is_drawn() -> None:
    rows = [Row(number, "parameter", ()) for number in range(1000)]
    assert [row.number for row in drawn_rows(rows)][:2] == [0, 4]
    assert len(drawn_rows(rows)) == 250
    assert len(drawn_rows(rows[:256])) == 256
    assert len(drawn_rows([])) == 0


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_an_image_is_drawn(suffix: str, falling: Tide, tmp_path: Path) -> None:
    path = tmp_path / f"tide.{suffix}"
    memory_plot.draw(falling, path)
    assert path.stat().st_size > 1000


def test_one_moment_and_no_chunks_are_drawn_too(tmp_path: Path) -> None:
    only = Sample(0.0, "forward", "Linear", _MIB, _MIB, {}, {}, 0.0)
    for path in (tmp_path / "tide.png", tmp_path / "tide.html"):
        memory_plot.draw(Tide(1, [only], {"host": _MIB}), path)
        assert path.stat().st_size > 1000


def test_the_page_has_its_numbers_and_asks_nobody_else(falling: Tide, tmp_path: Path) -> None:
    path = tmp_path / "tide.html"
    memory_plot.draw(falling, path)
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|src=|@import|url\(|fetch\(|XMLHttp", page)
    numbers = json.loads(page.split('type="application/json">')[1].split("</script>")[0])
    assert numbers["stalled_ms"][7] == 250.0
    assert numbers["tiers"][0]["lines"][0]["kib"] == [96 * 1024] * 8 + [16 * 1024] * 4
    assert numbers["tiers"][0]["kinds"][0]["kib"] == [1024 * (index % 7) for index in range(12)]


def test_a_long_iteration_makes_a_page_below_a_mebibyte() -> None:
    def long(index: int) -> Sample:
        kinds = {
            kind: {f"{tier}_bytes": (index * 7919 % 9973) * 10**7 for tier in
                   ("allocated", "device", "host", "ssd")}
            for kind in ("parameter", "gradient", "optimizer_state", "activation", "other")
        }  # fmt: skip
        budget = {"device": index * 10**7}
        return Sample(
            index / 7, "step", f"L{index}", index * 10**6, index * 10**6, kinds, budget, 0
        )

    pools = dict.fromkeys(("device", "host", "ssd"), 10**12)
    page = memory_page.page(Tide(1, [long(index) for index in range(4000)], pools))
    assert len(page.encode()) < 2**20


def test_a_name_cannot_end_the_script() -> None:
    named = sample(0)
    hostile = Sample(**{**vars(named), "name": "</script><b>"})
    page = memory_page.page(Tide(1, [named, hostile], {"device": _MIB}))
    assert page.count("</script>") == 2


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_page_draws_itself_and_says_what_a_pointer_is_over(
    falling: Tide, tmp_path: Path
) -> None:
    page = _shown(falling, tmp_path)
    for word in ("parameter", "gradient", "own host", "budget"):
        assert word in page["keys"]
    assert "NaN" not in page["drawn"] + page["even"] + page["tip"]
    assert page["drawn"].count("#c0392b") == 3  # The stall, in each panel.
    assert "moment 7: backward, Linear" in page["tip"]
    for part in ("stalled 250 ms", "<td>96.0 MiB</td>", "own host: 100 MiB", "mapping 1.0 ms"):
        assert part in page["tip"]
    assert "dispatch" not in page["tip"]
    assert "the daemon's answers 125.0 ms, mapping 11.0 ms, dispatch 22.0 ms." in page["waits"]
    assert page["even"] != page["drawn"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_page_has_a_panel_for_each_rank(of_ranks: Tide, tmp_path: Path) -> None:
    page = _shown(of_ranks, tmp_path)
    assert "leased chunks of a rank" in page["keys"]
    assert page["drawn"].count("#c0392b") == 5
    assert "rank 1: 15.0 MiB leased chunks, 300 MiB outside chunks" in page["tip"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no JavaScript here")
def test_the_page_has_a_row_for_each_chunk_and_says_which_are_away(
    falling: Tide, granular: Residency, tmp_path: Path
) -> None:
    page = _shown(falling, tmp_path, granular)
    assert "1 of 2 chunks stay on the device" in page["drawn"]
    assert "NaN" not in page["drawn"] + page["even"]
    assert page["tip"].endswith("away: chunks 9")
    assert "away" not in _shown(falling, tmp_path)["tip"]


def _shown(tide: Tide, folder: Path, residency: Residency | None = None) -> dict[str, str]:
    """The drawings and words of a tide's page, by their place."""
    path, browser = folder / "tide.html", folder / "browser.js"
    memory_plot.draw(tide, path, residency)
    browser.write_text(_BROWSER, encoding="utf-8")
    done = subprocess.run(
        ["node", browser, path], capture_output=True, text=True, check=True, timeout=60
    )
    shown: dict[str, str] = json.loads(done.stdout)
    return shown
