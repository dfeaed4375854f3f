"""
The messages of the services, generated from `proto/headrace/v1` by `make proto`.

Edit the `.proto` files. `docs/reference/services.md` describes every message and field.
"""
