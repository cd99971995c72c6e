"""The figures of all trains for Prometheus: what there is (families.py), where it comes from (gather.py)."""
