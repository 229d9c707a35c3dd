"""Stopping on purpose: what a model call raises when the run must end or make room, instead of failing."""

from celeriac.common.contract.errors import CeleriacError
from celeriac.common.contract.task import Subtype


class StopRun(CeleriacError):
    """The run ends as failed with this subtype; what there is of a result is partial."""

    subtype = Subtype.EXECUTION


class BudgetSpent(StopRun):
    """The next call could exceed a budget (PROTOCOL 6, REFUSED)."""

    subtype = Subtype.MAX_BUDGET


class ParkRun(CeleriacError):
    """The call has to wait longer than a slot is held for: the run is parked and asks again when it is woken."""

    def __init__(self, seconds: float, why: str, tries: int = 0) -> None:
        """`why`: retry, governor or budget (PROTOCOL 2, Fields of a record). `tries`: failures of the call so far."""
        super().__init__(f"parked for {seconds:.0f} s: {why}")
        self.seconds, self.why, self.tries = seconds, why, tries
