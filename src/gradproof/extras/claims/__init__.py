"""The ledger: every claim of the field with the verdict that the stored evidence gives it."""

from __future__ import annotations

FILE = "proofs/claims.yaml"
