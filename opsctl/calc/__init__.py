"""Arithmetic of a training run: sizes, memory, topologies, time, cost, failures. Pure functions name their source."""
