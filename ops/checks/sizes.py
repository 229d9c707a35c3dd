"""Our size limits: functions, files, comments (habits). Prints the figures; exits 1 with a line for each breach."""

import ast
import subprocess
import sys
from pathlib import Path

FUNCTION_LINES = 60
FILE_LINES, TEST_LINES = 400, 600
MEDIAN_LINES = 11


def tracked() -> list[Path]:
    """Python files that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in map(Path, dict.fromkeys(names)) if path.is_file() and not path.is_symlink()]


def functions(path: Path) -> list[tuple[str, int]]:
    """(place, lines) of every function."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(f"{path}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1) for node in found]


def main() -> int:
    """Check everything."""
    faults: list[str] = []
    lengths: list[int] = []
    for path in tracked():
        is_test = path.parts[0] == "tests"
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines > (TEST_LINES if is_test else FILE_LINES):
            faults.append(f"{path}: {lines} lines")
        if not is_test:
            measured = functions(path)
            lengths += [count for _, count in measured]
            faults += [f"{place}: {count} lines" for place, count in measured if count > FUNCTION_LINES]
    lengths.sort()
    median, p95 = lengths[len(lengths) // 2], lengths[int(len(lengths) * 0.95)]
    print(f"{len(lengths)} functions, median {median} lines, 95th percentile {p95}, longest {lengths[-1]}")
    if median > MEDIAN_LINES:
        faults.append(f"median function {median} lines")
    for fault in faults:
        print(f"over the limit: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
