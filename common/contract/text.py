"""Text that any encoder accepts: a lone surrogate would make a request body or a record impossible to write (C31)."""

import re
from typing import Annotated

from pydantic import AfterValidator

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""In a Python string every surrogate is a lone one."""


def clean_text(text: str) -> str:
    """The text with U+FFFD for each lone surrogate."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


CleanText = Annotated[str, AfterValidator(clean_text)]
"""A field that can always be written, whatever text it was made of: a file name, an error of some library."""


def is_text(text: str) -> bool:
    """Whether any encoder accepts it as it is."""
    return text.isascii() or _LONE_SURROGATE.search(text) is None
