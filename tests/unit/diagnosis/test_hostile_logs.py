"""Any log gets a diagnosis."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.diagnose_attempt import diagnose_logs
from tests.unit.diagnosis.conftest import CORPUS

KNOWN = [line for path in sorted(CORPUS.rglob("*.txt")) for line in path.read_bytes().splitlines()][::7]
LINES = st.one_of(st.binary(max_size=80), st.sampled_from(KNOWN), st.just(b" iteration 10/ 20 | lm loss: 1.0 |"))
LOG = st.lists(
    st.tuples(st.sampled_from([b"", b"[n1:0]: ", b"[n2:1]: ", b"[rank3]: ", b"[default7]:"]), LINES), max_size=12
)


@given(st.lists(LOG, min_size=1, max_size=3))
def test_any_logs_get_a_diagnosis(logs: list[list[tuple[bytes, bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name, f"n{number}-{number}.log") for number in range(len(logs))]
        for path, lines in zip(paths, logs, strict=True):
            path.write_bytes(b"\n".join(prefix + line for prefix, line in lines))
        assert diagnose_logs(paths).says
