// A receiver of Entrega's webhooks. Needs Node 18 and nothing else.
//
//   WEBHOOK_SECRET=whsec_… PORT=8000 node receiver.mjs
//
// WEBHOOK_SECRET may hold several secrets with spaces between them, for the time of a rotation. An event whose
// predecessor is missing is held back for GAP_WAIT_MS to twice that (default: ten minutes), then handled without it.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const SECRETS = (process.env.WEBHOOK_SECRET ?? "").split(" ").filter(Boolean);
const PORT = Number(process.env.PORT ?? 8000);
const GAP_WAIT_MS = Number(process.env.GAP_WAIT_MS ?? 600_000);
const BODY_BYTES_MAX = 1 << 20;
const EVENTS_MAX = 100_000;
const MAILS_MAX = 10_000;
const WAITING_MAX = 100;

/** Whether one of our secrets signed exactly these bytes. */
function isGenuine(body, signature = "") {
  const given = Buffer.from(signature);
  const fits = SECRETS.map((secret) => {
    const expected = Buffer.from(`sha256=${createHmac("sha256", secret).update(body).digest("hex")}`);
    return expected.length === given.length && timingSafeEqual(expected, given);
  });
  return fits.includes(true);
}

/** The event, or null if it is none. */
function read(body) {
  try {
    const event = JSON.parse(body.toString("utf8"));
    const isNamed = typeof event.eventId === "string" && typeof event.eventType === "string";
    const { outboxId } = event.data ?? {};
    const isNumbered = Number.isSafeInteger(event.sequenceNumber) && event.sequenceNumber >= 1;
    const isOrdered = outboxId === undefined || (typeof outboxId === "string" && isNumbered);
    return isNamed && isOrdered ? event : null;
  } catch {
    return null;
  }
}

/**
 * Knows which events were here, and in which order to handle those of a mail. It forgets when the process ends: yours
 * belongs into your database, with `eventId` as a unique key, written before the sender is answered.
 */
class Inbox {
  #known = new Set();
  #mails = new Map();

  isKnown(event) {
    return this.#known.has(event.eventId);
  }

  /** Takes an event and gives those that can be handled now, in order. */
  take(event) {
    this.#known.add(event.eventId);
    forgetOldest(this.#known, EVENTS_MAX);
    const outboxId = event.data?.outboxId;
    if (outboxId === undefined) return [event];
    const mail = this.#mails.get(outboxId) ?? { next: 1, waiting: [], isLate: false };
    this.#mails.set(outboxId, mail);
    mail.waiting.push(event);
    mail.waiting.sort((a, b) => a.sequenceNumber - b.sequenceNumber);
    const forgotten = forgetOldest(this.#mails, MAILS_MAX)?.waiting ?? [];
    return [...forgotten, ...drain(mail, (first) => first.sequenceNumber <= mail.next)];
  }

  /** Gives what was waiting already the last time this was called: what it waits for may never come. */
  takeLate() {
    const late = [...this.#mails.values()].filter((mail) => mail.isLate).flatMap((mail) => drain(mail, () => true));
    for (const mail of this.#mails.values()) mail.isLate = mail.waiting.length > 0;
    return late;
  }
}

function drain(mail, mayGo) {
  const ready = [];
  while (mail.waiting.length > 0 && (mayGo(mail.waiting[0]) || mail.waiting.length > WAITING_MAX)) {
    const event = mail.waiting.shift();
    mail.next = Math.max(mail.next, event.sequenceNumber + 1);
    ready.push(event);
  }
  if (mail.waiting.length === 0) mail.isLate = false;
  return ready;
}

/** At most one, for one was just put in. A Set or a Map keeps the order in which that happened. */
function forgetOldest(collection, max) {
  if (collection.size <= max) return undefined;
  const [key, value] = collection.entries().next().value;
  collection.delete(key);
  return value;
}

/** Your part: an event, once, in its order among those of its mail unless its predecessors are lost or late. */
function handle(event) {
  const { eventId, eventType, sequenceNumber, data } = event;
  console.log(JSON.stringify({ eventId, eventType, outboxId: data?.outboxId, sequenceNumber }));
}

const inbox = new Inbox();

function receive(request, body) {
  if (!isGenuine(body, request.headers["x-signature"])) return [401, "the signature is not right"];
  const event = read(body);
  if (event === null) return [400, "this is no event"];
  if (inbox.isKnown(event)) return [200, "known"];
  const ready = inbox.take(event);
  // After the answer, which must be there within five seconds, however long the handling takes.
  setImmediate(() => ready.forEach(handle));
  return [200, "taken"];
}

const server = createServer((request, response) => {
  const answer = ([status, text]) => {
    response.statusCode = status;
    response.setHeader("content-type", "text/plain").end(`${text}\n`);
  };
  if (request.method !== "POST") return answer([405, "only POST"]);
  const chunks = [];
  let length = 0;
  request.on("data", (chunk) => {
    length += chunk.length;
    if (length <= BODY_BYTES_MAX) chunks.push(chunk);
  });
  // The bytes as they came: a body that was parsed and written again is another body.
  request.on("end", () => answer(length > BODY_BYTES_MAX ? [413, "too long"] : receive(request, Buffer.concat(chunks))));
});

if (SECRETS.length === 0) {
  console.error("WEBHOOK_SECRET is not set; without a secret anybody could send events");
  process.exit(1);
}
server.requestTimeout = 10_000;
setInterval(() => inbox.takeLate().forEach(handle), GAP_WAIT_MS);
server.listen(PORT, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
