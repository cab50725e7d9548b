"""A receiver that is not ours: what it believes is up to the library `standardwebhooks`, and to nothing but HMAC.

WEBHOOK_SECRET is what it knows. The port is printed on the first line of standard output. Every call is answered with what
both say of it, as JSON: 200 if both believe it, 401 otherwise. It ends when its standard input does: with whoever started
it.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

SECRET = os.environ["WEBHOOK_SECRET"]


def standard(body, headers):
    try:
        Webhook(SECRET).verify(body, headers)
        return "believed"
    except WebhookVerificationError as error:
        return str(error)


def plain(body, headers):
    made = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return "believed" if hmac.compare_digest(made, headers.get("x-signature", "")) else "not what HMAC makes of it"


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        verdict = {"standard": standard(body, headers), "plain": plain(body, headers)}
        answer = json.dumps(verdict).encode()
        self.send_response(200 if set(verdict.values()) == {"believed"} else 401)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
