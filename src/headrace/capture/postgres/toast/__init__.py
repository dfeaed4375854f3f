"""Large values that the server does not send again."""
