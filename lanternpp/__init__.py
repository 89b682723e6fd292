"""Tree speculative decoding of pictures with relaxed acceptance: LANTERN and LANTERN++."""

from .pipeline import LanternPipeline, Output
from .relax import Relaxation
from .sampling import Sampling
from .settings import Settings, SettingsError
from .trace import StepEvent, Trace
from .tree import PRESETS, Tree, TreeError

__all__ = ["LanternPipeline", "Output", "PRESETS", "Relaxation", "Sampling", "Settings", "SettingsError", "StepEvent",
           "Trace", "Tree", "TreeError"]
