"""Events with the fields that a test does not care about."""

from typing import Any

from opsctl.state.events import Diagnosed


def make_diagnosed(**fields: Any) -> Diagnosed:
    empty = {"cause_kind": "gpu", "says": "", "node": "", "rank": None, "advice": ""}
    lists: dict[str, Any] = {"suspects": (), "evidence": (), "also": ()}
    return Diagnosed(**{**empty, **lists, **fields})
