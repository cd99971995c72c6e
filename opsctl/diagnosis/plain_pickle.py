"""Read pickles that hold only plain containers, numbers and texts. No pickled code can run, and no class is loaded."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NUMBERS = frozenset({"BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"})
_TEXTS = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"})
_NEW = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME"})


def load_plain(data: bytes) -> Any:
    """Return the object of a pickle. Raises ValueError for anything but plain containers, numbers and texts."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.run(opcode.name, argument)
    except (IndexError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise ValueError(f"not a plain pickle: {error}") from error
    raise ValueError("not a pickle: no end")


class _Machine:
    """The stack machine of pickle, without the instructions that load or call anything."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _NUMBERS | _TEXTS:
            self.stack.append(argument)
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _TUPLES:
            self.stack.append(tuple(self._pop(_TUPLES[name])))
        elif not self._run_container(name) and not self._run_memo(name, argument):
            raise ValueError(f"a pickle with the instruction {name}")

    def _run_container(self, name: str) -> bool:
        """Carry out an instruction that fills a container. Return whether there is such an instruction."""
        if name == "MARK":
            self.stack.append(_MARK)
        elif name in _FROM_MARK:
            self.stack.append(_FROM_MARK[name](self._pop_to_mark()))
        elif name in {"APPEND", "APPENDS"}:
            values = self._pop(1) if name == "APPEND" else self._pop_to_mark()
            self._top(list).extend(values)
        elif name in {"SETITEM", "SETITEMS"}:
            values = self._pop(2) if name == "SETITEM" else self._pop_to_mark()
            self._top(dict).update(_to_dict(values))
        else:
            return False
        return True

    def _run_memo(self, name: str, argument: Any) -> bool:
        """Store or fetch an object. Return whether there is such an instruction."""
        if name in {"BINPUT", "LONG_BINPUT", "PUT"}:
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in {"BINGET", "LONG_BINGET", "GET"}:
            self.stack.append(self.memo[int(argument)])
        else:
            return False
        return True

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("a pickle that takes more than it holds")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"a pickle that fills something else than a {kind.__name__}")
        return self.stack[-1]


def _to_dict(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


_FROM_MARK: dict[str, Callable[[list[Any]], Any]] = {"TUPLE": tuple, "LIST": list, "DICT": _to_dict}
