"""Packed answers of many nodes: the real script of the nodes, and whatever srun may print around its lines."""

import os
import subprocess
from pathlib import Path

import pytest

from opsctl.base.ports import Answer, Completed
from opsctl.slurm.steps import PACK_SCRIPT, parse_answers


def run_packed(node: str, task: int, script: str, path: str = os.environ["PATH"]) -> tuple[str, str]:
    """Return stdout and stderr of a node's command, as srun --label prints them."""
    argv = ("/bin/sh", "-c", PACK_SCRIPT.read_text(), "sh", "asked\n", "/bin/sh", "-c", script)
    env = {"SLURMD_NODENAME": node, "PATH": path}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=250, check=True)
    out, err = ([f"{task:2}: {line}\n" for line in text.splitlines()] for text in (done.stdout, done.stderr))
    return "".join(out), "".join(err)


def parse(out: str, err: str = "") -> dict[str, Answer]:
    lost = Answer(node="", by="srun", problem="lost")
    return parse_answers(Completed(argv=(), code=0, out=out, err=err), [f"n{number}" for number in range(12)], lost)


@pytest.mark.parametrize("has_gzip", [True, False])
def test_answer_is_exact(tmp_path: Path, has_gzip: bool) -> None:
    for name in ("base64", "cat", "awk"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    path = os.environ["PATH"] if has_gzip else str(tmp_path)
    script = "cat; awk 'BEGIN { for (n = 0; n < 9000; n++) printf \"%d @#:\", n }'; printf '1: é\\t\\0\\n' >&2; exit 7"
    out = "asked\n" + "".join(f"{number} @#:" for number in range(9000))
    answers = parse(*run_packed("n7", 3, script, path))
    assert answers["n7"] == Answer(node="n7", by="srun", code=7, out=out, err="1: é\t\0\n")
    assert answers["n3"] == Answer(node="n3", by="srun", problem="lost")


def test_mixed_lines_are_separated_and_others_left_out() -> None:
    parts = [run_packed(f"n{task}", task, f"seq {task} 400; echo {task} >&2; exit {task}") for task in range(12)]
    rows = [text.splitlines() for text, _ in parts]
    lines = [row[place] for place in range(max(map(len, rows))) for row in rows if place < len(row)]
    noise = [
        " 1: hello",
        " 2: prolog says hello",
        "srun: Job step creation temporarily disabled",
        "slurmstepd: error: x",
        "3: ",
    ]
    errors = "".join(err for _, err in parts) + " 1: slurmstepd: error: oom\n 2: bye\n"
    answers = parse("\n".join([*noise, *lines, *noise]), errors)
    assert {node: (answer.code, answer.out.split()[0], answer.err) for node, answer in answers.items()} == {
        f"n{task}": (task, str(task), f"{task}\n") for task in range(12)
    }


def test_node_that_has_not_ended_has_no_exit_code() -> None:
    out, err = run_packed("n1", 0, "seq 100000")
    answers = parse(out[: len(out) // 2], err)
    assert (answers["n1"].code, answers["n1"].problem) == (None, "lost")
    assert answers["n1"].out.startswith("1\n2\n3\n")
