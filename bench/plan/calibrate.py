"""Fits the constants of pyclient/memtide_plan/data/calibration.json to the rows marked for it.

    PYTHONPATH=pyclient python bench/plan/calibrate.py [--write] [--only NAME ...]

Prints each constant before the fit, as it is in the file, and fitted; --write writes those.
The planner's process has to be found: memtide-replay on PATH, or $MEMTIDE_REPLAY.
"""

import argparse
import json

from memtide_plan import calibration, check, fit, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the values into the file")
    parser.add_argument("--only", nargs="+", help="fit these constants alone")
    flags = parser.parse_args()
    constants = fit.fitted_constants()
    if flags.only:
        constants = {name: constants[name] for name in flags.only}
    values = fit.fit(rows.load(), check.estimates, constants)
    document = {name: dict(entry) for name, entry in calibration.document().items()}
    for name, value in values.items():
        entry = document[name]
        print(f"{name:24} {entry['unfitted']:8.3g} {entry['value']:8.3g} {value:8.3g}")
        entry["value"] = value
    if flags.write:
        lines = ",\n".join(f' "{name}": {json.dumps(entry)}' for name, entry in document.items())
        calibration.PATH.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
