"""Metrics of all trains for Prometheus: definitions in families.toml, values in collect.py, HTTP in serve.py."""
