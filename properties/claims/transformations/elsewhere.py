"""The other process of `passing.another_process`: makes one call, prints digests of its results."""

import hashlib
import json
import sys

from properties import environment
from properties.cases.case import Case
from properties.judging.calls import Calls, Outputs
from properties.judging.result import Result
from properties.judging.targets import Target


def main() -> None:
    """Reads what to call from standard input as JSON: target, masked_rows, mode, case, folder."""
    environment.settle()
    request = json.load(sys.stdin)
    case = Case.from_json(request["case"], request["folder"])
    target = Target.load(request["target"], request["masked_rows"])
    calls = Calls(Result("another process", case, request["mode"]), target)
    print(json.dumps(digests(calls.plain())))


def digests(outputs: Outputs) -> dict[str, str]:
    """A digest of the bits of each output."""
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in outputs.items()}
