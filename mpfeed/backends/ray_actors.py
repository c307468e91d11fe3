"""(placeholder)"""
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Ray:
    name = "ray"
