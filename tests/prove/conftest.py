"""The trainer's trains, for the proofs too."""

from tests.trainer.conftest import corpus, train, trains, uninterrupted

__all__ = ["corpus", "train", "trains", "uninterrupted"]
