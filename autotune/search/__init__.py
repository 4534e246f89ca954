"""An Optuna sampler with a sparse additive model of effects, and a model of failures."""
