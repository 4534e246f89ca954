"""Makes the atlas: what every setting does to every kind of model on every GPU, compiled, never run."""

from autotune.survey.build import Plan, build_atlas
from autotune.survey.cells import planned_cells
