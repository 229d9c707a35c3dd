"""The label of a workspace: which queue leads to the hosts that have it (INTERFACES, Records and lines)."""

import hashlib


def workspace_label(host: str, root: str) -> str:
    """`ws-` + 8 hex digits of host and root."""
    return "ws-" + hashlib.sha256(f"{host}:{root}".encode()).hexdigest()[:8]
