"""One job as a test sees it: its tasks, what its transcripts say, and which processes it has left."""

import os
from dataclasses import dataclass
from pathlib import Path

from celeriac.common.contract.ids import TaskId
from celeriac.common.contract.kinds import Kind
from celeriac.common.contract.notification import Notification, is_notification, parse
from celeriac.common.contract.task import Record
from celeriac.common.testing.waiting import until
