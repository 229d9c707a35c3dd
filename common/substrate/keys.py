"""Names of all keys (PROTOCOL 1). Every key is computed from an id; keys of one session share its hash tag."""

from collections.abc import Sequence
from dataclasses import dataclass

from celeriac.common.contract.ids import TaskId, session_key

TENANT = "default"
"""The one tenant, until tenants exist."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under a prefix (empty for the whole server)."""

    prefix: str = ""

    def session(self, task_id: TaskId, what: str) -> str:
        """A key that the whole session of `task_id` shares: open, all, ent, fate, ops, ev, ask, replay, …"""
        return f"{self.prefix}c:{{{session_key(task_id)}}}:{what}"

    def task(self, task_id: TaskId, what: str) -> str:
        """A key of one task: t (record), x (transcript), in (inbox), out, act, tools, runs."""
        return self.session(task_id, f"{what}:{task_id}")

    def none(self, task_id: TaskId, what: str) -> str:
        """The key declared where a script has no such task; it never exists."""
        return self.session(task_id, f"{what}:-")

    def script(self, task_id: TaskId, ancestors: Sequence[TaskId], sender: TaskId | None = None) -> tuple[str, ...]:
        """The keys of every record script, in the order of lua/lib/base.lua."""
        own = [self.task(task_id, what) for what in ("t", "x", "in", "out", "act", "tools", "runs")]
        shared = [self.session(task_id, what) for what in ("open", "all", "ent", "fate", "ops", "ev", "ask")]
        return (
            *own,
            *shared,
            self._ancestor(task_id, "t", ancestors[:1]),
            self._ancestor(task_id, "in", ancestors[:1]),
            self._ancestor(task_id, "t", ancestors[1:2]),
            self.none(task_id, "t") if sender is None else self.task(sender, "t"),
        )

    def _ancestor(self, task_id: TaskId, what: str, found: Sequence[TaskId]) -> str:
        return self.task(found[0], what) if found else self.none(task_id, what)

    @property
    def listed(self) -> str:
        """Hash: session id → list version (PROTOCOL 7)."""
        return f"{self.prefix}idx:{{sessions}}"

    @property
    def list_version(self) -> str:
        """The counter of list versions."""
        return f"{self.prefix}idx:{{sessions}}:version"

    @property
    def by_time(self) -> str:
        """Sorted set: created time → S."""
        return f"{self.prefix}all:{{sessions}}:{TENANT}"

    def hints(self, process: str) -> str:
        """Hints for one process."""
        return f"{self.prefix}h:{process}"

    @property
    def session_hints(self) -> str:
        """Sessions without owner."""
        return f"{self.prefix}h:{{sessions}}"
