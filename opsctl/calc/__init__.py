"""Arithmetic of a training run: sizes, memory, topologies, time, cost, failures. Pure; each names its source."""
