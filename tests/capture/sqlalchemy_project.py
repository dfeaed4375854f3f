"""
A project with SQLAlchemy and Alembic on a SQLite file, in a process of its own.

Standard input names what to do, one thing a line, and each is answered by a line: what went wrong,
or nothing. The classes are read from the tables each time, so that they fit after a migration.
"""

from __future__ import annotations

import random
import sys
from datetime import date
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import Session

TABLES = ("author", "book", "tag", "book_tag")


def _tables(metadata: sa.MetaData) -> None:
    sa.Table(
        "author",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), nullable=False),
        sa.Column("born", sa.Date),
        sa.Column("active", sa.Boolean, server_default=sa.true(), nullable=False),
        sa.Index("one_active", "name", unique=True, sqlite_where=sa.text("active")),
    )
    sa.Table(
        "book",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("author_id", sa.ForeignKey("author.id", ondelete="CASCADE"), nullable=False),
        sa.Column("title", sa.String(20), nullable=False),
        sa.Column("price", sa.Numeric(8, 2)),
        sa.Column("facts", sa.JSON),
        sa.UniqueConstraint("author_id", "title", name="titles"),
    )
    sa.Table(
        "tag",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), unique=True),
        sa.Column("long", sa.Integer, sa.Computed("length(name)")),
    )
    sa.Table(
        "book_tag",
        metadata,
        sa.Column("book_id", sa.ForeignKey("book.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("tag_id", sa.ForeignKey("tag.id", ondelete="CASCADE"), primary_key=True),
    )


class Project:
    """The tables of the project, as far as they were migrated."""

    def __init__(self, file: str) -> None:
        # Migrations often have an engine of their own, without the application's settings.
        self._engine, self._plain = (
            sa.create_engine(f"sqlite:///{file}", connect_args={"timeout": 60}) for _ in range(2)
        )
        sa.event.listen(self._engine, "connect", _on_connect)
        sa.event.listen(self._engine, "begin", _on_begin)
        self._draw = random.Random(3)

    def create(self) -> None:
        """Create all tables."""
        metadata = sa.MetaData()
        _tables(metadata)
        metadata.create_all(self._engine)

    def migrate(self, name: str) -> None:
        """Run one more migration, as its script would."""
        engine = self._engine if name.endswith("with foreign keys on") else self._plain
        with engine.begin() as connection:
            _migrate(name, Operations(MigrationContext.configure(connection)))

    def compare(self, left_out: str) -> str:
        """Return which tables Alembic's autogenerate would drop, if some names are left out."""
        metadata = sa.MetaData()
        with self._engine.connect() as connection:
            metadata.reflect(connection, only=TABLES)
            metadata.reflect(connection, only=["sync"])
            options = {
                "include_name": lambda name, *_: not (left_out and str(name).startswith(left_out))
            }
            context = MigrationContext.configure(connection, opts=options)
            found = compare_metadata(context, metadata)
        return " ".join(sorted(each[1].name for each in found if each[0] == "remove_table"))

    # -- what the application does -----------------------------------------------------------

    def work(self, steps: int) -> None:
        """Write rows; some of it fails, or is rolled back."""
        metadata = sa.MetaData()
        metadata.reflect(self._engine, only=TABLES)
        base = automap_base(metadata=metadata)
        base.prepare()
        kinds = [self._authors, self._books, self._books, self._tags, self._updates, self._deletes]
        for _ in range(steps):
            with Session(self._engine) as session:
                for _ in range(self._draw.randrange(1, 4)):
                    try:
                        with session.begin_nested():
                            self._draw.choice(kinds)(session, base.classes)
                    except IntegrityError:  # this part is rolled back
                        continue
                if self._draw.random() < 0.8:
                    session.commit()
                else:
                    session.rollback()

    def _any(self, session: Session, kind: Any) -> Any:
        found = session.scalars(sa.select(kind).order_by(kind.id)).all()
        return self._draw.choice(found) if found else None

    def _authors(self, session: Session, classes: Any) -> None:
        number = self._draw.randrange(8)
        session.add(classes.author(name=f"a{number}", active=number % 2 == 0))

    def _books(self, session: Session, classes: Any) -> None:
        author, table = self._any(session, classes.author), classes.book.__table__
        if author is None:
            return
        number = self._draw.randrange(6)
        named = "title" if "title" in table.c else "name"
        values = {"author_id": author.id, named: f"b{number}", "price": number / 4}
        if number < 2:
            session.execute(sa.insert(table).prefix_with("OR REPLACE").values(values))
        elif number < 4:
            upsert = insert(table).values(values)
            session.execute(
                upsert.on_conflict_do_update(
                    index_elements=["author_id", named], set_={"price": upsert.excluded.price}
                )
            )
        else:
            tags = session.scalars(sa.select(classes.tag).limit(number)).all()
            session.add(classes.book(**values, facts={"n": number}, tag_collection=list(tags)))

    def _tags(self, session: Session, classes: Any) -> None:
        session.add(classes.tag(name=f"t{self._draw.randrange(9)}"))

    def _updates(self, session: Session, classes: Any) -> None:
        book = self._any(session, classes.book)
        if book is not None:
            book.facts = {"n": self._draw.randrange(9)}
        session.execute(sa.update(classes.book).values(price=classes.book.price + 1))
        day = date(2000, 1, self._draw.randrange(1, 29))
        session.execute(sa.update(classes.author).values(born=day))
        author = self._any(session, classes.author)
        if author is not None:
            author.active = not author.active

    def _deletes(self, session: Session, classes: Any) -> None:
        kind = self._draw.choice([classes.author, classes.book, classes.book, classes.tag])
        each = self._any(session, kind)
        if each is not None:
            session.execute(sa.delete(kind).where(kind.id == each.id))


def _migrate(name: str, op: Operations) -> None:
    match name:
        case "add a column":
            op.add_column("book", sa.Column("pages", sa.Integer))
        case "alter a column":
            with op.batch_alter_table("book") as batch:
                batch.alter_column("title", type_=sa.String(200))
        case "rename a column":
            with op.batch_alter_table("book") as batch:
                batch.alter_column("title", new_column_name="name")
        case "add a unique constraint":
            with op.batch_alter_table("author") as batch:
                batch.create_unique_constraint("names", ["name", "id"])
        case "drop a column without a batch":
            op.drop_column("book", "pages")
        case "drop a column":
            with op.batch_alter_table("book") as batch:
                batch.drop_column("pages")
        case "alter a column with foreign keys on":
            with op.batch_alter_table("author") as batch:
                batch.alter_column("name", type_=sa.String(50))
        case _:
            raise AssertionError(name)


def _on_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None
    connection.execute("pragma foreign_keys = on")
    connection.execute("pragma synchronous = off")


def _on_begin(connection: Any) -> None:
    connection.exec_driver_sql("begin immediate")


def main() -> None:
    """Do what is asked, until there is no more."""
    project = Project(sys.argv[1])
    for line in sys.stdin:
        kind, _, what = line.strip().partition(": ")
        said = ""
        try:
            if kind == "create":
                project.create()
            elif kind == "work":
                project.work(int(what))
            elif kind == "compare":
                said = project.compare(what)
            else:
                project.migrate(what)
        except SQLAlchemyError as error:
            said = str(error).splitlines()[0]
        print(said, flush=True)


if __name__ == "__main__":
    main()
