"""The evidence bundle: a folder that a stranger can judge offline. It supports a verdict; it does not replace one."""
