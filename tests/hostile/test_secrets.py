"""Secrets in logs, command lines and variables: struck out of what is published, recorded and logged."""

import re

import pytest

from opsctl.base.secret_formats import Secrets, find_in_environment
from opsctl.guard.reproduction import HIDDEN, mask
from opsctl.preflight.checks.secrets import _find_secret
from tests.support.cases import read_table

MAX_S = 4.0
"""Of processor time for 200 kB, on a busy machine. One quadratic pattern takes minutes."""


@pytest.mark.attack("a secret passes into a publication, the record of an attempt or the body of a train")
@pytest.mark.parametrize("line", read_table(__file__, "secrets"))
def test_secret_is_struck(line: str) -> None:
    before, secret, after = re.fullmatch("(.*)«(.*)»(.*)", line).groups()
    text = before + secret + after
    struck = Secrets().strike_text(text)
    assert secret.split()[0] not in struck
    assert struck.startswith(before.split("=")[0].split(":")[0][:10])
    assert secret.split()[0] not in mask({"NOTE": text})["NOTE"]
    assert _find_secret(text), "preflight"


@pytest.mark.parametrize("line", read_table(__file__, "harmless"))
def test_harmless_line_stays(line: str) -> None:
    assert Secrets().strike_text(line) == line


@pytest.mark.attack("a variable with an unusual name shows its secret in the record")
@pytest.mark.parametrize(
    "name",
    ["SLURM_JWT", "MY_PWD", "CREDS", "DB_CREDS", "DB_PASS", "SSHPASS", "PGPASSWORD", "my_pwd", "AWS_CREDENTIALS"],
)
def test_secret_variable_is_hidden(name: str) -> None:
    assert mask({name: "hunter2-hunter2"}) == {name: HIDDEN}
    assert list(find_in_environment({name: "hunter2-hunter2"})) == ["hunter2-hunter2"]
    assert mask({"PWD": "/work"}) == {"PWD": "/work"}
