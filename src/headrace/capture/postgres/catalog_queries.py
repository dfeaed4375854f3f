"""The queries that `catalog` asks. They take no lock on any table."""

from __future__ import annotations

_TREE = """
with recursive wanted as (
    select c.*, n.nspname, w.place
    from unnest(%(schemas)s::text[], %(tables)s::text[]) with ordinality as w(schema, name, place)
    join pg_catalog.pg_namespace n on n.nspname = w.schema
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = w.name
), tree as (
    select place, oid, 0 as level from wanted
    union
    select t.place, i.inhrelid, t.level + 1 from tree t
    join pg_catalog.pg_inherits i on i.inhparent = t.oid and not i.inhdetachpending
)"""
# pg_partition_tree() would wait for every lock on a partition, and would hold its own.

RELATIONS = f"""{_TREE}
select t.place::int, min(t.level) as level, c.oid::int8, n.nspname as namespace,
       c.relname as table, c.relkind::text as kind, c.relpersistence::text as persistence,
       c.relreplident::text as identity, c.relispartition as partition,
       nullif(pg_catalog.pg_relation_filenode(c.oid), 0)::int8 as filenode,
       greatest(c.relpages, 0) as pages, c.reltoastrelid <> 0 as toasted
from tree t
join pg_catalog.pg_class c on c.oid = t.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
group by t.place, c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
         c.relispartition, c.relpages, c.reltoastrelid
order by c.oid
"""

COLUMNS = f"""{_TREE}, based as (
    select w.place, a.attnum, a.atttypid as type, a.atttypmod as modifier, 0 as depth
    from wanted w join pg_catalog.pg_attribute a on a.attrelid = w.oid
    where a.attnum > 0 and not a.attisdropped
    union all
    select b.place, b.attnum, t.typbasetype, t.typtypmod, b.depth + 1
    from based b join pg_catalog.pg_type t on t.oid = b.type and t.typtype = 'd'
), base as (
    select distinct on (place, attnum) place, attnum, type, modifier
    from based order by place, attnum, depth desc
)
select w.place::int, a.attnum::int as number, a.attname as name, b.type::int8, b.modifier,
       a.atttypid::int8 as own_type, a.atttypmod as own_modifier,
       pg_catalog.format_type(a.atttypid, a.atttypmod) as declared,
       not a.attnotnull as nullable, a.attgenerated::text as generated,
       a.attstorage <> 'p' and a.attlen = -1 as toastable,
       case when a.atthasmissing then (a.attmissingval::text::text[])[1] end as missing,
       a.atthasdef or a.attidentity <> '' as defaulted, a.xmin::text::int8 as stamp
from wanted w
join pg_catalog.pg_attribute a on a.attrelid = w.oid
join base b on b.place = w.place and b.attnum = a.attnum
order by w.place, a.attnum
"""

INDEXES = f"""{_TREE}
select i.indrelid::int8 as relation, c.relname as name, i.indisprimary as primary,
       i.indisreplident as identity, i.indimmediate as immediate,
       pg_catalog.array_agg(a.attname::text order by k.place) as columns,
       pg_catalog.bool_and(a.attnotnull) as strict
from (select distinct oid from tree) t
join pg_catalog.pg_index i on i.indrelid = t.oid
join pg_catalog.pg_class c on c.oid = i.indexrelid
-- What an index only INCLUDEs stands after its key.
cross join lateral unnest(i.indkey::int2[]) with ordinality as k(number, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
where i.indisunique and i.indislive and i.indpred is null and i.indexprs is null
  and (i.indisvalid or i.indisprimary) and k.place <= i.indnkeyatts
group by i.indrelid, i.indexrelid, c.relname, i.indisprimary, i.indisreplident, i.indimmediate
order by i.indisprimary desc, pg_catalog.count(*), c.relname
"""

ELSEWHERE = """
select n.nspname, c.relname
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and pg_catalog.lower(c.relname) = any(%s::text[])
  and n.nspname not in ('pg_catalog', 'information_schema', 'pg_toast')
order by 1, 2
"""
