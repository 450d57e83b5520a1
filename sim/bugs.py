"""All planted bugs. The simulator must catch each of them."""

from __future__ import annotations

from typing import Final

from sim.coordinated_bugs import COORDINATED
from sim.leased_bugs import LEASED
from sim.worker_bugs import WORKERS

BUGS: Final = (*COORDINATED, *LEASED, *WORKERS)
