"""Test nodes with collectives, and search for the nodes that make a test fail."""
