"""Whether the user may do what capturing needs, and the statements that allow it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.capture.postgres.catalog import CatalogTable, Leaf
from headrace.capture.postgres.facts import Rights, Server
from headrace.capture.postgres.names import quoted
from headrace.capture.postgres.options import Options
from headrace.errors import HeadraceError, NotPermitted, PublicationRefused


def role_problems(server: Server, options: Options) -> Iterator[HeadraceError]:
    """Yield what the user may not do on the server or with the publication."""
    user = quoted(server.user)
    if not server.replicates:
        managed = "rds.logical_replication" in server.settings
        yield NotPermitted(
            "The user may not replicate",
            user=server.user,
            remedy=f"GRANT rds_replication TO {user};"
            if managed
            else f"ALTER ROLE {user} REPLICATION;",
        )
    if not options.create_publication or server.standby:
        if not options.create_publication and server.publication_owner is None:
            yield PublicationRefused(
                "The publication is not there, and is not to be created",
                publication=options.publication,
                remedy=f"CREATE PUBLICATION {quoted(options.publication)} FOR TABLE …"
                " WITH (publish_via_partition_root = true); or let it be created.",
            )
        return
    if server.publication_owner is None and not server.creates:
        yield NotPermitted(
            "The user may not create a publication",
            user=server.user,
            remedy=f"GRANT CREATE ON DATABASE {quoted(server.database)} TO {user};",
        )
    elif server.publication_owner is not None and not server.owns_publication:
        yield NotPermitted(
            "The user does not own the publication, and could not change it",
            user=server.user,
            publication=options.publication,
            remedy=f"ALTER PUBLICATION {quoted(options.publication)} OWNER TO {user};",
        )


def right_problems(
    table: CatalogTable, options: Options, server: Server, rights: dict[int, Rights]
) -> Iterator[HeadraceError]:
    """Yield what the user may not do with a table and its partitions."""
    found = [rights[each.oid] for each in relations(table) if each.oid in rights]
    user = quoted(server.user)
    if schemas := sorted({each.namespace for each in found if not each.enters}):
        yield NotPermitted(
            "The user may not use the table's schema",
            table=table.name,
            user=server.user,
            remedy=f"GRANT USAGE ON SCHEMA {', '.join(map(quoted, schemas))} TO {user};",
        )
    if unread := [each for each in found if not each.reads]:
        # Partitions are copied one by one, and rights on the whole do not reach them then.
        names = ", ".join(quoted(each.namespace, each.table) for each in unread)
        yield NotPermitted(
            "The user may not read the table",
            table=table.name,
            user=server.user,
            remedy=f"GRANT SELECT ON {names} TO {user};",
        )
    if hidden := [each for each in found if each.hides]:
        forced = [each for each in hidden if each.forced and each.owns]
        yield NotPermitted(
            "Row security would keep rows of the table from being copied",
            table=table.name,
            user=server.user,
            remedy=" ".join(
                f"ALTER TABLE {quoted(each.namespace, each.table)} NO FORCE ROW LEVEL SECURITY;"
                for each in forced
            )
            if len(forced) == len(hidden)
            else f"ALTER ROLE {user} BYPASSRLS;",
        )
    own = rights.get(table.oid)
    adds = options.create_publication and table.oid not in server.published
    if own is not None and adds and not own.owns:
        yield NotPermitted(
            "The user does not own the table, and could not add it to a publication",
            table=table.name,
            user=server.user,
            owner=own.owner,
            remedy=f"GRANT {quoted(own.owner)} TO {user}; or let the owner create the publication,"
            " and set create_publication to false.",
        )


def relations(table: CatalogTable) -> list[CatalogTable | Leaf]:
    """The table and its partitions, each once."""
    return [table, *(leaf for leaf in table.leaves if leaf.oid != table.oid)]
