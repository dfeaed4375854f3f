/*
 * Asks the engine: the Connect protocol with JSON, one answer or a stream of them.
 */

const PATH = "/headrace.v1.ControlService/";
const HEAD = 5;
const ENDS = 2;

/** What the engine, or the way to it, answered instead; `kind` is Connect's code. */
export class RpcError extends Error {
  constructor(fields, status = 0) {
    const ours = fields?.details?.find((each) => each.type === "headrace.v1.Error")?.debug ?? {};
    super(ours.message || fields?.message || "The engine gave no answer");
    this.kind = fields?.code ?? "unavailable";
    this.code = ours.code ?? "";
    this.remedy = ours.remedy ?? "";
    this.facts = ours.facts ?? {};
    this.status = status;
  }

  /** Whether there was no engine to answer. */
  get away() {
    return this.kind === "unavailable" && !this.code;
  }
}

const headers = (type) => ({ "Content-Type": type, "Connect-Protocol-Version": "1" });

async function post(path, init) {
  try {
    return await fetch(path, { method: "POST", credentials: "same-origin", ...init });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RpcError({ code: "unavailable", message: "The engine cannot be reached" });
  }
}

async function refusal(response) {
  let fields = null;
  try {
    fields = await response.json();
  } catch {
    // A proxy in between answers in its own words.
  }
  const code = response.status === 401 ? "unauthenticated" : (fields?.code ?? "unavailable");
  const message = fields?.message ?? `The server answered ${response.status}`;
  return new RpcError({ ...fields, code, message }, response.status);
}

/** Ask for one answer; a verb of another service is given with its path. */
export async function call(verb, fields = {}, { seconds = 30 } = {}) {
  const response = await post(verb.startsWith("/") ? verb : PATH + verb, {
    headers: headers("application/json"),
    body: JSON.stringify(fields),
    signal: AbortSignal.timeout(seconds * 1000),
  }).catch((error) => {
    if (error instanceof RpcError) throw error;
    throw new RpcError({ code: "unavailable", message: "The engine did not answer in time" });
  });
  if (!response.ok) throw await refusal(response);
  return response.json().catch(() => {
    throw new RpcError({ code: "unavailable", message: "The answer was cut off" });
  });
}

/** Ask for a stream; ends when it ends, raises its error, and stops when `signal` is aborted. */
export async function* stream(verb, fields, signal) {
  const message = new TextEncoder().encode(JSON.stringify(fields));
  const body = new Uint8Array(HEAD + message.length);
  new DataView(body.buffer).setUint32(1, message.length);
  body.set(message, HEAD);
  const response = await post(PATH + verb, { headers: headers("application/connect+json"), body, signal });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.getReader();
  let held = new Uint8Array(0);
  try {
    for (;;) {
      while (held.length >= HEAD) {
        const length = new DataView(held.buffer, held.byteOffset).getUint32(1);
        if (held.length < HEAD + length) break;
        const fields = JSON.parse(new TextDecoder().decode(held.subarray(HEAD, HEAD + length)));
        const ends = held[0] & ENDS;
        held = held.slice(HEAD + length);
        if (!ends) yield fields;
        else if (fields.error) throw new RpcError(fields.error);
        else return;
      }
      const { done, value } = await reader.read();
      if (done) throw new RpcError({ code: "unavailable", message: "The stream was cut off" });
      const more = new Uint8Array(held.length + value.length);
      more.set(held);
      more.set(value, held.length);
      held = more;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof RpcError) throw error;
    throw new RpcError({ code: "unavailable", message: "The stream was cut off" });
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What would be refused again. */
const FINAL = new Set(["permission_denied", "unauthenticated", "invalid_argument", "not_found", "unimplemented"]);

/** Follow a stream until `signal` is aborted; it is asked for again when it breaks. */
export async function follow(verb, fields, signal, { message, state }) {
  let wait = 500;
  while (!signal.aborted) {
    try {
      for await (const each of stream(verb, fields(), signal)) {
        wait = 500;
        state("open");
        message(each);
      }
      state("ended");
    } catch (error) {
      if (signal.aborted) return;
      state(FINAL.has(error.kind) ? "refused" : "broken", error);
      if (FINAL.has(error.kind)) return;
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    wait = Math.min(8000, wait * 2);
  }
}

/** Trade a token for a session of this browser. */
export async function signIn(token) {
  const response = await post("/session", {
    headers: headers("application/json"),
    body: JSON.stringify({ token }),
  });
  if (!response.ok) throw await refusal(response);
}

/** End the session of this browser. */
export async function signOut() {
  await fetch("/session", { method: "DELETE", credentials: "same-origin" }).catch(() => {});
}
