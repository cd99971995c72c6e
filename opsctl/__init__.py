"""opsctl keeps a months-long training run alive on a Slurm cluster.

`opsctl.Train` is the Python API. The first use imports it, so that `import opsctl` stays light.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["Train", "__version__", "errors"]

TYPE_CHECKING = False  # type checkers know the name; importing `typing` would take longer than the whole rank wrapper
if TYPE_CHECKING:
    from opsctl.base import errors
    from opsctl.train import Train


def __getattr__(name: str) -> object:
    if name not in ("Train", "errors"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 (only for the API; a static import would close a circle)

    return import_module("opsctl.base.errors") if name == "errors" else import_module("opsctl.train").Train


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
