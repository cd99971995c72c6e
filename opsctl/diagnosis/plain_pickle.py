"""Read pickles that hold only plain containers, numbers and texts. No pickled code can run, and no class is loaded."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any, NoReturn

_PLAIN = re.compile(
    r"PROTO|FRAME|MARK|STOP|MEMOIZE|(?:LONG_)?BINGET|GET|(?:LONG_)?BINPUT|PUT|NONE|NEWTRUE|NEWFALSE"
    r"|INT|BININT[12]?|LONG[14]?|(?:BIN)?FLOAT|UNICODE|(?:SHORT_)?BINUNICODE|BINUNICODE8"
    r"|(?:EMPTY_)?(?:DICT|LIST|TUPLE)|TUPLE[123]|APPENDS?|SETITEMS?"
)
"""Names of the instructions for containers, numbers and texts; all others are refused."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        raise ValueError(f"a pickle that loads {module_name}.{global_name}")


def load_plain(data: bytes) -> Any:
    """Return the object of a pickle. Raises ValueError for anything but plain containers, numbers and texts."""
    try:
        for opcode, argument, _ in pickletools.genops(data):
            # Before it stores an object under a number, the unpickler reserves memory for as many.
            is_far = "PUT" in opcode.name and not 0 <= int(argument or 0) <= len(data)
            if is_far or not _PLAIN.fullmatch(opcode.name):
                raise ValueError(f"a pickle with the instruction {opcode.name}")
        return _Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, LookupError, TypeError, OverflowError, AttributeError, EOFError) as error:
        raise ValueError(f"not a plain pickle: {error}") from error
