"""The comparison of rows with predictions by `memtide plan --check`."""

import json
from dataclasses import replace

import pytest
from memtide._plan_file.answer import Answer, Choice
from memtide.errors import InvalidArgument
from memtide_plan import check, rows
from memtide_plan.row_inputs import inputs_of
from memtide_plan.row_results import predict, sheets_summary, source_medians, summary
from memtide_plan.rows import Figure, Row

GIB = 2**30


def row(name, value=10.0, kind="step_s", **changes):
    right = Row(
        id=name,
        source="an author",
        where="a table",
        block="a block",
        model={"name": "llama-3.2-1b", "kernels": "fused"},
        training={"batch": 4, "sequence": 1024},
        machine={"name": "desktop-4090"},
        system="resident",
        figure=Figure(kind=kind, value=float(value), of=changes.pop("of", None)),
        tolerance=0.0 if kind == rows.FITS else 0.1,
        counted=True,
        calibration=False,
    )
    return replace(right, **changes)


def answer(step_s=10.0, **changes):
    right = Answer(
        fits=True,
        limit="none",
        least_device_bytes=8 * GIB,
        least_host_bytes=16 * GIB,
        step_s=step_s,
        low_s=0.9 * step_s,
        high_s=1.1 * step_s,
        tokens_per_s=4096 / step_s,
        drive_years=3.0,
        choice=Choice(
            chunk_bytes=0,
            micro_batch=4,
            accumulation=1,
            ranks=1,
            optimizer_on="device",
            device_pool_bytes=6 * GIB,
            host_pool_bytes=0,
            ssd_pool_bytes=0,
        ),
    )
    return replace(right, **changes)


NOT_FITTING = Answer(
    fits=False, limit="the device is full", least_device_bytes=GIB, least_host_bytes=GIB
)


def predicted(of, *answers):
    """The rows' results; each question has the next answer."""
    left = list(answers)
    return predict(of, lambda questions: [left.pop(0) for _ in questions])


@pytest.mark.parametrize(
    ("kind", "value", "ours"),
    [
        ("step_s", 10, 11),
        ("tokens_per_s", 400, 4096 / 11),
        ("device_bytes", 8 * GIB, 6 * GIB),
        ("host_bytes", 16 * GIB, 16 * GIB),
        ("drive_years", 2, 3),
    ],
)
def test_each_kind_of_figure_is_compared_with_its_part_of_an_answer(kind, value, ours):
    (result,) = predicted([row("a", value, kind)], answer(11.0))
    assert result.ours == pytest.approx(ours)
    assert result.error() == pytest.approx(ours / value - 1)


@pytest.mark.parametrize(("ours", "met"), [(10.9, True), (11.1, False), (9.1, True), (8.9, False)])
def test_a_prediction_is_met_within_the_row_s_own_tolerance(ours, met):
    (result,) = predicted([row("a")], answer(ours))
    assert result.met() is met


def test_a_published_time_lies_in_the_interval_or_not():
    results = predicted(
        [row("a", 10.9), row("b", 11.1, training={"batch": 8, "sequence": 512})], answer(), answer()
    )
    assert [result.in_interval for result in results] == [True, False]
    speeds = [row("a", 4096 / 10.9, "tokens_per_s"), row("b", 4096 / 11.1, "tokens_per_s")]
    assert [r.in_interval for r in predicted(speeds, answer())] == [True, False]
    assert predicted([row("a", GIB, "device_bytes")], answer())[0].in_interval is None


@pytest.mark.parametrize(
    ("really", "by_us", "met", "wrong_fits", "wrong_does_not"),
    [
        (True, True, True, 0, 0.0),
        (False, False, True, 0, None),
        (False, True, False, 1, None),
        (True, False, False, 0, 1.0),
    ],
)
def test_feasibility_is_wrong_in_two_ways(really, by_us, met, wrong_fits, wrong_does_not):
    of = [row("a", really, rows.FITS)]
    results = predicted(of, answer() if by_us else NOT_FITTING)
    assert results[0].met() is met
    found = summary(results)
    assert (found.wrong_fits, found.wrong_does_not_fit) == (wrong_fits, wrong_does_not)


def test_what_was_measured_and_is_not_said_to_fit_is_missed():
    results = predicted([row("a")], NOT_FITTING)
    assert results[0].error() is None
    assert results[0].met() is False
    assert "the device is full" in results[0].reason
    assert summary(results).wrong_does_not_fit == 1.0
    assert summary(results).within_tolerance == 0.0


def test_a_ratio_is_of_two_rows_speeds():
    slow = {"batch": 4, "sequence": 1024, "micro_batch": 1}
    of = [row("a"), row("b", 0.5, "ratio", of="a", training=slow)]
    assert predicted(of, answer(10.0), answer(25.0))[1].ours == pytest.approx(0.4)


def test_equal_questions_are_asked_once():
    seen = []

    def estimates(questions):
        seen.extend(questions)
        return [answer() for _ in questions]

    predict([row("a"), row("b", 8 * GIB, "device_bytes")], estimates)
    assert len(seen) == 1


def test_a_row_without_a_model_is_not_asked():
    shapeless = row("a", model=None, counted=False, note="its shape is not published")
    (result,) = predict([shapeless], lambda questions: [])
    assert "its shape is not published" in result.reason
    assert result.met() is False


def test_a_question_that_cannot_be_asked_is_missed_with_its_reason():
    def estimates(questions):
        return [InvalidArgument("there is no system 'x'") for _ in questions]

    (result,) = predict([row("a", system="x")], estimates)
    assert result.reason == "there is no system 'x'"
    assert summary([result]).within_tolerance == 0.0


def test_rows_that_calibrate_or_are_not_counted_are_in_no_share():
    of = [row("a"), row("b", 5, calibration=True), row("c", 5, counted=False, note="no")]
    results = predicted(of, answer())
    found = summary(results)
    assert (found.rows, found.sources, found.calibrating) == (2, 1, 1)
    assert found.within_tolerance == 1.0
    assert found.median_of_sources == 0.0
    assert sheets_summary(results).median == 0.0
    assert sheets_summary(results).in_interval == 1.0


def test_each_source_has_one_voice_in_the_median_of_medians():
    def of(source, *errors):
        return [row(f"{source}{e}", 10 / (1 + e), source=source) for e in errors]

    results = predicted([*of("x", 0.5, 0.5, 0.5, 0.5), *of("y", 0.1), *of("z", 0.2, 0.0)], answer())
    medians = dict(source_medians(results))
    assert medians == pytest.approx({"x": 0.5, "y": 0.1, "z": 0.1})
    assert summary(results).median_of_sources == pytest.approx(0.1)


def test_the_frontier_is_two_blocks_of_one_source():
    frontier = {"source": "als244/dataflow", "block": "RTX 5090"}
    of = [row("a", 10 / 1.02, **frontier), row("b", 10 / 1.06, **frontier), row("c", 20)]
    found = summary(predicted(of, answer()))
    assert found.frontier_rows == 2
    assert found.frontier_median == pytest.approx(0.04)
    assert found.frontier_worst == pytest.approx(0.06)


def test_goals_say_met_and_missed():
    found = summary(predicted([row("a"), row("b", 7)], answer()))
    sheets = sheets_summary(predicted([row("a", 10 / 1.05)], answer()))
    verdicts = {name: (value, met) for name, _, value, met in check.goals(found, sheets)}
    assert verdicts["rows within their tolerance"] == ("50.0%", False)
    assert verdicts["from sheets alone: median"] == ("5.0%", True)
    assert verdicts["wrong 'fits'"] == ("0", True)
    assert verdicts["rows with all inputs; sources"] == ("2; 1", False)
    for count, sources, met in ((120, 9, True), (119, 9, False), (120, 8, False)):
        _, _, _, verdict = next(check.goals(replace(found, rows=count, sources=sources), sheets))
        assert verdict is met


def test_a_figure_is_shown_in_its_unit():
    shown = [check._value(*each) for each in (("peak_bytes", 3 * 2**29), ("step_s", 1234.5))]
    assert shown == ["1.5 GiB", "1234 s"]


def test_every_row_of_the_tree_asks_a_question():
    all_inputs = [(of, inputs_of(of)) for of in rows.load() if of.model is not None]
    for of, inputs in all_inputs:
        assert inputs.training.batch % (inputs.training.micro_batch or 1) == 0, of.id
        longest = inputs.model.longest_sequence
        assert longest is None or inputs.training.sequence <= longest, of.id
    assert len(all_inputs) >= 240


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": {"name": "no such"}}, "there is no model 'no such'"),
        ({"model": {"name": "../../x"}}, "there is no model"),
        ({"model": {"name": "llama-3-8b", "size": 1}}, "'model' has no 'size'"),
        ({"training": {"batch": 0, "sequence": 1}}, "'batch' is 0"),
        ({"training": {"batch": 1, "sequence": 1, "micro_batch": 1.5}}, "'micro_batch' is 1.5"),
        ({"training": {"batch": 1}}, "'sequence' is None"),
        ({"training": {"batch": 1, "sequence": 1, "speed": 1}}, "'training' has no 'speed'"),
        ({"training": {"batch": 1, "sequence": 1, "states": 3}}, "'states' is no object"),
        ({"training": {"batch": 1, "sequence": 1, "states": {"weight": -1}}}, "at least 0"),
        ({"machine": {"name": "desktop-4090", "pool_gib": 30}}, "a pool of 30 GiB is not in"),
        ({"machine": {"name": "desktop-4090", "drives": 2}}, "has 1 drives, and 2 are asked for"),
        ({"machine": {"name": "no such"}}, "no machine 'no such'"),
    ],
)
def test_a_row_that_asks_what_cannot_be_is_refused(change, what):
    with pytest.raises(InvalidArgument, match=what):
        inputs_of(row("a", **change))


def test_sheets_alone_know_nothing_that_a_source_measured():
    frontier = next(r for r in rows.load() if r.machine["name"] == "dataflow-h100")
    assert inputs_of(frontier).machine.to_device_bytes_per_s == 54.6e9
    assert inputs_of(frontier, rates="sheets").machine.to_device_bytes_per_s != 54.6e9


def test_a_pool_is_the_row_s(tmp_path):
    frontier = next(r for r in rows.load() if r.machine.get("pool_gib") == 8.8)
    assert inputs_of(frontier).machine.device.pool_bytes == 8.8 * GIB


def test_a_report_is_whole_as_json():
    results = predicted([row("a"), row("b", 5, calibration=True)], answer())
    document = check.as_document(check.Report(results=results, sheets=results))
    again = json.loads(json.dumps(document))
    assert [each["id"] for each in again["rows"]] == ["a", "b"]
    assert again["summary"]["rows"] == 2
    assert again["rows"][1]["error"] == pytest.approx(1.0)
    assert again["median_of_source"] == {"an author": 0.0}
