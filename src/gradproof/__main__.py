"""`gradproof` and `python -m gradproof`.

`python -m` searches the current folder first, where a `click.py` or `json.py` of a user's would be taken for the real
one. So that folder is taken off before anything is imported; `from __future__` would be such an import.
"""

import os
import sys


def forget_the_current_folder() -> None:
    """Take off what `python -m` put first on the import path, unless `python -P` has kept it away."""
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    if not sys.flags.safe_path and sys.path[:1] == [here]:
        del sys.path[0]


def began() -> tuple[str, ...] | None:
    """The import path without the script's own folder; None where Python was started in a way that no worker is."""
    flags = sys.flags
    strange = bool(flags.no_user_site or flags.no_site or flags.isolated or flags.ignore_environment)
    strange |= "" in os.environ.get("PYTHONPATH", "x").split(os.pathsep)  # the current folder, which workers leave out
    strange |= any(name in sys.modules for name in _CUSTOM) or any(name in os.environ for name in _MOVED)
    own = [] if flags.safe_path else [os.path.dirname(os.path.realpath(sys.argv[0]))]
    return None if strange else tuple(sys.path[1:] if sys.path[:1] == own else sys.path)


def main() -> None:
    """The command line, in a process that is its own."""
    gradproof.STARTED = began()
    cli.main()


if __name__ == "__main__":
    forget_the_current_folder()

import gradproof  # noqa: E402
from gradproof import cli  # noqa: E402

_CUSTOM = ("sitecustomize", "usercustomize")
_MOVED = ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONPLATLIBDIR")

if __name__ == "__main__":
    main()
