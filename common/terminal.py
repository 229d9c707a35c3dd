"""Whether a stream may be written in colour: on a terminal that can show it, unless NO_COLOR says no."""

from collections.abc import Mapping
from typing import TextIO

from celeriac.common.layers import ENVIRON


def may_colour(stream: TextIO, environ: Mapping[str, str] = ENVIRON) -> bool:
    """False when piped, when NO_COLOR holds anything (no-color.org), and for TERM=dumb."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
