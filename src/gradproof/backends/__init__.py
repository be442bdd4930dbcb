"""The old name of `gradproof.execution.methods`, for workspaces that `gradproof init` wrote before 2026-11-23."""
