"""The engine that a user holds: pipelines, status, replay, configuration."""
