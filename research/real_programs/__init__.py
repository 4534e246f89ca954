"""`autotune tune` held to training programs that nobody here wrote."""
