"""Every command of the tutorial about a Llama runs, in order, on a real sandbox: six minutes."""

import re
import shutil

import pytest

from tests.support.pages import ROOT, read_script, run_script

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1500)]


@pytest.mark.skipif(not shutil.which("slurmctld"), reason="needs slurmctld")
def test_llama_trains_through_crash_and_time_limit(tmp_path):
    output = run_script(
        read_script((ROOT / "docs/tutorial-llama.md").read_text(), {"pip install '.[trainer,export]'": ":"}),
        tmp_path,
        "llama",
        timeout_s=1400,
    )
    ends = re.findall(r"^1_\d+\.0 .*?m?\d+s +([a-z-]+) +node", output, re.MULTILINE)
    assert ends[0] == "node-failed", output
    assert "deadline" in ends[1:-1], output
    assert ends[-1] == "finished", output
    assert "starting with the weights of" in output, output
    assert "logits differ by 0.0e+00 at most" in output, output
    first, trained = (
        float(loss) for loss in re.findall(r"^(?:small-llama|exported): loss (\S+),", output, re.MULTILINE)
    )
    assert trained < first - 1, output
    assert "none left" in output, output
