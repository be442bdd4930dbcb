"""The ledger: every claim of the field with the verdict that the evidence at hand gives it."""
