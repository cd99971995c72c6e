"""Nodes: health, remote commands, collective tests, draining, history."""
