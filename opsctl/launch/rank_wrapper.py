"""How the rank wrapper starts: from one file, with the Python of the node if there is one.

All ranks start at once. Python and the modules of the rank wrapper cost a shared file system 260 metadata operations
for each rank, nearly all in the search for modules; one file and the Python of the node cost six.
"""

import shlex
from pathlib import Path

from opsctl.base.tables import PACKAGE
from opsctl.state.files import MAX_SETTINGS_BYTES, read_text

MODULES = ("search_path", "guard.rank_activity", "guard.rank_output", "guard.rank_signals", "guard.rank")
"""Of opsctl, each before those that import it."""
_FILE = """import __future__, sys
for name, source in {sources}:
    module = sys.modules[name] = type(sys)(name)
    exec(compile(source, name, "exec", __future__.annotations.compiler_flag), module.__dict__)
main = module.main
"""
_START = (
    'import sys; file, package = sys.argv[1:3]; sys.path.append(package + "/.."); '
    r'exec("try: source = open(file).read()\nexcept OSError: source = \"from opsctl.guard.rank import main\""); '
    "exec(source); sys.exit(main(sys.argv[3:]))"
)
"""Without a guard, the file may be missing."""
_CHOOSE = (
    'python=/usr/bin/python3; "$python" -I -S -c "import ctypes, select, sys; sys.exit(sys.version_info < (3, 9))" '
    '2>/dev/null || python=$0; exec "$python" "$@"'
)
"""The Python of the node may be missing, old, or incomplete, or fail with the libraries that a module has put first."""


def render_rank_wrapper() -> str:
    """Return the rank wrapper as one file, which defines `main`. Raises OSError."""
    paths = {f"opsctl.{name}": PACKAGE / f"{name.replace('.', '/')}.py" for name in MODULES}
    return _FILE.format(sources=ascii([(name, read_text(path, MAX_SETTINGS_BYTES)) for name, path in paths.items()]))


def start_with(python: str, file: Path, package: Path = PACKAGE) -> tuple[str, ...]:
    """Return the words that start the rank wrapper in `file` with a Python; without the file, from the package."""
    return python, "-I", "-S", "-c", _START, str(file), str(package)


def start_on_node(python: str, file: Path) -> str:
    """Return the shell words that start the rank wrapper with the Python of the node, or else with `python`."""
    return shlex.join(("sh", "-c", _CHOOSE, *start_with(python, file)))
