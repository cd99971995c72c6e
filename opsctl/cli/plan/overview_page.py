"""The plan of a run as one HTML file without outside references."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from opsctl.base.errors import OpsctlError
from opsctl.trainer.atomic_files import write_atomic

COLOURS = ("#4878a8", "#e08a3c", "#6aa56a", "#c45a5a", "#8a6fb0", "#94745c", "#c884b4", "#888888", "#b8b04a", "#4fb0b8")
WIDTH = 760
SCALED = {
    "step_s": "s of a step",
    "days": "days",
    "gpu_hours": "GPU-hours",
    "energy_mwh": "MWh",
    "failures": "failures",
}
"""Figures that have the error bar of a step, with their labels."""
STYLE = (
    "body{font:15px system-ui,sans-serif;max-width:800px;margin:2em auto;color:#222}"
    "table{border-collapse:collapse}td,th{padding:2px 12px 2px 0;text-align:right}td:first-child,th:first-child"
    "{text-align:left}h2{font-size:1.1em;margin-top:1.6em}text{font-size:12px}"
)


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the page to `path`. Raises OpsctlError if that fails."""
    try:
        write_atomic(path, render_page(data).encode())
    except OSError as error:
        raise OpsctlError(f"{path}: cannot be written: {error.strerror}") from error


def render_page(data: Mapping[str, Any]) -> str:
    """Return the page: the figures, the time of a step by part, the memory by part, and the layouts."""
    bar = data["error_bar"]
    cost = {} if data["cost"] is None else {"cost": f"cost, {data['currency']}"}
    rows = [
        f"<tr><td>{escape(label)}</td><td>{data[name]:,.3g}</td>"
        f"<td>{data[name] * bar['low']:,.3g} to {data[name] * bar['high']:,.3g}</td></tr>"
        for name, label in (SCALED | cost).items()
    ]
    memory = {name: size / 2**30 for name, size in data["memory_bytes"].items()}
    seconds = {name: part for name, part in data["step_s_by_part"].items() if part > 0}
    bars = {
        f"TP{layout['tp']} PP{layout['pp']} DP{layout['dp']} MB{layout['micro_batch']}": layout["seconds"]
        for layout in data["layouts"]
    }
    title = escape(f"{data['model']} on {data['gpus']} {data['gpu']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>{data['parameters'] / 1e9:.1f}B parameters, {data['tokens'] / 1e9:.0f}B tokens, end {data['end']}.</p>"
        f"<table><tr><th></th><th>likely</th><th>8 of 10 cases</th></tr>{''.join(rows)}</table>"
        f"<h2>Seconds of a step by part</h2>{draw_stack(seconds, 's')}"
        f"<h2>GiB of the fullest GPU by part</h2>{draw_stack(memory, 'GiB')}"
        f"<h2>Seconds of a step by layout</h2>{draw_bars(bars, bar)}"
        f"<h2>Assumed</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in data['assumed'])}</ul></html>"
    )


def draw_stack(parts: Mapping[str, float], unit: str) -> str:
    """Return a bar of parts with a legend, as SVG."""
    total = sum(parts.values()) or 1.0
    at, shapes = 0.0, []
    for index, (name, part) in enumerate(parts.items()):
        width, colour = WIDTH * part / total, COLOURS[index % len(COLOURS)]
        label = f"{escape(name)} {part:.3g} {unit} ({part / total:.0%})"
        shapes.append(
            f'<rect x="{at:.1f}" width="{width:.1f}" height="28" fill="{colour}"><title>{label}</title></rect>'
        )
        x, y = index % 3 * WIDTH / 3, 48 + index // 3 * 18
        shapes.append(f'<rect x="{x:.0f}" y="{y - 10}" width="10" height="10" fill="{colour}"/>')
        shapes.append(f'<text x="{x + 15:.0f}" y="{y}">{label}</text>')
        at += width
    height = 60 + (len(parts) - 1) // 3 * 18
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">{"".join(shapes)}</svg>'


def draw_bars(values: Mapping[str, float], bar: Mapping[str, float]) -> str:
    """Return bars with whiskers at the error bar, as SVG."""
    longest = max(values.values(), default=1.0) * bar["high"]
    scale, shapes = (WIDTH - 240) / longest, []
    for index, (name, value) in enumerate(values.items()):
        y = 8 + index * 24
        low, high = 160 + value * bar["low"] * scale, 160 + value * bar["high"] * scale
        shapes.append(f'<text x="0" y="{y + 12}">{escape(name)}</text>')
        shapes.append(f'<rect x="160" y="{y}" width="{value * scale:.1f}" height="16" fill="{COLOURS[0]}"/>')
        shapes.append(f'<path d="M{low:.1f} {y + 8}H{high:.1f}" stroke="#222" stroke-width="2"/>')
        shapes.append(f'<text x="{high + 6:.1f}" y="{y + 12}">{value:.3g} s</text>')
    return f'<svg viewBox="0 0 {WIDTH} {16 + 24 * len(values)}" width="{WIDTH}" role="img">{"".join(shapes)}</svg>'
