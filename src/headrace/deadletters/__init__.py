"""Dead letters: rows that could not be computed, and what waits behind them."""
