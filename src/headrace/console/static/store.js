/*
 * What the engine said last, and what it said in the last minutes.
 *
 * The status is asked for each second while somebody looks. When no answer comes, the last one
 * stays on the page, marked as old, and the engine is asked again in growing intervals.
 */

import { update } from "./dom.js";
import { call, RpcError } from "./rpc.js";

const EVERY = 1000;
const KEPT = 120;
const LONGEST = 8000;
const ROLES = ["read", "operate", "admin"];

export const store = {
  /** connecting, open, away, or signed-out. */
  connection: "connecting",
  status: null,
  health: null,
  me: null,
  /** When the last status came. */
  at: 0,
  /** When the engine is asked again. */
  retryAt: 0,
  trouble: "",
  /** By `pipeline:NAME` or `source:NAME`, the last values. */
  history: new Map(),
};

let timer = 0;
let failures = 0;
let last = null;

/** Ask now, and go on asking. */
export async function poll() {
  clearTimeout(timer);
  timer = -1;
  try {
    store.me ??= await call("Me").catch((error) => {
      if (error.kind !== "unimplemented") throw error;
      return { name: "", role: "admin" };
    });
    const [status, health] = await Promise.all([
      call("Status", {}, { seconds: 10 }),
      call("Health", {}, { seconds: 10 }),
    ]);
    take(status, health);
    failures = 0;
    timer = setTimeout(poll, document.hidden ? LONGEST : EVERY);
  } catch (error) {
    if (error instanceof RpcError && error.kind === "unauthenticated") {
      store.connection = "signed-out";
      store.me = null;
    } else {
      const wait = Math.min(LONGEST, EVERY * 2 ** failures++);
      store.connection = "away";
      store.trouble = error.message;
      store.retryAt = Date.now() + wait;
      timer = setTimeout(poll, wait);
    }
  }
  update();
}

/** Ask again at once, unless it is being asked. */
export function pollNow() {
  if (timer !== -1) poll();
}

function take(status, health) {
  const now = Date.now();
  Object.assign(store, { status, health, connection: "open", at: now, trouble: "" });
  if (last && last.pid !== status.pid) store.history.clear();
  for (const each of status.pipelines) {
    remember(`pipeline:${each.name}`, {
      at: now,
      rate: each.rate_per_s,
      lag: each.lag_seconds,
      total: each.hops.total?.p50_ms ?? null,
    });
  }
  for (const each of status.sources) {
    const key = `source:${each.name}`;
    const known = store.history.get(key)?.findLast((old) => now - old.at > 4500) ?? store.history.get(key)?.[0];
    const grown = known && each.captured >= known.captured ? each.captured - known.captured : null;
    const rate = grown == null ? null : (grown * 1000) / Math.max(500, now - known.at);
    remember(key, { at: now, captured: each.captured, rate });
  }
  last = status;
}

function remember(key, sample) {
  const kept = store.history.get(key) ?? [];
  kept.push(sample);
  if (kept.length > KEPT) kept.shift();
  store.history.set(key, kept);
}

export const history = (key) => store.history.get(key) ?? [];
export const rateOf = (key) => history(key).at(-1)?.rate ?? null;
export const pipelines = () => store.status?.pipelines ?? [];
export const sources = () => store.status?.sources ?? [];
export const pipelineNamed = (name) => pipelines().find((each) => each.name === name);

/** Why the caller may not do what needs this role; empty if it may. */
export function refusedFor(role) {
  const mine = store.me?.role ?? "read";
  if (ROLES.indexOf(mine) >= ROLES.indexOf(role)) return "";
  return `Needs the role ${role}; yours is ${mine}.`;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && store.connection !== "signed-out") pollNow();
});
