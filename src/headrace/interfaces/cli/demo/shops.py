"""Which shop a demo has."""

from __future__ import annotations

from headrace.control.lease import usable_folder
from headrace.interfaces.cli.demo.shop import Shop


def shop_in(data: str, source: str) -> Shop:
    """Return the shop of this kind in the folder, which is made if need be; nothing more is."""
    # Imported late: each brings its database's library with it.
    if source == "postgres":
        from headrace.interfaces.cli.demo.postgres_shop import PostgresShop, find_programs

        programs = find_programs()
        return PostgresShop(usable_folder(data), programs)
    from headrace.interfaces.cli.demo.sqlite_shop import SqliteShop

    return SqliteShop(usable_folder(data))
