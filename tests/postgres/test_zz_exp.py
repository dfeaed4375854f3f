import time, pytest
from tests.postgres.test_engine import Shop, memory, wait_until, shop  # noqa
from tests.postgres.conftest import *  # noqa

def test_alter(shop, capsys):
    orders = memory()
    with capsys.disabled():
      with shop.engine(orders) as engine:
        assert engine.await_ready(60)
        shop.database.execute("alter table orders add column extra int default 5")
        shop.database.execute("insert into orders (id,status) values (900,'x')")
        t=time.monotonic()
        while engine.source_info("shop").state not in ("failed",) and time.monotonic()-t<15: time.sleep(.1)
        i=engine.source_info("shop"); print("STATE", i.state, i.error)
      for attempt in (1,2):
        orders = memory()
        try:
          with shop.engine(orders) as engine:
            print("ready", engine.await_ready(30), engine.source_info("shop").state, engine.source_info("shop").error)
            print("baseline", engine.pipeline_info("orders").tables, engine.pipeline_info("orders").error)
            print("row", orders.get(900), orders.get(1))
        except Exception as e:
          print("START", attempt, type(e), e)
      print("TEARDOWN")
      src = shop.source(); print(src.options.slot, src.options.publication, shop.database.rows("select slot_name from pg_replication_slots"), shop.database.rows("select pubname from pg_publication"))

def test_alter_while_away(shop, capsys):
    with capsys.disabled():
      with shop.engine(memory()) as engine:
        assert engine.await_ready(60)
      shop.database.execute("insert into orders (id,status) values (899,'old')")
      shop.database.execute("alter table orders add column extra int default 5")
      shop.database.execute("insert into orders (id,status) values (900,'x')")
      orders = memory()
      with shop.engine(orders) as engine:
        print("AWAY ready", engine.await_ready(30), engine.source_info("shop").state, engine.source_info("shop").error, engine.pipeline_info("orders").tables)
        print("row", orders.get(899), orders.get(900))
