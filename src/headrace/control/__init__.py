"""Control: starts, supervises and stops everything, and keeps one truth about how far it got."""
