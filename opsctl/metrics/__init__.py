"""Metrics of all trains for Prometheus: definitions in families.py, values in collect.py, HTTP in serve.py."""
