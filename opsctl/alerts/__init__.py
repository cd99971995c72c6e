"""The alert path: Finding → Transition → Message → Delivery. The ledger finds transitions; the outbox delivers."""
