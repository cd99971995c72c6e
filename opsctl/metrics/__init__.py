"""Metrics of all trains for Prometheus: definitions in families.toml, values in collect.py, output in prometheus.py."""
