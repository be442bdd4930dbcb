"""What every part of gradproof stands on: outcomes, checks, errors, the workspace, and the schemas of documents."""
