"""contract.yaml -> Contract, and the settings beside it. Every mistake has a code and file:line:col."""
