"""What every model of a spec rests on: strictness, and the names of variants and budgets."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Variant = Literal["paper", "code"]
Budget = Literal["smoke", "short", "medium", "gpu", "full"]
VARIANTS: tuple[Variant, ...] = ("paper", "code")
BUDGETS: tuple[Budget, ...] = ("smoke", "short", "medium", "gpu", "full")


class StrictModel(BaseModel):
    """What is read from a spec: no unknown field, no conversion of types, no change later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
