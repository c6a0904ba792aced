"""Constants of the planner: what they are fitted to, and that the file has what a fit finds."""

import json

import pytest
from memtide._plan_file.answer import Answer
from memtide_plan import calibration, check, fit, rows
from memtide_plan.rows import Figure, Row

# Constants whose rows need no process of the planner.
QUICK = ("reached_flop.ampere", "reached_drive")


def test_constants_are_fewer_than_the_rows_they_are_fitted_to():
    constants = fit.fitted_constants()
    used = {name for names in constants.values() for name in names}
    assert used == {row.id for row in rows.load() if row.calibration}
    assert len(constants) < len(used) / 2


def test_a_fitted_constant_says_what_it_was_before():
    assert set(calibration.unfitted()) == set(fit.fitted_constants())


def test_the_file_has_what_the_fit_finds():
    constants = {name: fit.fitted_constants()[name] for name in QUICK}
    found = fit.fit(rows.load(), check.estimates, constants)
    for name in QUICK:
        assert found[name] == pytest.approx(calibration.constant(name), rel=0.02), name


def row(name, value):
    return Row(
        id=name,
        source="an author",
        where="a table",
        block="a block",
        model={"name": "llama-3.2-1b", "kernels": "fused"},
        training={"batch": 4, "sequence": 1024},
        machine={"name": "server-a100"},
        system="resident",
        figure=Figure(kind="step_s", value=value),
        tolerance=0.1,
        counted=True,
        calibration=True,
    )


def estimates(questions):
    """A step takes 7 seconds of the peak."""
    step_s = 7 / calibration.constant("reached_flop.ampere")
    answer = Answer(fits=True, limit="", least_device_bytes=1, least_host_bytes=1, step_s=step_s)
    return [answer for _ in questions]


def test_a_fit_finds_the_constant_that_explains_its_rows():
    found = fit.fit([row("a", 10.0)], estimates, {"reached_flop.ampere": ["a"]})
    assert found["reached_flop.ampere"] == pytest.approx(0.7, rel=0.02)


def test_a_share_is_at_most_all():
    found = fit.fit([row("a", 1.0)], estimates, {"reached_flop.ampere": ["a"]})
    assert 0.97 < found["reached_flop.ampere"] <= 1


def test_a_fit_leaves_the_constants_as_they_were():
    before = calibration.constant("reached_flop.ampere")
    fit.fit([row("a", 10.0)], estimates, {"reached_flop.ampere": ["a"]})
    assert calibration.constant("reached_flop.ampere") == before


def test_loss_is_in_tolerances_and_of_what_is_not_predicted_large():
    one = fit.loss([row("a", 10 / 1.1)], lambda questions: [answer_of(10.0) for _ in questions], {})
    assert one == pytest.approx(0.908, abs=0.001)
    missed = Answer(fits=False, limit="", least_device_bytes=1, least_host_bytes=1)
    assert fit.loss([row("a", 10.0)], lambda questions: [missed], {}) == 25


def answer_of(step_s):
    return Answer(fits=True, limit="", least_device_bytes=1, least_host_bytes=1, step_s=step_s)


def test_the_file_is_one_constant_a_line():
    lines = calibration.PATH.read_text().splitlines()
    assert len(lines) == len(json.loads(calibration.PATH.read_text())) + 2
