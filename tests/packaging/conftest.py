"""The wheel of this checkout, built and installed without network beside the packages of this environment."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-P", "-m", "pip", "-q", "--disable-pip-version-check", "--no-cache-dir")


@dataclass(frozen=True)
class Installed:
    """A virtual environment with opsctl installed from its wheel."""

    bin: Path
    wheel: Path
    home: Path

    def env(self, **more: str) -> dict[str, str]:
        """Return environment variables without settings and without Slurm."""
        own = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "OPSCTL_ROOT": str(self.home / "trains")}
        return {**own, **more}

    def run(self, *argv: str, cwd: Path, code: int | None = 0, **env: str) -> str:
        """Run a program of the environment and return its output, stderr included. `code` None allows any exit code."""
        done = subprocess.run(
            [str(self.bin / argv[0]), *argv[1:]],
            cwd=cwd,
            env=self.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert code is None or done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


def run_checked(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    run_checked([*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT)])
    [path] = directory.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Installed]:
    def install() -> Installed:
        place = tmp_path_factory.mktemp("installed")
        run_checked([sys.executable, "-P", "-m", "venv", "--without-pip", str(place / "venv")])
        python = place / "venv" / "bin" / "python"
        run_checked([*PIP, "--python", str(python), "install", "--no-index", "--no-deps", str(wheel)])
        [packages] = (place / "venv" / "lib").glob("python*/site-packages")
        # Only package directories: a checkout on this environment's path would hide the opsctl of the wheel.
        ours = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
        (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in ours))
        (place / "home").mkdir()
        return Installed(bin=python.parent, wheel=wheel, home=place / "home")

    return install


@pytest.fixture(scope="session")
def installed(install: Callable[[], Installed]) -> Installed:
    return install()
