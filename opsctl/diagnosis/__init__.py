"""Diagnosis: the root cause of an attempt's end, and where the ranks of a hung attempt wait."""
