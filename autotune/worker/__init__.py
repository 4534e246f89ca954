"""The worker: programs that run in their own process, under one flag set; the driver never imports them."""
