"""The coordinator's texts: its system prompt and the descriptions of its tools."""

from pathlib import Path


def text(name: str) -> str:
    """The text file of this name."""
    return (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").strip()
