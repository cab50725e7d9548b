"""A receiver of Entrega's webhooks. Needs Python 3.9 and nothing else.

    WEBHOOK_SECRET=whsec_… PORT=8000 python3 receiver.py

WEBHOOK_SECRET may hold several secrets with spaces between them, for the time of a rotation. An event whose predecessor
is missing is held back for GAP_WAIT_MS to twice that (default: ten minutes), then handled without it.
"""

import hashlib
import hmac
import json
import os
import queue
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRETS = os.environ.get("WEBHOOK_SECRET", "").split()
PORT = int(os.environ.get("PORT", "8000"))
GAP_WAIT_MS = int(os.environ.get("GAP_WAIT_MS", "600000"))
BODY_BYTES_MAX = 1 << 20
EVENTS_MAX = 100_000
MAILS_MAX = 10_000
WAITING_MAX = 100
UNHANDLED_MAX = 1_000


def is_genuine(body, signature):
    """Whether one of our secrets signed exactly these bytes."""
    given = signature.encode("utf-8", "replace")
    expected = (b"sha256=" + hmac.new(s.encode(), body, hashlib.sha256).hexdigest().encode() for s in SECRETS)
    # A list, so that every secret is tried, whichever fits.
    return any([hmac.compare_digest(one, given) for one in expected])


def read(body):
    """The event, or None if it is none."""
    try:
        event = json.loads(body)
        data = event.get("data") or {}
        is_named = isinstance(event["eventId"], str) and isinstance(event["eventType"], str)
        number = event.get("sequenceNumber")
        is_numbered = type(number) is int and number >= 1 and isinstance(data.get("outboxId"), str)
        return event if is_named and (is_numbered or "outboxId" not in data) else None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None


class Inbox:
    """Knows which events were here, and in which order to handle those of a mail.

    It forgets when the process ends: yours belongs into your database, with `eventId` as a unique key, written before
    the sender is answered.
    """

    def __init__(self):
        self._known = {}
        self._mails = {}

    def take(self, event):
        """Gives the events that can be handled now, in order; None for one that was here before."""
        if event["eventId"] in self._known:
            return None
        self._known[event["eventId"]] = True
        forget_oldest(self._known, EVENTS_MAX)
        outbox_id = (event.get("data") or {}).get("outboxId")
        if outbox_id is None:
            return [event]
        mail = self._mails.setdefault(outbox_id, {"next": 1, "waiting": [], "is_late": False})
        mail["waiting"].append(event)
        mail["waiting"].sort(key=lambda waiting: waiting["sequenceNumber"])
        forgotten = forget_oldest(self._mails, MAILS_MAX)
        ready = drain(mail, lambda first: first["sequenceNumber"] <= mail["next"])
        return (forgotten["waiting"] if forgotten else []) + ready

    def take_late(self):
        """Gives what was waiting already the last time this was called: what it waits for may never come."""
        late = [mail for mail in self._mails.values() if mail["is_late"]]
        ready = [event for mail in late for event in drain(mail, lambda _: True)]
        for mail in self._mails.values():
            mail["is_late"] = bool(mail["waiting"])
        return ready


def drain(mail, may_go):
    ready, waiting = [], mail["waiting"]
    while waiting and (may_go(waiting[0]) or len(waiting) > WAITING_MAX):
        event = waiting.pop(0)
        mail["next"] = max(mail["next"], event["sequenceNumber"] + 1)
        ready.append(event)
    mail["is_late"] = mail["is_late"] and bool(waiting)
    return ready


def forget_oldest(entries, most):
    """At most one, for one was just put in. A dict keeps the order in which that happened."""
    return entries.pop(next(iter(entries))) if len(entries) > most else None


def handle(event):
    """Your part: an event, once, in its order among those of its mail unless its predecessors are lost or late."""
    outbox_id = (event.get("data") or {}).get("outboxId")
    shown = {"eventId": event["eventId"], "eventType": event["eventType"], "outboxId": outbox_id}
    print(json.dumps({**shown, "sequenceNumber": event.get("sequenceNumber")}), flush=True)


INBOX = Inbox()
# Held from taking an event until it is in the queue; otherwise a later event could overtake it there.
IN_ORDER = threading.Lock()
# With a bound: handling that cannot keep up slows senders down instead of filling the memory.
UNHANDLED = queue.Queue(UNHANDLED_MAX)


def work():
    while True:
        handle(UNHANDLED.get())


def release_late_ones():
    while not threading.Event().wait(GAP_WAIT_MS / 1000):
        with IN_ORDER:
            for event in INBOX.take_late():
                UNHANDLED.put(event)


def receive(body, signature):
    if not is_genuine(body, signature):
        return 401, "the signature is not right"
    event = read(body)
    if event is None:
        return 400, "this is no event"
    with IN_ORDER:
        ready = INBOX.take(event)
        # Handled by another thread: the answer must be there within five seconds, however long the handling takes.
        for waiting in ready or []:
            UNHANDLED.put(waiting)
    return 200, "known" if ready is None else "taken"


class Receiver(BaseHTTPRequestHandler):
    # Seconds, for a sender that stops in the middle.
    timeout = 10

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return self.answer(411, "a Content-Length is needed")
        if len(length) > 7 or int(length) > BODY_BYTES_MAX:
            return self.answer(413, "too long")
        # The bytes as they came: a body that was parsed and written again is another body.
        body = self.rfile.read(int(length))
        return self.answer(*receive(body, self.headers.get("X-Signature", "")))

    def answer(self, status, text):
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """A line for each request would drown what was handled."""


if __name__ == "__main__":
    if not SECRETS:
        sys.exit("WEBHOOK_SECRET is not set; without a secret anybody could send events")
    for task in (work, release_late_ones):
        threading.Thread(target=task, daemon=True).start()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Receiver)
    print(f"listening on {server.server_address[1]}", flush=True)
    server.serve_forever()
