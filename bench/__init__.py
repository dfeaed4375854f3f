"""Performance, measured as ratios against floors in the same run."""
