"""From findings to people: the ledger knows what changed, the outbox delivers it, whatever fails on the way."""
