"""
A Django project on a SQLite file, in a process of its own: Django changes the `sqlite3` module.

Standard input names what to do, one thing a line, and each is answered by a line: what went wrong,
or nothing. The tables of the app are made and changed by the operations of Django's migrations. The
models are those of the migrations' state, so that they always fit the tables.
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import Error, IntegrityError, connection, migrations, models, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.models import F, Q

from headrace.capture.sqlite import alter

FILE = sys.argv[1]

INITIAL = [
    migrations.CreateModel(
        "Tag",
        [("id", models.AutoField(primary_key=True)), ("name", models.CharField(max_length=9))],
    ),
    migrations.CreateModel(
        "Customer",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("email", models.EmailField()),
            ("active", models.BooleanField(default=True)),
            ("data", models.JSONField(default=dict)),
            ("level", models.PositiveIntegerField(default=1)),
        ],
        {
            "constraints": [
                models.UniqueConstraint(
                    fields=["email"], condition=Q(active=True), name="one_active"
                )
            ]
        },
    ),
    migrations.CreateModel(
        "Order",
        [
            ("id", models.BigAutoField(primary_key=True)),
            ("customer", models.ForeignKey("shop.Customer", models.CASCADE)),
            ("seller", models.ForeignKey("auth.User", models.SET_NULL, null=True)),
            ("number", models.IntegerField()),
            ("price", models.IntegerField(default=5)),
            ("quantity", models.IntegerField(default=1)),
            ("paid", models.DecimalField(max_digits=8, decimal_places=2, null=True)),
            (
                "total",
                models.GeneratedField(
                    expression=F("price") * F("quantity"),
                    output_field=models.IntegerField(),
                    db_persist=True,
                ),
            ),
            ("tags", models.ManyToManyField("shop.Tag")),
        ],
        {"unique_together": {("customer", "number")}},
    ),
]


def _drop_level(apps: Any, editor: Any) -> None:
    alter(FILE, "alter table shop_customer drop column level")


MIGRATIONS: dict[str, list[Any]] = {
    "add a field": [
        migrations.AddField("Order", "note", models.CharField(max_length=9, null=True))
    ],
    "add a field with a default": [
        migrations.AddField("Tag", "color", models.CharField(max_length=9, default="red"))
    ],
    "alter a field": [
        migrations.AlterField("Order", "note", models.CharField(max_length=20, default=""))
    ],
    "rename a field": [migrations.RenameField("Order", "note", "remark")],
    "add a unique constraint": [
        migrations.RunSQL("delete from shop_order_tags"),
        migrations.RunSQL("delete from shop_tag"),
        migrations.AddConstraint("Tag", models.UniqueConstraint(fields=["name"], name="names")),
    ],
    "add a conditional constraint": [
        migrations.AddConstraint(
            "Order",
            models.UniqueConstraint(
                fields=["number", "remark"], condition=Q(remark="only"), name="only"
            ),
        )
    ],
    "run SQL": [
        migrations.RunSQL("update shop_order set quantity = quantity + 1"),
        migrations.RunSQL("create index shop_paid on shop_order (paid)"),
    ],
    "remove a foreign key": [migrations.RemoveField("Order", "seller")],
    "remove a field": [migrations.RemoveField("Customer", "level")],
    "remove a field by alter": [
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.RunPython(_drop_level)],
            state_operations=[migrations.RemoveField("Customer", "level")],
        )
    ],
}


class Project:
    """The tables of the project, as far as they were migrated."""

    def __init__(self) -> None:
        self._state: Any = None
        self._draw = random.Random(7)

    def create(self) -> None:
        """Create all tables."""
        call_command("migrate", verbosity=0, skip_checks=True)
        self._state = MigrationExecutor(connection).loader.project_state()
        self._migrate(INITIAL)

    def migrate(self, name: str) -> None:
        """Run one more migration."""
        self._migrate(MIGRATIONS[name], atomic=not name.endswith("by alter"))

    def _migrate(self, operations: list[Any], *, atomic: bool = True) -> None:
        migration = migrations.Migration("next", "shop")
        migration.operations = operations
        migration.atomic = atomic
        with connection.schema_editor(atomic=atomic) as editor:
            state = migration.apply(self._state.clone(), editor)
        self._state = state

    # -- what the application does -----------------------------------------------------------

    def work(self, steps: int) -> None:
        """Write rows through the models; some of it fails, or is rolled back."""
        kinds = [
            *(self._customers, self._orders, self._orders, self._tags, self._upserts),
            *(self._updates, self._deletes, self._people, self._sessions),
        ]
        for _ in range(steps):
            with transaction.atomic():
                for _ in range(self._draw.randrange(1, 4)):
                    try:
                        with transaction.atomic():
                            self._draw.choice(kinds)()
                    except IntegrityError:  # this part is rolled back
                        continue
                if self._draw.random() < 0.15:
                    transaction.set_rollback(True)

    def _model(self, name: str, app: str = "shop") -> Any:
        return self._state.apps.get_model(app, name)

    def _any(self, name: str, app: str = "shop") -> Any:
        found = list(self._model(name, app).objects.order_by("pk"))
        return self._draw.choice(found) if found else None

    def _customers(self) -> None:
        number = self._draw.randrange(8)
        self._model("Customer").objects.create(
            email=f"{number}@x", active=number % 2 == 0, data={"n": number, "é": [None, 1.5]}
        )

    def _orders(self) -> None:
        customer = self._any("Customer")
        if customer is None:
            return
        draw = self._draw
        order = self._model("Order").objects.create(
            customer=customer, number=draw.randrange(40), price=draw.randrange(9), paid="7.10"
        )
        order.tags.set(self._model("Tag").objects.all()[: draw.randrange(4)])

    def _tags(self) -> None:
        names = [f"t{self._draw.randrange(30)}" for _ in range(3)]
        tag = self._model("Tag")
        tag.objects.bulk_create([tag(name=name) for name in names], ignore_conflicts=True)

    def _upserts(self) -> None:
        customer, order = self._any("Customer"), self._model("Order")
        if customer is None:
            return
        order.objects.bulk_create(
            [order(customer=customer, number=n, price=n, quantity=2) for n in range(3)],
            update_conflicts=True,
            unique_fields=["customer", "number"],
            update_fields=["price", "quantity"],
        )
        order.objects.update_or_create(customer=customer, number=3, defaults={"price": 8})

    def _updates(self) -> None:
        draw = self._draw
        self._model("Order").objects.filter(number__lt=draw.randrange(20)).update(
            quantity=F("quantity") + 1
        )
        customer = self._any("Customer")
        if customer is not None:
            customer.active = not customer.active
            customer.data["seen"] = draw.randrange(5)
            customer.save()

    def _deletes(self) -> None:
        each = self._any(self._draw.choice(["Customer", "Order", "Order", "Tag"]))
        if each is not None:
            each.delete()

    def _people(self) -> None:
        number = self._draw.randrange(6)
        user, _ = self._model("User", "auth").objects.get_or_create(username=f"u{number}")
        group, _ = self._model("Group", "auth").objects.get_or_create(name=f"g{number % 3}")
        user.groups.add(group)
        group.permissions.set(self._model("Permission", "auth").objects.all()[:number])
        self._model("LogEntry", "admin").objects.create(
            user=user, object_repr="x", action_flag=1, change_message="[]"
        )
        if number == 5:
            user.delete()

    def _sessions(self) -> None:
        draw, session = self._draw, self._model("Session", "sessions")
        number = draw.randrange(9)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        session.objects.update_or_create(
            session_key=f"s{number}",
            defaults={
                "session_data": f"{draw.random()}",
                "expire_date": now + timedelta(days=number),
            },
        )
        session.objects.filter(expire_date__lt=now + timedelta(days=2)).delete()


def main() -> None:
    """Do what is asked, until there is no more."""
    settings.configure(
        INSTALLED_APPS=[
            *("django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
            "django.contrib.admin.apps.SimpleAdminConfig",
        ],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": FILE,
                "OPTIONS": {
                    "transaction_mode": "IMMEDIATE",
                    "timeout": 60,
                    "init_command": "pragma synchronous = off",
                },
            }
        },
        LOGGING_CONFIG=None,
        SECRET_KEY="-",
        USE_TZ=True,
    )
    django.setup()
    project = Project()
    for line in sys.stdin:
        kind, _, what = line.strip().partition(": ")
        try:
            if kind == "create":
                project.create()
            elif kind == "work":
                project.work(int(what))
            else:
                project.migrate(what)
        except Error as error:
            print(error, flush=True)
        else:
            print(flush=True)


if __name__ == "__main__":
    main()
