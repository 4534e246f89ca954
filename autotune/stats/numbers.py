"""Number types that are checked where a record is read, for it may have been edited.

Their sums, logarithms and powers never overflow.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

LONGEST_S = 1e11  # three thousand years, in seconds
Elapsed = Annotated[float, Field(ge=0, le=LONGEST_S)]  # seconds
StepTime = Annotated[float, Field(ge=1e-12, le=LONGEST_S)]  # seconds, never 0, for ratios
StepTimes = tuple[StepTime, ...]
Ratio = Annotated[float, Field(ge=1e-9, le=1e9)]  # candidate over reference
LogRatio = Annotated[float, Field(ge=-20.7, le=20.7)]
Total = Annotated[float, Field(ge=0, le=1e15)]  # seconds or joules
TotalAboveZero = Annotated[float, Field(ge=1e-12, le=1e15)]  # for ratios
Count = Annotated[int, Field(ge=0, le=2**53)]  # whole in a float, too
AtLeastOne = Annotated[int, Field(ge=1, le=2**53)]
Chance = Annotated[float, Field(ge=0, le=1)]
Change = Annotated[float, Field(ge=-1e30, le=1e30)]  # a relative difference, below 0 for less
Amount = Annotated[float, Field(ge=0, le=1e30)]  # counted but perhaps not whole, such as FLOPs
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
