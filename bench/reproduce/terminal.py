"""The two consoles that the command line writes to: standard output and standard error."""

import sys
from functools import cache

from rich.console import Console
from rich.text import Text

wide = None if sys.stdout.isatty() else 400  # a file or a pipe has no width: lines stay whole
out = Console(soft_wrap=True, highlight=False, width=wide)
err = Console(stderr=True, soft_wrap=True, highlight=False)


@cache  # a command may look at the same folder more than once
def say_left_out(why: str) -> None:
    """Write one line on standard error for a run that is left out, whatever stands in its name."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in why)
    err.print(Text(f"reproduce: left out: {plain}"))
