"""Checks that find known mistakes in a train before the train is submitted."""
