"""The trainer's trains, for the proofs too."""

from tests.integration.trainer.conftest import corpus, train, trains, uninterrupted

__all__ = ["corpus", "train", "trains", "uninterrupted"]
