"""A copy of the code with one rule of a script taken back, for tests that must then fail."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LUA = Path("common/substrate/lua")

MUTATIONS = {
    "no free check": ("claim.lua", "if not free(r) then", "if false then"),
    "renew without effect": ("renew.lua", "lease_until = now + A.ttl", "lease_until = r.lease_until"),
    "no owner check": ("lib/ownership.lua", "r.owner == token and", ""),
    "finish reads no inbox": ("finish.lua", "if r.kind ~= 'sh' and unread(K.inbox) > 0 then return 'INBOX' end", ""),
    "create heeds no stop": (
        "create.lua",
        "if p and stop_of(p, { K.grandparent }) then return answer('STOPPING') end",
        "",
    ),
    "requests are not remembered": ("lib/once.lua", "redis.call('HSET', K.ops, A.op, text)", ""),
}


def mutant(folder: Path, name: str) -> Path:
    """The copy's `src` folder, to be put first on PYTHONPATH."""
    for part in ("common", "coordinator", "workers", "ops", "src"):
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    file, old, new = MUTATIONS[name]
    script = folder / LUA / file
    text = script.read_text()
    assert old in text, f"{file} no longer has {old!r}: the mutation would change nothing"
    script.write_text(text.replace(old, new))
    return folder / "src"
