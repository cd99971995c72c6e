"""The start of the guard: what is imported before the body, and what happens if the guard cannot start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cases import read_cases, read_table

NEEDED_LATER = tuple(read_table(__file__, "needed_later"))
"""Modules that are not imported before the body."""
START = "import sys; from opsctl import start_guard\n"


def run_python(code: str, *argv: str, site: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", **({"OPSCTL_SITE": str(site)} if site else {})}
    words = [sys.executable, "-P", "-c", START + code, *argv]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory whose wrapper tells that the body would run without a guard."""
    (tmp_path / "wrapper.slurm").write_text('echo "guard failed: $OPSCTL_GUARD_FAILED"; exit 85\n')
    return tmp_path


@pytest.mark.parametrize(*read_cases(__file__, "failing_import_starts_the_body_alone"))
def test_failing_import_starts_the_body_alone(run: Path, code: str, cause: str) -> None:
    result = run_python(f"{code}\nstart_guard.main(sys.argv[1:])", str(run))
    assert (result.returncode, result.stdout) == (85, "guard failed: yes\n")
    assert f"opsctl: the guard cannot start: {cause}" in result.stderr


def test_broken_site_file_starts_the_body_alone(run: Path, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("root = 3\n")
    result = run_python("start_guard.main(sys.argv[1:])", str(run), site=site)
    assert (result.returncode, result.stdout) == (85, "guard failed: yes\n")


def test_probe_of_the_wrapper_imports_no_package() -> None:
    result = run_python(
        "print(*{name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'})"
    )
    at_start = {"_distutils_hack", "sitecustomize"}  # of setuptools, and of Debian
    assert set(result.stdout.split()) <= {"opsctl", *at_start}, result.stdout


def test_nothing_that_can_wait_is_imported_first(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(f'root = "{tmp_path}"\n')
    result = run_python("start_guard.import_guard(); import json; print(json.dumps([*sys.modules]))", site=site)
    imported = json.loads(result.stdout)
    assert "opsctl.guard.supervisor" in imported
    assert [name for name in imported if name.startswith(NEEDED_LATER)] == []
