"""Configuration: text with places in files, checked into values that do not change."""
