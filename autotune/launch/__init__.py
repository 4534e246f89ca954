"""Starting workers and keeping them in hand: process groups, time limits, logs of bounded size."""
