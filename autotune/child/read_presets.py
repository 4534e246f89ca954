r"""How the lines of known trainers and loggers look, each as seen in its source (repository, file, what prints it).

Standard library only. The meaning of a name does not change once it is here: run directories hold only the name.
"""

from __future__ import annotations

from collections.abc import Mapping

_LOSS = r"\b(?:train[_/ ])?loss[\"']?\s*[=:]\s*(?P<loss>[-+.\deEnaif]+)"

PRESETS: Mapping[str, Mapping[str, str]] = {
    # MaxText, metric_logger.py: "completed step: 5, seconds: 1.234, TFLOP/s/device: ..., loss: 10.8"
    "maxtext": {
        "pattern": r"completed step: (?P<step>\d+), seconds: (?P<step_s>[-+.\deE]+)",
        "loss": r"\bloss: (?P<loss>[-+.\deEnaif]+)",
    },
    # clu.metric_writers (T5X, Flax examples): "[100] loss=2.5, steps_per_sec=3.1"
    "clu": {
        "pattern": r"\[(?P<step>\d+)\].*\bsteps_per_sec(?:ond)?=(?P<steps_per_s>[-+.\deE]+)",
        "loss": r"\b(?:train_)?loss=(?P<loss>[-+.\deEnaif]+)",
    },
    # google/tunix, tunix/sft/peft_trainer.py: "Train step 7 training loss: 3.21  - training perplexity: 24.8" in absl's
    # log, and a tqdm bar of unit "step" with train_loss in its postfix (progress_bar.py); the first is once a step
    "tunix": {
        "pattern": r"\bTrain step (?P<step>\d+) training loss",
        "loss": r"\btraining loss: (?P<loss>[-+.\deEnaif]+)",
    },
    # stanford-crfm/levanter, callbacks/_metrics.py: tqdm_loggable: into a pipe "Progress on:train 12.0it/100it
    # rate:3.4it/s remaining:00:26 elapsed:00:04 postfix:loss=5.1", on a terminal "train:  12%|#2  | 12/100 [00:04"
    "levanter": {
        "pattern": r"(?:\bProgress on: ?(?:train\b)?|^train: .*\|)\s*(?P<step>\d[\d.]*k?)(?:it)?/",
        "loss": r"\bloss=(?P<loss>[-+.\deEnaif]+)",
    },
    # keras-team/keras, utils/progbar.py: "12/100 ---- 1s 12ms/step - loss: 0.51"; the time shown
    # is the epoch's mean so far
    "keras": {
        "pattern": r"(?:^|\s)(?P<step>\d+)/(?:\d+|Unknown)\s.*?\d(?:s|ms|us)/step\b",
        "loss": r" - loss: (?P<loss>[-+.\deEnaif]+)",
    },
    # Lightning-AI/pytorch-lightning, callbacks/progress: "Epoch 0:  12%|#2  | 12/100 [00:01<00:07, 11.5it/s,
    # train_loss=2.3]", and its rich bar "Epoch 0/9 ---- 12/100 0:00:01 - 0:00:07 11.52it/s train_loss: 2.301"
    "lightning": {
        "pattern": r"\bEpoch \d+(?:/-?\d+)?:?\s.*?\s(?P<step>\d+)/(?:\d+|\?|--|inf)\s",
        "loss": r"\b(?:train_)?loss(?:_step)?[=:]\s*(?P<loss>[-+.\deEnaif]+)",
    },
    # Textualize/rich, progress.py, a bar with MofNCompleteColumn: "Training ------- 12/100 0:00:03"
    "rich": {
        "pattern": r"[\u2501\u2578\u257a]\s.*?(?<![\d/])(?P<step>\d+)\s?/\s*(?:\d+|\?)(?![\d/])",
        "loss": _LOSS,
    },
    # tqdm shows a smoothed rate: only its counter is used, with the time at which the line came
    "tqdm": {"pattern": r"\b(?P<step>\d+)/(?:\d+|\?) \[", "loss": r"\bloss[=:]\s*(?P<loss>[-+.\deEnaif]+)"},
    # abseil/abseil-py, logging/__init__.py: "I1121 05:38:28.602266 1398932 train.py:265] step 7: loss=2.5", own
    # words after the bracket; what it says of a duration is read by a pattern, here the time between such lines counts
    "absl": {
        "pattern": r"^[IWEF]\d{4} [\d:.]+ +\d+ [^\]]+:\d+\] "
        r"(?i:.*?\b(?:step|iter|iteration|update)\b[^\w\n]{0,3}(?P<step>\d+))",
        "loss": _LOSS,
    },
}
"""Lines of known trainers. Where one prints no duration, the time between its lines counts."""
