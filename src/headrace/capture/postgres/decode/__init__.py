"""From pgoutput's messages to columns of Arrow."""
