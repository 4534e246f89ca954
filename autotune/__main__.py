"""``python -m autotune`` is the console command."""

from autotune.cli import main

main()
