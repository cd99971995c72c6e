"""The measured configurations of the prequel, from tests/corpus/plan/prequel-rows.csv."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from opsctl.calc.accelerators import ACCELERATORS
from opsctl.calc.gpt_size import ModelShape
from opsctl.calc.parallel_layout import Cluster, Topology

FILE = Path(__file__).parents[1] / "corpus/plan/prequel-rows.csv"

WHOLE = {"line", "table", "nodes", "layers", "hidden", "heads", "dp", "tp", "pp", "mbs", "gbs", "zero"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    line: int
    table: int
    shape: ModelShape
    topology: Topology
    cluster: Cluster
    batch: int
    memory_gb: float | None
    seconds: float | None
    tflops: float | None
    formula: str
    note: str
    printed: str
    billions: int
    """Billions of parameters, as the document prints them."""


@cache
def rows() -> tuple[Row, ...]:
    with FILE.open(newline="") as file:
        return tuple(_row(fields) for fields in csv.DictReader(file))


@cache
def list_distinct_rows() -> tuple[Row, ...]:
    """Return the timed rows. A row that the document repeats in a later table counts once."""
    first_rows = {}
    for row in rows():
        if row.seconds:
            first_rows.setdefault((row.shape, row.topology, row.cluster, row.batch, row.seconds), row)
    return tuple(first_rows.values())


def _row(fields: dict[str, str]) -> Row:
    number = {name: int(value) for name, value in fields.items() if name in WHOLE}
    shape = ModelShape(
        layers=number["layers"], hidden=number["hidden"], heads=number["heads"], vocabulary=250880, positions=True
    )
    topology = Topology(
        tp=number["tp"],
        pp=number["pp"],
        dp=number["dp"],
        micro_batch=number["mbs"],
        zero=number["zero"],
        precision=fields["optimizer"] if fields["optimizer"] != "bf16" else "fp16",
        embedding_slots=fields["slots"] == "layers+embedding",
        recompute="full",
        attention="unfused",
        sequence_parallel=False,
        overlap=False,
    )
    cluster = Cluster(nodes=number["nodes"], gpus_per_node=8, gpu=ACCELERATORS["A100"], node_gb_s=50)
    return Row(
        line=number["line"],
        table=number["table"],
        shape=shape,
        topology=topology,
        cluster=cluster,
        batch=number["gbs"],
        memory_gb=_float(fields["memory_gb"]),
        seconds=_float(fields["seconds"]),
        tflops=_float(fields["tflops"]),
        formula=fields["formula"],
        note=fields["note"],
        printed=fields["printed"],
        billions=int(fields["size_b"]),
    )


def _float(text: str) -> float | None:
    return float(text) if text else None
