"""Reads a graph of operators from JSON, and writes one.

    {
      "format": "memtide graph 1",
      "operators": [
        {"name": "embed", "forward_s": 0.002, "backward_s": 0.004, "state_bytes": 1.6e9,
         "gradient_bytes": 2e8, "saved_bytes": 8e6, "output_bytes": 4e6},
        {"name": "head", "forward_s": 0.003}
      ],
      "edges": [["embed", "head"]]
    }

Times are those of one micro-batch, or of one inference, on one of the devices. A size or a time
that is left out is 0, but for gradients of an operator with a backward pass: they are then the part
of its states that they are where a parameter has 16 bytes, an eighth. An edge has the operator that
writes and the one that reads. Operators may stand in any order.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from memtide._plan_file.training import States
from memtide.errors import InvalidArgument, NotFound

from memtide_plan.devices.graph.operators import NUMBERS, Graph, Operator, make_graph

FORMAT = "memtide graph 1"
_MOST_BYTES = 64 * 2**20
# The part of an operator's states that are gradients, if the file does not say.
_GRADIENT_SHARE = States().gradient / States().trained()


def load_graph(path: Path) -> Graph:
    """The graph of a file. NotFound: it cannot be read. InvalidArgument: it is no such graph."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(f"{path} has more than {_MOST_BYTES >> 20} MiB; a graph has less")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"the graph {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is no graph: it is not text in UTF-8") from error
    try:
        return parse_graph(json.loads(text))
    except json.JSONDecodeError as error:
        raise InvalidArgument(
            f"{path} is no graph: line {error.lineno} is not JSON: {error.msg}"
        ) from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def parse_graph(document: Any) -> Graph:
    """The graph of parsed JSON. InvalidArgument names what is wrong."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument(f'a graph is an object with "format": "{FORMAT}"')
    unknown = sorted(document.keys() - {"format", "operators", "edges"})
    if unknown:
        raise InvalidArgument(f"a graph has operators and edges, and no '{unknown[0]}'")
    operators, edges = document.get("operators"), document.get("edges", [])
    if not isinstance(operators, list) or not isinstance(edges, list):
        raise InvalidArgument("operators and edges of a graph are lists")
    return make_graph(
        [_operator(number, entry) for number, entry in enumerate(operators)],
        [_edge(number, entry) for number, entry in enumerate(edges)],
    )


def as_document(graph: Graph) -> dict[str, Any]:
    """What a file of the graph has."""
    names = [operator.name for operator in graph.operators]
    return {
        "format": FORMAT,
        "operators": [
            {name: value for name, value in asdict(operator).items() if value != 0}
            | {"forward_s": operator.forward_s, "gradient_bytes": operator.gradient_bytes}
            for operator in graph.operators
        ],
        "edges": [[names[source], names[reader]] for source, reader in graph.edges],
    }


def _operator(number: int, entry: Any) -> Operator:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidArgument(f"operator {number} is no object with a name")
    name = entry["name"]
    unknown = sorted(entry.keys() - {"name", *NUMBERS})
    if unknown:
        raise InvalidArgument(
            f"operator '{name}' has '{unknown[0]}'; it may have {', '.join(NUMBERS)}"
        )
    if "forward_s" not in entry:
        raise InvalidArgument(f"operator '{name}' has no forward_s, the seconds of its forward")
    numbers = {}
    for key in entry.keys() - {"name"}:
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(f"operator '{name}': {key} is {value!r}; it must be a number")
        numbers[key] = float(value)
    if numbers.get("backward_s"):
        numbers.setdefault("gradient_bytes", _GRADIENT_SHARE * numbers.get("state_bytes", 0.0))
    return Operator(name=name, **numbers)


def _edge(number: int, entry: Any) -> tuple[str, str]:
    is_pair = isinstance(entry, list) and len(entry) == 2
    if not is_pair or not all(isinstance(name, str) for name in entry):
        raise InvalidArgument(f"edge {number} is {entry!r}; it must have two names of operators")
    return entry[0], entry[1]
