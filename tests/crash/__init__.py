"""
Kills of real processes, and one check that nothing was lost or done twice (P2).

    python -m tests.crash --minutes 10

A round is a short history that its seed decides: a database, an engine with its recorder,
transactions that never stop, one kill or several, restarts, and the check.
"""
