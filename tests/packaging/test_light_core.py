"""The core without the packages of any extra: working commands, and messages that name the missing extra."""

import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from opsctl import __version__
from opsctl.base.extras import DISTRIBUTION, EXTRAS
from tests.packaging.conftest import ROOT, Installed
from tests.support.cases import read_table

MAX_DISTRIBUTIONS = 20
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = read_table(__file__, "core")


def list_core_distributions() -> set[str]:
    """Return opsctl without extras and all its requirements, as pip would install them here."""
    wanted, names = list(PROJECT["dependencies"]), {DISTRIBUTION}
    while wanted:
        requirement = Requirement(wanted.pop())
        name = requirement.name.lower().replace("_", "-")
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and name not in names:
            names.add(name)
            wanted += distribution(name).requires or []
    return names


@pytest.fixture(scope="module")
def bare(install) -> Installed:
    """An installation with only the packages that the core requires."""
    made: Installed = install()
    [packages] = (made.bin.parent / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").unlink()
    for name in list_core_distributions() - {DISTRIBUTION}:
        for top in {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}:
            if not (packages / top).exists():  # `__pycache__` belongs to several distributions
                (packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    (made.home / "site.toml").write_text(
        f'engine = "sandbox"\nsandbox = "none"\nroot = "{made.home}/trains"\ntrust_parents = true\n'
    )
    return made


def site(bare: Installed, text: str = "") -> str:
    path = bare.home / "more.toml"
    path.touch(mode=0o600)
    path.write_text((bare.home / "site.toml").read_text() + text)
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize("module", CORE)
def test_core_module_needs_no_extra(bare, module):
    bare.run("python", "-P", "-c", f"import {module}", cwd=bare.home)


def test_core_commands_need_no_extra(bare):
    assert "Usage" in bare.run("opsctl", "--help", cwd=bare.home)
    assert __version__ in bare.run("opsctl", "--version", cwd=bare.home)
    train = str(ROOT / "examples" / "megatron-deepspeed.toml")
    for words in (["status"], ["watch", "fs_quota", "--once"], ["launch", train, "--dry-run"]):
        out = bare.run("opsctl", "--site", site(bare), *words, cwd=bare.home, code=None)
        assert "bug in opsctl" not in out, out
        assert "No module" not in out, out


def test_installed_package_prints_the_file_for_trainers(bare):
    text = bare.run("python", "-P", "-m", "opsctl.integrations", cwd=bare.home)
    assert text == (ROOT / "opsctl" / "integrations" / "opsctl_contract.py").read_text()


def test_doctor_lists_extras(bare):
    out = bare.run("opsctl", "--site", site(bare), "doctor", cwd=bare.home, code=None, COLUMNS="250")
    for name in EXTRAS:
        assert f"extra {name}" in out
        assert f"pip install '{DISTRIBUTION}[{name}]'" in out
    assert "'opsctl[" not in out


def test_channel_names_the_missing_extra(bare):
    channel = '[alerts.channels.team]\nkind = "apprise"\nurl = "json://example.org/x"\n'
    out = bare.run("opsctl", "--site", site(bare, channel), "alerts", "test", cwd=bare.home, code=1, COLUMNS="250")
    assert "needs the extra [alerts]: pip install 'opsctl-slurm[alerts]'" in " ".join(out.split())


def test_ssh_names_the_missing_extra(bare):
    text = site(bare, '[remote]\nways = ["ssh"]\n')
    code = (
        "from opsctl.app import build; from pathlib import Path; "
        f"print(build(Path({text!r})).fanout(jobs={{}}, idle=()).run(['node1'], ['true'], timeout=1)['node1'].problem)"
    )
    out = bare.run("python", "-P", "-c", code, cwd=bare.home)
    assert out.strip() == (
        "ssh: paramiko is not installed; "
        "running commands on nodes by ssh needs the extra [ssh]: pip install 'opsctl-slurm[ssh]'"
    )


def test_metrics_names_the_missing_extra(bare):
    out = bare.run("opsctl", "--site", site(bare), "metrics", cwd=bare.home, code=None)
    assert "pip install 'opsctl-slurm[metrics]'" in out


def test_extras_match_pyproject():
    extras = {name: packages for name, packages in PROJECT["optional-dependencies"].items() if name in EXTRAS}
    for name, extra in EXTRAS.items():
        packages = {Requirement(line).name.replace("-", "_") for line in extras[name]}
        assert packages == set(extra.modules), name


def test_all_is_every_extra_without_torch_and_slurm():
    [line] = PROJECT["optional-dependencies"]["all"]
    assert Requirement(line).extras == set(EXTRAS) - {"trainer", "data", "export", "pyslurm"}


def test_core_needs_few_distributions():
    names = list_core_distributions()
    assert len(names) <= MAX_DISTRIBUTIONS, sorted(names)


def test_wheel_is_typed_and_has_one_package(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"opsctl", f"opsctl_slurm-{__version__}.dist-info"}
    assert {"opsctl/py.typed", "opsctl/trainer/contract.py", "opsctl/watchdogs/__init__.py"} <= set(names)
