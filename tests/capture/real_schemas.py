"""
The schemas of three well-known sample databases, and an application that works on any schema.

Tables, keys, indexes, foreign keys, triggers and views are those of Chinook, Northwind and Sakila
as they are published for SQLite. Sakila's text of films is a table of FTS5 here, kept by triggers.

`Application` reads the schema and draws statements for it: mostly rows with parents that exist, and
values that collide. Statements that fail are part of its work.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass

CHINOOK = """
create table [Artist] ([ArtistId] integer not null primary key, [Name] nvarchar(120));
create table [Album] (
    [AlbumId] integer not null primary key, [Title] nvarchar(160) not null,
    [ArtistId] integer not null references [Artist] ([ArtistId])
        on delete no action on update no action
);
create table [Employee] (
    [EmployeeId] integer not null primary key, [LastName] nvarchar(20) not null,
    [FirstName] nvarchar(20) not null, [Title] nvarchar(30),
    [ReportsTo] integer references [Employee] ([EmployeeId]),
    [BirthDate] datetime, [HireDate] datetime, [Address] nvarchar(70), [Email] nvarchar(60)
);
create table [Customer] (
    [CustomerId] integer not null primary key, [FirstName] nvarchar(40) not null,
    [LastName] nvarchar(20) not null, [Company] nvarchar(80), [Country] nvarchar(40),
    [Email] nvarchar(60) not null, [SupportRepId] integer references [Employee] ([EmployeeId])
);
create table [Genre] ([GenreId] integer not null primary key, [Name] nvarchar(120));
create table [MediaType] ([MediaTypeId] integer not null primary key, [Name] nvarchar(120));
create table [Track] (
    [TrackId] integer not null primary key, [Name] nvarchar(200) not null,
    [AlbumId] integer references [Album] ([AlbumId]),
    [MediaTypeId] integer not null references [MediaType] ([MediaTypeId]),
    [GenreId] integer references [Genre] ([GenreId]), [Composer] nvarchar(220),
    [Milliseconds] integer not null, [Bytes] integer, [UnitPrice] numeric(10,2) not null
);
create table [Invoice] (
    [InvoiceId] integer not null primary key,
    [CustomerId] integer not null references [Customer] ([CustomerId]),
    [InvoiceDate] datetime not null, [BillingCity] nvarchar(40), [Total] numeric(10,2) not null
);
create table [InvoiceLine] (
    [InvoiceLineId] integer not null primary key,
    [InvoiceId] integer not null references [Invoice] ([InvoiceId]),
    [TrackId] integer not null references [Track] ([TrackId]),
    [UnitPrice] numeric(10,2) not null, [Quantity] integer not null
);
create table [Playlist] ([PlaylistId] integer not null primary key, [Name] nvarchar(120));
create table [PlaylistTrack] (
    [PlaylistId] integer not null references [Playlist] ([PlaylistId]),
    [TrackId] integer not null references [Track] ([TrackId]),
    constraint [PK_PlaylistTrack] primary key ([PlaylistId], [TrackId])
);
create index [IFK_AlbumArtistId] on [Album] ([ArtistId]);
create index [IFK_CustomerSupportRepId] on [Customer] ([SupportRepId]);
create index [IFK_EmployeeReportsTo] on [Employee] ([ReportsTo]);
create index [IFK_InvoiceCustomerId] on [Invoice] ([CustomerId]);
create index [IFK_InvoiceLineInvoiceId] on [InvoiceLine] ([InvoiceId]);
create index [IFK_InvoiceLineTrackId] on [InvoiceLine] ([TrackId]);
create index [IFK_PlaylistTrackTrackId] on [PlaylistTrack] ([TrackId]);
create index [IFK_TrackAlbumId] on [Track] ([AlbumId]);
create unique index [IPK_PlaylistTrack] on [PlaylistTrack] ([PlaylistId], [TrackId]);
"""

NORTHWIND = """
create table [Categories] (
    [CategoryID] integer primary key autoincrement, [CategoryName] text, [Description] text,
    [Picture] blob
);
create table [CustomerDemographics] (
    [CustomerTypeID] text not null, [CustomerDesc] text, primary key ("CustomerTypeID")
);
create table [Customers] (
    [CustomerID] text, [CompanyName] text, [ContactName] text, [City] text, [Country] text,
    primary key (`CustomerID`)
);
create table [CustomerCustomerDemo] (
    [CustomerID] text not null, [CustomerTypeID] text not null,
    primary key ("CustomerID", "CustomerTypeID"),
    foreign key ([CustomerID]) references [Customers] ([CustomerID]),
    foreign key ([CustomerTypeID]) references [CustomerDemographics] ([CustomerTypeID])
);
create table [Employees] (
    [EmployeeID] integer primary key autoincrement, [LastName] text, [FirstName] text,
    [BirthDate] date, [Photo] blob, [Notes] text,
    [ReportsTo] integer references [Employees] ([EmployeeID])
);
create table [Regions] (
    [RegionID] integer not null primary key, [RegionDescription] text not null
);
create table [Territories] (
    [TerritoryID] text not null, [TerritoryDescription] text not null,
    [RegionID] integer not null references [Regions] ([RegionID]), primary key ("TerritoryID")
);
create table [EmployeeTerritories] (
    [EmployeeID] integer not null references [Employees] ([EmployeeID]),
    [TerritoryID] text not null references [Territories] ([TerritoryID]),
    primary key ("EmployeeID", "TerritoryID")
);
create table [Shippers] (
    [ShipperID] integer not null primary key autoincrement, [CompanyName] text not null,
    [Phone] text
);
create table [Suppliers] (
    [SupplierID] integer not null primary key autoincrement, [CompanyName] text not null,
    [City] text, [HomePage] text
);
create table [Products] (
    [ProductID] integer not null primary key autoincrement, [ProductName] text not null,
    [SupplierID] integer, [CategoryID] integer, [QuantityPerUnit] text,
    [UnitPrice] numeric default 0, [UnitsInStock] integer default 0,
    [Discontinued] text not null default '0',
    check ([UnitPrice] >= 0), check ([UnitsInStock] >= 0),
    foreign key ([CategoryID]) references [Categories] ([CategoryID]),
    foreign key ([SupplierID]) references [Suppliers] ([SupplierID])
);
create table [Orders] (
    [OrderID] integer not null primary key autoincrement,
    [CustomerID] text references [Customers] ([CustomerID]),
    [EmployeeID] integer references [Employees] ([EmployeeID]),
    [OrderDate] datetime, [ShipVia] integer references [Shippers] ([ShipperID]),
    [Freight] numeric default 0, [ShipName] text
);
create table [Order Details] (
    [OrderID] integer not null, [ProductID] integer not null,
    [UnitPrice] numeric not null default 0, [Quantity] integer not null default 1,
    [Discount] real not null default 0, primary key ("OrderID", "ProductID"),
    check ([Discount] >= 0 and [Discount] <= 100000), check ([Quantity] > 0),
    foreign key ([OrderID]) references [Orders] ([OrderID]),
    foreign key ([ProductID]) references [Products] ([ProductID])
);
create view [Alphabetical list of products] as
    select p.*, c.[CategoryName] from [Categories] c join [Products] p using ([CategoryID])
    where p.[Discontinued] = 0;
create view [Order Subtotals] as
    select [OrderID], sum([UnitPrice] * [Quantity] * (1 - [Discount])) as [Subtotal]
    from [Order Details] group by [OrderID];
create view [Products Above Average Price] as
    select [ProductName], [UnitPrice] from [Products]
    where [UnitPrice] > (select avg([UnitPrice]) from [Products]);
"""

_STAMPED = {
    "actor": "actor_id",
    "address": "address_id",
    "category": "category_id",
    "city": "city_id",
    "country": "country_id",
    "customer": "customer_id",
    "film": "film_id",
    "inventory": "inventory_id",
    "language": "language_id",
    "payment": "payment_id",
    "rental": "rental_id",
    "staff": "staff_id",
    "store": "store_id",
    "film_actor": "",
    "film_category": "",
}
"""Sakila's tables with triggers that set `last_update`."""

_STAMPS = "".join(
    f"create trigger {table}_trigger_a{event[0]} after {event} on {table} begin"
    f" update {table} set last_update = datetime('now') where rowid = new.rowid; end;\n"
    for table in _STAMPED
    for event in ("insert", "update")
)

SAKILA = f"""
create table actor (
    actor_id numeric not null, first_name varchar(45) not null, last_name varchar(45) not null,
    last_update timestamp not null, primary key (actor_id)
);
create index idx_actor_last_name on actor (last_name);
create table country (
    country_id smallint not null, country varchar(50) not null, last_update timestamp,
    primary key (country_id)
);
create table city (
    city_id int not null, city varchar(50) not null, country_id smallint not null,
    last_update timestamp not null, primary key (city_id),
    constraint fk_city_country foreign key (country_id) references country (country_id)
        on delete no action on update cascade
);
create index idx_fk_country_id on city (country_id);
create table address (
    address_id int not null, address varchar(50) not null, address2 varchar(50) default null,
    district varchar(20) not null, city_id int not null, phone varchar(20) not null,
    last_update timestamp not null, primary key (address_id),
    constraint fk_address_city foreign key (city_id) references city (city_id)
        on delete no action on update cascade
);
create table language (
    language_id smallint not null, name char(20) not null, last_update timestamp not null,
    primary key (language_id)
);
create table category (
    category_id smallint not null, name varchar(25) not null, last_update timestamp not null,
    primary key (category_id)
);
create table customer (
    customer_id int not null, store_id int not null, first_name varchar(45) not null,
    last_name varchar(45) not null, email varchar(50) default null, address_id int not null,
    active char(1) default 'Y' not null, create_date timestamp not null,
    last_update timestamp not null, primary key (customer_id),
    constraint fk_customer_store foreign key (store_id) references store (store_id)
        on delete no action on update cascade,
    constraint fk_customer_address foreign key (address_id) references address (address_id)
        on delete no action on update cascade
);
create index idx_customer_last_name on customer (last_name);
create table film (
    film_id int not null, title varchar(255) not null,
    description blob sub_type text default null, release_year varchar(4) default null,
    language_id smallint not null, original_language_id smallint default null,
    rental_duration smallint default 3 not null, rental_rate decimal(4,2) default 4.99 not null,
    length smallint default null, replacement_cost decimal(5,2) default 19.99 not null,
    rating varchar(10) default 'G', special_features varchar(100) default null,
    last_update timestamp not null, primary key (film_id),
    constraint check_special_rating check (rating in ('G', 'PG', 'PG-13', 'R', 'NC-17')),
    constraint fk_film_language foreign key (language_id) references language (language_id),
    constraint fk_film_language_original foreign key (original_language_id)
        references language (language_id)
);
create table film_actor (
    actor_id int not null, film_id int not null, last_update timestamp not null,
    primary key (actor_id, film_id),
    constraint fk_film_actor_actor foreign key (actor_id) references actor (actor_id)
        on delete no action on update cascade,
    constraint fk_film_actor_film foreign key (film_id) references film (film_id)
        on delete no action on update cascade
);
create table film_category (
    film_id int not null, category_id smallint not null, last_update timestamp not null,
    primary key (film_id, category_id),
    constraint fk_film_category_film foreign key (film_id) references film (film_id)
        on delete no action on update cascade,
    constraint fk_film_category_category foreign key (category_id)
        references category (category_id) on delete no action on update cascade
);
create virtual table film_text using fts5 (title, description);
create table inventory (
    inventory_id int not null, film_id int not null, store_id int not null,
    last_update timestamp not null, primary key (inventory_id),
    constraint fk_inventory_store foreign key (store_id) references store (store_id)
        on delete no action on update cascade,
    constraint fk_inventory_film foreign key (film_id) references film (film_id)
        on delete no action on update cascade
);
create table staff (
    staff_id smallint not null, first_name varchar(45) not null, last_name varchar(45) not null,
    address_id int not null, picture blob default null, email varchar(50) default null,
    store_id int not null, active smallint default 1 not null, username varchar(16) not null,
    last_update timestamp not null, primary key (staff_id),
    constraint fk_staff_store foreign key (store_id) references store (store_id)
        on delete no action on update cascade,
    constraint fk_staff_address foreign key (address_id) references address (address_id)
        on delete no action on update cascade
);
create table store (
    store_id int not null, manager_staff_id smallint not null, address_id int not null,
    last_update timestamp not null, primary key (store_id),
    constraint fk_store_staff foreign key (manager_staff_id) references staff (staff_id),
    constraint fk_store_address foreign key (address_id) references address (address_id)
);
create unique index idx_fk_manager_staff_id on store (manager_staff_id);
create table payment (
    payment_id int not null, customer_id int not null, staff_id smallint not null,
    rental_id int default null, amount decimal(5,2) not null, payment_date timestamp not null,
    last_update timestamp not null, primary key (payment_id),
    constraint fk_payment_rental foreign key (rental_id) references rental (rental_id)
        on delete set null on update cascade,
    constraint fk_payment_customer foreign key (customer_id) references customer (customer_id),
    constraint fk_payment_staff foreign key (staff_id) references staff (staff_id)
);
create table rental (
    rental_id int not null, rental_date timestamp not null, inventory_id int not null,
    customer_id int not null, return_date timestamp default null, staff_id smallint not null,
    last_update timestamp not null, primary key (rental_id),
    constraint fk_rental_staff foreign key (staff_id) references staff (staff_id),
    constraint fk_rental_inventory foreign key (inventory_id)
        references inventory (inventory_id),
    constraint fk_rental_customer foreign key (customer_id) references customer (customer_id)
);
create unique index idx_rental_uq on rental (rental_date, inventory_id, customer_id);
{_STAMPS}
create trigger ins_film after insert on film begin
    insert into film_text (rowid, title, description)
    values (new.film_id, new.title, new.description);
end;
create trigger upd_film after update of title, description, film_id on film begin
    update film_text set title = new.title, description = new.description, rowid = new.film_id
    where rowid = old.film_id;
end;
create trigger del_film after delete on film begin
    delete from film_text where rowid = old.film_id;
end;
create view customer_list as
    select cu.customer_id as id, cu.first_name || ' ' || cu.last_name as name, a.phone, city.city
    from customer cu join address a using (address_id) join city using (city_id);
create view film_list as
    select film.film_id as fid, film.title, category.name as category
    from category left join film_category using (category_id) left join film using (film_id);
create view sales_by_store as
    select s.store_id, sum(p.amount) as total_sales
    from payment p join rental r using (rental_id) join inventory i using (inventory_id)
    join store s using (store_id) group by s.store_id;
"""

SCHEMAS = {"Chinook": CHINOOK, "Northwind": NORTHWIND, "Sakila": SAKILA}


# --- an application -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    declared: str
    required: bool
    key: int


def _quoted(name: str) -> str:
    return f'"{name}"'


class Application:
    """Draws statements for the tables of a database, and runs them on its own connection."""

    def __init__(self, app: sqlite3.Connection, seed: int) -> None:
        self._app = app
        self._draw = random.Random(seed)
        self.ran = 0
        """Statements that did not fail."""
        self.tables = [
            name
            for (name,) in app.execute(
                "select name from pragma_table_list where schema = 'main' and type = 'table'"
                " and name not like 'sqlite%' and name not like '\\_\\_%' escape '\\'"
                " and name <> 'sync' order by name"
            ).fetchall()
        ]
        self._columns = {
            table: [
                _Column(name, declared.upper(), bool(required), key)
                for name, declared, required, key in app.execute(
                    'select name, type, "notnull", pk from pragma_table_info(?)', (table,)
                )
            ]
            for table in self.tables
        }
        self._parents = {
            table: {
                own: (parent, theirs)
                for parent, own, theirs in app.execute(
                    'select "table", "from", "to" from pragma_foreign_key_list(?)', (table,)
                )
            }
            for table in self.tables
        }

    def fill(self, rows: int) -> None:
        """Put a few rows into every table, whatever their foreign keys refer to."""
        self._app.execute("pragma foreign_keys = off")
        for table in self.tables:
            for number in range(1, rows + 1):
                self._run(*self._insert(table, "or ignore", number))
        self._app.execute("pragma foreign_keys = on")

    def work(self, statements: int) -> None:
        """Run statements, some of them within transactions that are rolled back."""
        app, draw = self._app, self._draw
        for _ in range(statements):
            chance = draw.random()
            if chance < 0.08 and not app.in_transaction:
                self._run("begin immediate")  # it reads before it writes
            elif chance < 0.2 and app.in_transaction:
                self._run(draw.choice(["commit", "commit", "rollback"]))
            elif chance < 0.28 and app.in_transaction:
                self._run(draw.choice(["savepoint s", "rollback to s", "release s"]))
            else:
                self._run(*self._statement())
        if app.in_transaction:
            self._run("commit")
        if app.in_transaction:
            self._run("rollback")  # a deferred foreign key

    def _run(self, statement: str, values: list[object] | None = None) -> None:
        try:
            self._app.execute(statement, values or []).fetchall()
        except (sqlite3.IntegrityError, sqlite3.OperationalError) as error:
            # Of savepoints that are not there. Anything else would be wrong with the capture.
            assert isinstance(error, sqlite3.IntegrityError) or "no such savepoint" in str(error)
        else:
            self.ran += 1

    def _statement(self) -> tuple[str, list[object]]:
        draw = self._draw
        table = draw.choice(self.tables)
        columns = self._columns[table]
        some = draw.choice(columns)
        where, key = self._one(table)
        kind = draw.choice(["insert", "insert", "replace", "upsert", "update", "update", "more"])
        match kind:
            case "insert":
                return self._insert(table, draw.choice(["", "or ignore", "or fail"]))
            case "replace":
                return self._insert(table, "or replace")
            case "upsert":
                insert, values = self._insert(table, "")
                sets = ", ".join(
                    f"{_quoted(column.name)} = excluded.{_quoted(column.name)}"
                    for column in columns
                    if not column.key
                )
                conflict = "do nothing" if not sets else f"do update set {sets}"
                return f"{insert} on conflict {conflict}", values
            case "update":
                how = draw.choice(["", "", "or replace", "or ignore"])
                sql = f"update {how} {_quoted(table)} set {_quoted(some.name)} = ? where {where}"
                return sql, [self._value(table, some), *key]
        if draw.random() < 0.7:
            return f"delete from {_quoted(table)} where {where}", key
        return (
            f"update {_quoted(table)} set {_quoted(some.name)} = ? where rowid % 3 = ?",
            [self._value(table, some), draw.randrange(3)],
        )

    def _one(self, table: str) -> tuple[str, list[object]]:
        keys = [column for column in self._columns[table] if column.key]
        named = ", ".join(_quoted(column.name) for column in keys)
        found = self._app.execute(f"select {named} from {_quoted(table)}").fetchall()
        row = self._draw.choice(found) if found else (0,) * len(keys)
        return " and ".join(f"{_quoted(column.name)} is ?" for column in keys), list(row)

    def _insert(self, table: str, how: str, number: int = 0) -> tuple[str, list[object]]:
        columns = [
            column
            for column in self._columns[table]
            if column.required or column.key or number or self._draw.random() < 0.8
        ]
        names = ", ".join(_quoted(column.name) for column in columns)
        values = [self._value(table, column, number) for column in columns]
        marks = ", ".join("?" * len(columns))
        return f"insert {how} into {_quoted(table)} ({names}) values ({marks})", values

    def _value(self, table: str, column: _Column, number: int = 0) -> object:
        draw = self._draw
        # Not a key, which may be null in Northwind: several rows have the same key then.
        if not column.required and not column.key and draw.random() < 0.3:
            return None
        if not number and column.name in self._parents[table] and draw.random() < 0.9:
            parent, theirs = self._parents[table][column.name]
            [theirs] = [
                each.name
                for each in self._columns[parent]
                if (each.name == theirs if theirs else each.key)
            ]
            found = self._app.execute(f"select {_quoted(theirs)} from {_quoted(parent)}").fetchall()
            if found:
                return draw.choice(found)[0]
        small = number or draw.randrange(1, 14)
        word = column.declared
        if column.name == "rating":
            return draw.choice(["G", "PG", "R", "X"])
        if "BLOB" in word:
            return bytes([small, 0, 255])
        if "DATE" in word or "TIME" in word:
            return f"2026-01-{small:02} 10:00:00"
        if "CHAR" in word or "TEXT" in word:
            parents = column.key or column.name in self._parents[table]
            return f"K{small}" if parents else draw.choice(["a", "A", "", "ß", f"w{small}"])
        if "INT" in word or column.key:
            return small
        return draw.choice([small, small / 4, 0, 0.1 + 0.2])
