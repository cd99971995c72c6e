"""Least squares without negative factors, to calibrate a model that is a sum of parts."""

from __future__ import annotations

from collections.abc import Sequence

ITERATIONS = 30


def fit(parts: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return the factors with the least mean of |error| / measured between the sums of parts and the measured seconds.

    The rows are reweighted in every iteration, so that a few outliers do not distort the result.
    """
    weights = [1.0] * len(seconds)
    factors: list[float] = []
    for _ in range(ITERATIONS):
        rows = [[w * part / t for part in row] for w, row, t in zip(weights, parts, seconds, strict=True)]
        factors = _solve_not_negative(rows, weights)
        errors = [abs(_dot(row, factors) / t - 1) for row, t in zip(parts, seconds, strict=True)]
        weights = [max(error, 0.01) ** -0.5 for error in errors]
    return factors


def _solve_not_negative(rows: list[list[float]], target: list[float]) -> list[float]:
    """Solve by least squares, and drop the most negative column until no factor is negative."""
    active = list(range(len(rows[0])))
    while active:
        factors = _least_squares([[row[i] for i in active] for row in rows], target)
        worst = min(range(len(active)), key=lambda k: factors[k] * sum(row[active[k]] ** 2 for row in rows) ** 0.5)
        if factors[worst] >= 0:
            answer = dict(zip(active, factors, strict=True))
            return [answer.get(i, 0.0) for i in range(len(rows[0]))]
        del active[worst]
    return [0.0] * len(rows[0])


def _least_squares(rows: list[list[float]], target: list[float]) -> list[float]:
    """Solve the normal equations. Columns are scaled first, because parts differ by powers of ten."""
    columns = list(zip(*rows, strict=True))
    scales = [sum(x * x for x in column) ** 0.5 or 1.0 for column in columns]
    unit = [[x / scale for x in column] for column, scale in zip(columns, scales, strict=True)]
    matrix = [[_dot(a, b) + (1e-12 if a is b else 0.0) for b in unit] + [_dot(a, target)] for a in unit]
    return [x / scale for x, scale in zip(_solve(matrix), scales, strict=True)]


def _solve(matrix: list[list[float]]) -> list[float]:
    """Solve by Gaussian elimination with the largest pivot. The last column is the right-hand side."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
