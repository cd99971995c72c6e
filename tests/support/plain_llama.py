"""Llama and its relatives by their formulas, head by head, with rotations as products of complex numbers."""

import math

import torch
from torch.nn import functional


def forward(model, w: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of `tokens` [b, s] by the weights `<layer>.<name>`."""
    x = w["0.weight"][tokens]
    for layer in range(2, 2 + model.layers):
        x = x + _attention(model, w, _norm(model, x, w[f"{layer}.norm1.weight"]), f"{layer}")
        normed = _norm(model, x, w[f"{layer}.norm2.weight"])
        gate, up = (normed @ w[f"{layer}.{name}.weight"].T for name in ("gate", "up"))
        x = x + (gate * torch.sigmoid(gate) * up) @ w[f"{layer}.down.weight"].T
    last = 2 + model.layers
    output = w["0.weight"] if model.is_tied else w[f"{last + 1}.projection.weight"]
    return _norm(model, x, w[f"{last}.weight"]) @ output.T


def _attention(model, w, x, layer):
    queries, width, length = model.heads // model.group_count, model.width_of_head, x.shape[1]
    rows = functional.linear(x, w[f"{layer}.qkv.weight"], w.get(f"{layer}.qkv.bias"))
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = []
    for group in rows.split((queries + 2) * width, dim=-1):
        *heads, k, v = group.split(width, dim=-1)
        k = _turn(model, _head_norm(model, k, w, f"{layer}.k_norm"))
        for head in heads:
            q = _turn(model, _head_norm(model, head, w, f"{layer}.q_norm"))
            scores = q @ k.transpose(1, 2) / math.sqrt(width)
            mixed.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v)
    return torch.cat(mixed, dim=-1) @ w[f"{layer}.out.weight"].T


def _head_norm(model, x, w, name):
    return _norm(model, x, w[f"{name}.weight"]) if model.qk_norm else x


def _norm(model, x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + (model.norm_eps or 1e-5)) * weight


def _turn(model, x):
    """Return `x` [b, s, width] with the pair (i, i + width / 2) turned by position x frequency i."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[1]).float(), torch.tensor(list_frequencies(model, half)))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), dim=-1)


def list_frequencies(model, half):
    """Return the rotary frequencies of a head with `half` pairs."""
    return [_stretch(model.rope_scaling, (model.rope_theta or 1e4) ** (-i / half)) for i in range(half)]


def _stretch(scaling, frequency):
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength, original = 2 * math.pi / frequency, scaling.original_sequence
    if wavelength < original / scaling.high_freq_factor:
        return frequency
    if wavelength > original / scaling.low_freq_factor:
        return frequency / scaling.factor
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = (original / wavelength - low) / (high - low)
    return (1 - share) * frequency / scaling.factor + share * frequency
