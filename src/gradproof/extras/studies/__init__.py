"""The training systems of the field, run and measured: one module a system, each with a command and a document."""
