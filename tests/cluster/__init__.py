"""A real cluster on one machine: a master, two workers, and executors that are not the driver."""
