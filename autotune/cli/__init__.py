"""The commands: what a person types, and what is printed."""

from autotune.cli.app import main
