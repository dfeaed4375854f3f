/*
 * Numbers, times and values as text.
 */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NARROW = "\u202f";

/** A count, with a space between thousands: it reads the same in every language. */
export const count = (value) =>
  value == null ? "–" : whole.format(value).replaceAll(",", NARROW);

/** `1 row`, `2 rows`. */
export const counted = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;

/** Changes per second, with as many digits as help. */
export function rate(value) {
  if (value == null) return "–";
  if (value >= 100) return count(Math.round(value));
  if (value === 0) return "0";
  return value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

/** Milliseconds. */
export function ms(value) {
  if (value == null) return "–";
  if (value >= 10_000) return seconds(value / 1000);
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  return value >= 10 || value === 0 ? `${Math.round(value)} ms` : `${value.toFixed(1)} ms`;
}

/** Seconds, as the two largest units. */
export function seconds(value) {
  if (value == null) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 60) return `${Math.floor(value)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = units.findIndex(([size]) => value >= size);
  const [size, unit] = units[at];
  const [smaller, name] = units[at + 1];
  const rest = Math.floor((value % size) / smaller);
  return `${Math.floor(value / size)} ${unit}${rest ? ` ${rest} ${name}` : ""}`;
}

export function bytes(value) {
  if (value == null) return "–";
  let unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (value >= 1000 && unit < units.length - 1) (value /= 1000), (unit += 1);
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

const two = (number) => String(number).padStart(2, "0");

/** The time of a day, from seconds since 1970 or ISO text; with the date, unless it is today. */
export function time(moment, { millis = false } = {}) {
  if (moment == null) return "–";
  const at = new Date(typeof moment === "number" ? moment * 1000 : moment);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  const text = millis ? `${clock}.${String(at.getMilliseconds()).padStart(3, "0")}` : clock;
  if (at.toDateString() === new Date().toDateString()) return text;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${text}`;
}

/** How long ago, from seconds since 1970. */
export function ago(moment) {
  if (moment == null) return "–";
  const passed = Date.now() / 1000 - (typeof moment === "number" ? moment : Date.parse(moment) / 1000);
  return passed < 2 ? "just now" : `${seconds(Math.max(0, passed))} ago`;
}

/** A state or an event as words. */
export const words = (name) => (name ?? "").replaceAll("_", " ");

/** `0001-0000000000000009-00000000` without the zeros that say nothing: `1·9`. */
export function position(text) {
  if (!text) return "–";
  const parts = text.split("-");
  if (parts.length !== 3) return text;
  const [epoch, commit, ordinal] = parts.map((part) => part.replace(/^0+(?=.)/, ""));
  return ordinal === "0" ? `${epoch}·${commit}` : `${epoch}·${commit}·${ordinal}`;
}

/** A value of a row. */
export function value(given) {
  if (given === null) return "null";
  if (given === undefined) return "not sent";
  if (typeof given !== "object") return String(given);
  if ("kind" in given && "value" in given) return String(given.value);
  return JSON.stringify(given);
}
