"""Optional parts, each for one command: conformance of kernels, bundles, claims of the field, studies."""
