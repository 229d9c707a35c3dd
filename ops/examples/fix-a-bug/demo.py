"""The demonstration: a real job on real parts, its model answers from replay.jsonl. Needs no key, service or root."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = Path(sysconfig.get_path("scripts"))


def environment(home: Path) -> dict[str, str]:
    """The user's environment, with our pytest first on PATH and a Celeriac home of its own."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "CELERIAC_HOME": str(home)}


def run_tests(workspace: Path, env: dict[str, str], when: str) -> bool:
    """Run the example's tests by plain pytest; whether they pass."""
    done = subprocess.run(["pytest", "-q"], cwd=workspace, env=env, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ["(no output)"]
    print(f"pytest {when}: {lines[-1]}", file=sys.stderr)
    return done.returncode == 0


def main() -> int:
    """Copy the package, show that its tests fail, run the job, show that they pass."""
    with tempfile.TemporaryDirectory(prefix="celeriac-demo-") as folder:
        workspace = Path(folder) / "package"
        shutil.copytree(HERE / "package", workspace)
        env = environment(Path(folder) / "home")
        if run_tests(workspace, env, "before"):
            print("the example's bug is gone: nothing to demonstrate", file=sys.stderr)
            return 1
        command = [str(SCRIPTS / "celeriac"), "run", "--replay", str(HERE / "replay.jsonl"), "--cwd", str(workspace)]
        code = subprocess.run(command, env=env, check=False).returncode
        passed = run_tests(workspace, env, "after")
        return code or (0 if passed else 1)


if __name__ == "__main__":
    sys.exit(main())
