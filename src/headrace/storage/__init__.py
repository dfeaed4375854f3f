"""Bytes that stay: steps of a disk, files that are absent or whole, a disk for simulations."""
