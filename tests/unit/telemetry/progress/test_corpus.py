"""Lines that other trainers print. `pytest tests/unit/telemetry/progress/test_corpus.py`

The patterns are tuned on the tuning half alone. Of the test half, only counts are ever shown.
"""

import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from opsctl.telemetry.progress.log_events import ProgressEvent, load_event_patterns, load_words
from opsctl.telemetry.progress.step_reader import LineFacts, StepReader

CORPUS = Path("tests/corpus/progress")
VALUES = {
    "step": "step",
    "total_steps": "last",
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "skipped": "skipped",
    "step_seconds": "step_s",
    "tokens_per_s": "tokens_per_s",
}
"""Keys of the corpus and the fields of Iteration."""
EVENTS = ("saving", "saved", "resuming", "resumed", "finished", "signalled", "exiting")
Result = Counter[str]


def load_records(half: str) -> list[dict[str, Any]]:
    records = []
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if record["half"] == half:
                records.append({**record, "trainer": path.stem})
    return records


def is_equal(stated: object, expected: object) -> bool:
    if stated is None or expected is None:
        return stated is expected
    one, other = float(str(stated)), float(str(expected))
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-12)


def stated_values(facts: LineFacts) -> dict[str, object]:
    """Return the values of a line in the keys of the corpus. Events state steps too."""
    values: dict[str, object] = {key: facts.values.get(name) for key, name in VALUES.items()}
    if values["skipped"] is None:
        values["skipped"] = facts.values.get("skipped_total")
    for event in facts.events:
        for key, value in (("step", event.step), ("total_steps", event.total)):
            if values[key] is None:
                values[key] = value
    return values


def stated_event(events: tuple[ProgressEvent, ...], kind: str) -> object:
    """Return what the corpus expects of a kind of event: a path, True, False or None."""
    for event in events:
        if event.kind.value == kind:
            return event.path or event.is_found
    return None


def judge_line(facts: LineFacts, expected: dict[str, Any]) -> Result:
    """Count the values and events of a line that are right, missing, wrong, or stated by the parser alone."""
    result: Result = Counter()
    stated = stated_values(facts)
    for key in VALUES:
        if key in expected or stated[key] is not None:
            outcome = "right" if is_equal(stated[key], expected.get(key)) else "wrong"
            outcome = "missing" if stated[key] is None else outcome
            outcome = "surplus" if key not in expected else outcome
            result[f"value {outcome}"] += 1
    for kind in EVENTS:
        event = stated_event(facts.events, kind)
        if kind in expected or event is not None:
            is_right = event is not None and kind in expected and _is_same_event(event, expected[kind])
            result["event right" if is_right else "event wrong"] += 1
    is_right_line = not any(count for name, count in result.items() if not name.endswith("right"))
    result["line right" if is_right_line else "line wrong"] += 1
    return result


def _is_same_event(event: object, expected: object) -> bool:
    """Whether an event has the path of the corpus. Signals and reasons are not compared."""
    return event == expected if isinstance(expected, str) and "/" in expected else bool(event) == bool(expected)


def evaluate(half: str) -> dict[str, Result]:
    """Return the counts of a half by trainer."""
    results: dict[str, Result] = {}
    for record in load_records(half):
        reader = StepReader()
        expected = {entry["line"]: entry for entry in record["expect"]}
        for number, line in enumerate(record["lines"]):
            facts = reader.read(line.encode())
            results.setdefault(record["trainer"], Counter()).update(judge_line(facts, expected.get(number, {})))
    return results


def share(half: str, what: str) -> float:
    """Return the share of `what` that is right."""
    total = sum(evaluate(half).values(), Counter())
    every = sum(count for name, count in total.items() if name.startswith(what))
    return total[f"{what} right"] / every


TEST_HALF_FLOORS = {"line": 0.9, "value": 0.9, "event": 0.75}


def test_tuning_half_is_read() -> None:
    assert {what: share("tuning", what) for what in TEST_HALF_FLOORS} == {"line": 1.0, "value": 1.0, "event": 1.0}


def test_test_half_is_read() -> None:
    low = {what: share("test", what) for what, floor in TEST_HALF_FLOORS.items() if share("test", what) < floor}
    assert low == {}


def test_words_of_events_suffice() -> None:
    """Every line that an event pattern matches holds a word; and the patterns match something in the corpus."""
    lines = [line for record in load_records("tuning") for line in record["lines"]]
    matched = [line for line in lines if any(row.pattern.search(line) for row in load_event_patterns())]
    assert len(matched) > 30
    assert [line for line in matched if not any(word in line for word in load_words())] == []


def summarize() -> str:
    """Return the shares of both halves, and the counts by trainer."""
    lines = []
    for half in ("tuning", "test"):
        lines.append(f"{half}: " + ", ".join(f"{what} {share(half, what):.1%}" for what in TEST_HALF_FLOORS))
        lines += [f"  {trainer:20} {dict(sorted(result.items()))}" for trainer, result in evaluate(half).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(summarize() + "\n")
