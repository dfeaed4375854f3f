"""The spine on a simulated disk, clock and source: a seed decides everything (P2)."""
