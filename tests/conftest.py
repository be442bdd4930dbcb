"""Every test begins with the same signals, whatever started pytest."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it for what it starts with `&`
    signal.signal(signal.SIGINT, signal.default_int_handler)
