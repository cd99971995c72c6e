"""Arithmetic of a training run: sizes, memory, topologies, time, cost, failures. Pure functions that name their source."""
