"""``python -m autotune`` is the console command."""

from autotune.cli.app import main

main()
