"""docs/reference/blame.md shows the table opsctl/diagnosis/blame.toml."""

from pathlib import Path

from opsctl.diagnosis.blame import Proof, Rule, blame_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "blame.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"


def render_table() -> str:
    lines = [
        "| class | causes | queued tasks | evidence that excludes a node | why |",
        "|---|---|---|---|---|",
        *map(render_row, blame_table().rules),
    ]
    return "\n".join(lines) + "\n"


def render_row(rule: Rule) -> str:
    causes = ", ".join(f"`{cause}`" for cause in rule.causes) or "all others"
    if not any(other.causes for other in blame_table().rules if other.kind is rule.kind):
        causes = "all"
    actions = {
        "exclude-nodes": "continue",
        "hold-queued": "held once the fault has ended `fault_attempts` attempts in a row",
        "continue": "continue",
    }
    return f"| {rule.kind.value} | {causes} | {actions[rule.action]} | {render_proof(rule.proof)} | {rule.why} |"


def render_proof(proof: Proof | None) -> str:
    table = blame_table()
    if proof is None:
        return "none: never excluded"
    texts = {
        Proof.SLURM: "a failed health check of the node; or Slurm reports that it lost the node",
        Proof.MESSAGE: "a failed health check of the node",
        Proof.CHECK: "a failed health check of the node",
        Proof.PAIR: f"{table.voices} other nodes complain, and the connection test fails; or a failed health check",
    }
    return f"{texts[proof]}; or {table.repeats[proof]} attempts through which the failure follows the node"


def test_page_shows_the_table() -> None:
    """Run `python -m tests.rules.test_blame_docs` after a change to write the page again."""
    assert f"{BEGIN}{render_table()}{END}" in PAGE.read_text()


def write_page(path: Path) -> None:
    """Write the table between its marks; the text around the table stays."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}{render_table()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    write_page(PAGE)
